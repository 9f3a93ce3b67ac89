// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/x509"
	"net"
	"os"
	"testing"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

func TestEnsure(t *testing.T) {
	dir := t.TempDir()
	leaves := []Leaf{
		{Name: Admin, Signer: CA, CommonName: "admin", Organization: []string{"system:masters"}},
		{
			Name:       "serving",
			Signer:     CA,
			CommonName: "server",
			DNSNames:   []string{"localhost"},
			IPs:        []net.IP{net.ParseIP("127.0.0.1")},
		},
		{Name: FrontProxyClient, Signer: FrontProxyCA, CommonName: FrontProxyClient},
	}
	if err := Ensure(dir, leaves); err != nil {
		t.Fatal(err)
	}
	verify := func(name, ca string, usage x509.ExtKeyUsage, host string) error {
		t.Helper()
		roots, err := cert.NewPool(CertFile(dir, ca))
		if err != nil {
			t.Fatal(err)
		}
		certificates, err := cert.CertsFromFile(CertFile(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		_, err = certificates[0].Verify(x509.VerifyOptions{
			Roots:     roots,
			KeyUsages: []x509.ExtKeyUsage{usage},
			DNSName:   host,
		})
		return err
	}
	if err := verify(Admin, CA, x509.ExtKeyUsageClientAuth, ""); err != nil {
		t.Error(err)
	}
	if err := verify("serving", CA, x509.ExtKeyUsageServerAuth, "127.0.0.1"); err != nil {
		t.Error(err)
	}
	if err := verify(FrontProxyClient, FrontProxyCA, x509.ExtKeyUsageClientAuth, ""); err != nil {
		t.Error(err)
	}
	if err := verify(FrontProxyClient, CA, x509.ExtKeyUsageClientAuth, ""); err == nil {
		t.Error("the certificate of the front proxy is valid for the cluster's CA: any client could act as the proxy")
	}
	if err := verify(Admin, CA, x509.ExtKeyUsageServerAuth, ""); err == nil {
		t.Error("the client certificate is valid for a server")
	}
	if _, err := keyutil.PublicKeysFromFile(PublicKeyFile(dir, ServiceAccounts)); err != nil {
		t.Error(err)
	}
	if _, err := keyutil.PrivateKeyFromFile(KeyFile(dir, ServiceAccounts)); err != nil {
		t.Error(err)
	}
}

func TestEnsureKeepsExistingFiles(t *testing.T) {
	dir := t.TempDir()
	leaves := []Leaf{{Name: Admin, Signer: CA, CommonName: "admin"}}
	read := func(path string) string {
		t.Helper()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", path, info.Mode())
		}
		return string(content)
	}
	files := []string{
		CertFile(dir, CA), KeyFile(dir, CA), CertFile(dir, Admin), KeyFile(dir, Admin), KeyFile(dir, ServiceAccounts),
	}
	if err := Ensure(dir, leaves); err != nil {
		t.Fatal(err)
	}
	before := map[string]string{}
	for _, file := range files {
		before[file] = read(file)
	}
	if err := Ensure(dir, leaves); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if read(file) != before[file] {
			t.Errorf("%s was recreated: tokens and kubeconfigs in use would stop working", file)
		}
	}
}
