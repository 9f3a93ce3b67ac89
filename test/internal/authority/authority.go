// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package authority issues certificates for tests.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/must"
)

// Authority issues certificates for a test.
type Authority struct {
	// PEM is the certificate of the authority.
	PEM []byte

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New returns an authority that is valid for an hour.
func New(tb testing.TB) Authority {
	tb.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(tb)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(tb)
	cert := must.Get(x509.ParseCertificate(der))(tb)
	return Authority{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), cert, key}
}

// Issue returns a certificate for a client, and for a server at the addresses, in PEM.
func (a Authority) Issue(tb testing.TB, name string, addresses []net.IP) (cert, key []byte) {
	tb.Helper()
	private := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(tb)
	der := must.Get(x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: addresses,
	}, a.cert, &private.PublicKey, a.key))(tb)
	encoded := must.Get(x509.MarshalPKCS8PrivateKey(private))(tb)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}
