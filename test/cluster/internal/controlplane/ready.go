// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/util/cert"

	"haulout.dev/haulout/test/cluster/internal/layout"
	"haulout.dev/haulout/test/cluster/internal/pki"
)

// probeTimeout is short because probes are repeated: a probe that hangs must not use up the timeout
// of the start.
const probeTimeout = 5 * time.Second

// Probe checks whether a process is ready; the error describes why not.
func (c ControlPlane) Probe(ctx context.Context, name string) error {
	switch name {
	case layout.Etcd:
		return c.probeEtcd(ctx)
	case layout.Network:
		connection, err := dialSocket(ctx, filepath.Join(c.Layout.Dir, layout.EgressSocket))
		if err == nil {
			connection.Close()
		}
		return err
	case layout.APIServer:
		return c.probeTLS(ctx, name, "/readyz")
	case layout.Kwok:
		return probe(ctx, &http.Client{}, "http://"+net.JoinHostPort(loopback, c.port(name))+"/healthz")
	default:
		return c.probeTLS(ctx, name, "/healthz")
	}
}

func (c ControlPlane) probeEtcd(ctx context.Context) error {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialSocket(ctx, filepath.Join(c.Layout.Dir, layout.EtcdClientSocket))
		},
	}
	return probe(ctx, &http.Client{Transport: transport}, "http://etcd/health")
}

func (c ControlPlane) probeTLS(ctx context.Context, name, path string) error {
	dir := c.Layout.PKI()
	roots, err := cert.NewPool(pki.CertFile(dir, pki.CA))
	if err != nil {
		return err
	}
	admin, err := tls.LoadX509KeyPair(pki.CertFile(dir, pki.Admin), pki.KeyFile(dir, pki.Admin))
	if err != nil {
		return err
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{
			RootCAs:      roots,
			Certificates: []tls.Certificate{admin},
			MinVersion:   tls.VersionTLS12,
		},
	}
	return probe(ctx, &http.Client{Transport: transport}, "https://"+net.JoinHostPort(loopback, c.port(name))+path)
}

func probe(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	// /readyz has a line for each check; only failed checks are in the error.
	body, _ := io.ReadAll(io.LimitReader(response.Body, 16<<10))
	var failed []string
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "[-]") {
			failed = append(failed, strings.TrimSpace(line))
		}
	}
	return fmt.Errorf("%s responded with %s %s", url, response.Status, strings.Join(failed, ", "))
}
