// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package servingcert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// clockSkew is the time by which the clock of a client may be behind the server's clock.
const clockSkew = 5 * time.Minute

type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// loadCA returns the newest CA of the bundle and its key, or an error if the CA can no longer be
// used.
func loadCA(m material, now time.Time) (authority, error) {
	certs, err := cert.ParseCertsPEM(m.caBundle)
	if err != nil {
		return authority{}, err
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(m.caKey)
	if err != nil {
		return authority{}, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(certs[0].PublicKey) {
		return authority{}, errors.New("the key does not belong to the CA")
	}
	if needsRenewal(certs[0], now) {
		return authority{}, errRenew
	}
	return authority{cert: certs[0], key: key}, nil
}

// checkLeaf returns an error if the leaf can no longer be used.
func checkLeaf(m material, o Options, now time.Time) error {
	leaf, err := verifyLeaf(m, o, now)
	if err == nil && needsRenewal(leaf, now) {
		return errRenew
	}
	return err
}

// verifyLeaf returns the leaf, or an error if clients that trust the bundle do not trust the leaf
// at the given time.
func verifyLeaf(m material, o Options, at time.Time) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(m.cert, m.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(m.caBundle)
	for _, name := range o.dnsNames() {
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: at}); err != nil {
			return nil, err
		}
	}
	return leaf, nil
}

func newCA(now time.Time, life time.Duration) (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: fmt.Sprintf("haulout-apiserver-ca@%d", now.Unix())},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	c, err := sign(template, template, &key.PublicKey, key)
	return authority{cert: c, key: key}, err
}

func (a authority) newLeaf(o Options, now time.Time, life time.Duration) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	leaf, err := sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: o.dnsNames()[0]},
		DNSNames:    o.dnsNames(),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		NotBefore:   now.Add(-clockSkew),
		NotAfter:    now.Add(life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, nil, err
	}
	if certPEM, err = cert.EncodeCertificates(leaf); err != nil {
		return nil, nil, err
	}
	keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key)
	return certPEM, keyPEM, err
}

func (a authority) encodeKey() ([]byte, error) {
	return keyutil.MarshalPrivateKeyToPEM(a.key)
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// unexpired returns the certificates of a bundle that have not expired.
func unexpired(bundle []byte, now time.Time) []*x509.Certificate {
	var kept []*x509.Certificate
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && now.Before(c.NotAfter) {
			kept = append(kept, c)
		}
	}
	return kept
}

func (o Options) dnsNames() []string {
	name := o.Service + "." + o.Namespace
	return []string{name + ".svc", name, "localhost"}
}
