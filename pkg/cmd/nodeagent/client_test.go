// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/agent/config"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// clientCertificate returns a certificate of a user and its key in one file, as the kubelet stores
// it.
func clientCertificate(t *testing.T, user string, keyFirst bool) []byte {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: user, Organization: []string{"system:nodes"}},
		NotAfter:     time.Now().Add(time.Hour),
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	keyDER := must.Get(x509.MarshalECPrivateKey(key))(t)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	if keyFirst {
		return append(private, certificate...)
	}
	return append(certificate, private...)
}

func TestNodeName(t *testing.T) {
	file := func(content []byte) string {
		path := filepath.Join(t.TempDir(), "client.pem")
		must.Do(t, os.WriteFile(path, content, 0o600))
		return "{client-certificate: " + path + ", client-key: " + path + "}"
	}
	inline := func(content []byte) string {
		data := base64.StdEncoding.EncodeToString(content)
		return "{client-certificate-data: " + data + ", client-key-data: " + data + "}"
	}
	node := clientCertificate(t, "system:node:node-1", false)
	hostname := must.Get(os.Hostname())(t)
	for name, test := range map[string]struct {
		configured, user string
		want             string
		// refused has texts that the error must contain.
		refused []string
	}{
		"from the kubelet's certificate":       {user: file(node), want: "node-1"},
		"from a certificate in the kubeconfig": {user: inline(node), want: "node-1"},
		"from a file with the key first":       {user: file(clientCertificate(t, "system:node:node-2", true)), want: "node-2"},
		"configured and the same":              {configured: "node-1", user: file(node), want: "node-1"},
		"configured for another user":          {configured: "node-9", user: file(clientCertificate(t, "admin", false)), want: "node-9"},
		"configured for a token":               {configured: "node-9", user: "{token: t}", want: "node-9"},
		"from the kubelet for a token":         {user: "{token: t}", want: strings.ToLower(hostname)},
		"another node's certificate":           {configured: "node-9", user: file(node), refused: []string{"nodeName", "node-9", `must be "node-1"`}},
		"a missing certificate":                {user: "{client-certificate: /none, client-key: /none}", refused: []string{"/none"}},
		"an invalid certificate":               {user: file([]byte("x")), refused: []string{"PEM"}},
	} {
		t.Run(name, func(t *testing.T) {
			kubeletConfig := filepath.Join(t.TempDir(), "config.yaml")
			must.Do(t, os.WriteFile(kubeletConfig, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"), 0o600))
			c := config.Default()
			c.NodeName, c.KubeletConfig = test.configured, kubeletConfig
			c.Kubeconfig = kubeconfigFor(t, "https://127.0.0.1:1", test.user)
			rest, err := restConfig(c.Kubeconfig)
			got := ""
			if err == nil {
				got, err = nodeName(t.Context(), c, rest)
			}
			if (err != nil) != (len(test.refused) > 0) || got != test.want {
				t.Fatalf("the node is %q, %v; want %q", got, err, test.want)
			}
			for _, want := range test.refused {
				is.True(t, strings.Contains(err.Error(), want), "the error does not name %q: %v", want, err)
			}
		})
	}
}

func TestMissingKubeconfigIsNamed(t *testing.T) {
	if _, err := restConfig("/none/kubelet.conf"); err == nil || !strings.Contains(err.Error(), "/none/kubelet.conf") {
		t.Errorf("the error is %v", err)
	}
}
