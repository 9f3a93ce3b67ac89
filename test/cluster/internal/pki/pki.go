// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package pki creates the keys and certificates of a development cluster.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// These are the names of the certificates. Each has the files <name>.crt and <name>.key.
const (
	CA           = "ca"
	FrontProxyCA = "front-proxy-ca"
	// FrontProxyClient is the client certificate of kube-apiserver for aggregated servers. Its
	// common name is in --requestheader-allowed-names.
	FrontProxyClient = "front-proxy-client"
	// ServiceAccounts is a key pair without a certificate; the public key is in sa.pub.
	ServiceAccounts = "sa"
	Admin           = "admin"
)

// lifetime is the lifetime of leaf certificates. It is equal to the lifetime of the CA that
// cert.NewSelfSignedCACert creates, so that a long-lived cluster never needs a rotation.
const lifetime = 10 * 365 * 24 * time.Hour

// Leaf describes a certificate that one of the CAs signs.
type Leaf struct {
	Name         string
	Signer       string
	CommonName   string
	Organization []string
	// DNSNames and IPs are the names in a serving certificate. A certificate without names is a
	// client certificate.
	DNSNames []string
	IPs      []net.IP
}

// CertFile returns the path of a certificate.
func CertFile(dir, name string) string { return filepath.Join(dir, name+".crt") }

// KeyFile returns the path of a private key.
func KeyFile(dir, name string) string { return filepath.Join(dir, name+".key") }

// PublicKeyFile returns the path of a public key.
func PublicKeyFile(dir, name string) string { return filepath.Join(dir, name+".pub") }

// Ensure creates missing files in dir: both CAs, the key pair that signs service account tokens,
// and the leaves. It does not change existing files.
func Ensure(dir string, leaves []Leaf) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{CA, FrontProxyCA} {
		if err := ensureCA(dir, name); err != nil {
			return fmt.Errorf("certificate authority %s: %w", name, err)
		}
	}
	if err := ensureKeyPair(dir, ServiceAccounts); err != nil {
		return fmt.Errorf("key pair %s: %w", ServiceAccounts, err)
	}
	for _, leaf := range leaves {
		if err := ensureLeaf(dir, leaf); err != nil {
			return fmt.Errorf("certificate %s: %w", leaf.Name, err)
		}
	}
	return nil
}

func ensureCA(dir, name string) error {
	if ok, err := bothExist(CertFile(dir, name), KeyFile(dir, name)); ok || err != nil {
		return err
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "haulout-development-" + name}, key)
	if err != nil {
		return err
	}
	return write(dir, name, certificate, key)
}

func ensureLeaf(dir string, leaf Leaf) error {
	if ok, err := bothExist(CertFile(dir, leaf.Name), KeyFile(dir, leaf.Name)); ok || err != nil {
		return err
	}
	signer, signerKey, err := loadCA(dir, leaf.Signer)
	if err != nil {
		return err
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	certificate, err := sign(leaf, key.Public(), signer, signerKey)
	if err != nil {
		return err
	}
	return write(dir, leaf.Name, certificate, key)
}

func sign(
	leaf Leaf, public crypto.PublicKey, signer *x509.Certificate, signerKey crypto.Signer,
) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	usage := x509.ExtKeyUsageClientAuth
	if len(leaf.DNSNames)+len(leaf.IPs) > 0 {
		usage = x509.ExtKeyUsageServerAuth
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: leaf.CommonName, Organization: leaf.Organization},
		DNSNames:     leaf.DNSNames,
		IPAddresses:  leaf.IPs,
		NotBefore:    signer.NotBefore,
		NotAfter:     time.Now().Add(lifetime).UTC(),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer, public, signerKey)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func loadCA(dir, name string) (*x509.Certificate, crypto.Signer, error) {
	certificates, err := cert.CertsFromFile(CertFile(dir, name))
	if err != nil {
		return nil, nil, err
	}
	key, err := keyutil.PrivateKeyFromFile(KeyFile(dir, name))
	if err != nil {
		return nil, nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("%s cannot sign", KeyFile(dir, name))
	}
	return certificates[0], signer, nil
}

func ensureKeyPair(dir, name string) error {
	if ok, err := bothExist(PublicKeyFile(dir, name), KeyFile(dir, name)); ok || err != nil {
		return err
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := writeKey(dir, name, key); err != nil {
		return err
	}
	return os.WriteFile(PublicKeyFile(dir, name), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600)
}

func newKey() (*ecdsa.PrivateKey, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// write writes the key before the certificate, so that both exist if the certificate exists.
func write(dir, name string, certificate *x509.Certificate, key crypto.PrivateKey) error {
	if err := writeKey(dir, name, key); err != nil {
		return err
	}
	data, err := cert.EncodeCertificates(certificate)
	if err != nil {
		return err
	}
	return os.WriteFile(CertFile(dir, name), data, 0o600)
}

func writeKey(dir, name string, key crypto.PrivateKey) error {
	data, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	return keyutil.WriteKey(KeyFile(dir, name), data)
}

func bothExist(paths ...string) (bool, error) {
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return false, nil
			}
			return false, err
		}
	}
	return true, nil
}
