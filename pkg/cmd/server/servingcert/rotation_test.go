// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package servingcert

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes/fake"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorfake "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// server serves HTTPS over pipes, with the certificate of a manager, as haulout-apiserver does.
type server struct {
	manager     *Manager
	connections chan net.Conn
}

// Accept, Close and Addr implement net.Listener.
func (s *server) Accept() (net.Conn, error) {
	connection, open := <-s.connections
	if !open {
		return nil, io.EOF
	}
	return connection, nil
}

func (s *server) Close() error   { return nil }
func (s *server) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// frontProxy is a client like kube-apiserver: it uses a new caBundle only some time after the
// change.
type frontProxy struct {
	bundle atomic.Pointer[[]byte]
}

// lag is the time until kube-apiserver uses a new caBundle.
const lag = time.Second

func (a *frontProxy) follow(ctx context.Context, t *testing.T, agg *aggregatorfake.Clientset) {
	t.Helper()
	for ctx.Err() == nil {
		service, err := agg.ApiregistrationV1().APIServices().Get(ctx, options.APIService, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		<-time.After(lag)
		a.bundle.Store(&service.Spec.CABundle)
	}
}

// client is a connection that can be reused.
type client struct {
	*tls.Conn
	read *bufio.Reader
}

func (a *frontProxy) dial(ctx context.Context, s *server) (*client, error) {
	near, far := net.Pipe()
	select {
	case s.connections <- far:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(*a.bundle.Load())
	connection := tls.Client(near, &tls.Config{RootCAs: roots, ServerName: options.dnsNames()[0], MinVersion: tls.VersionTLS13})
	if err := connection.HandshakeContext(ctx); err != nil {
		near.Close()
		return nil, err
	}
	return &client{connection, bufio.NewReader(connection)}, nil
}

func (c *client) get(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://haulout/", http.NoBody)
	if err != nil {
		return err
	}
	if err := request.Write(c); err != nil {
		return err
	}
	answer, err := http.ReadResponse(c.read, request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("got status %d", answer.StatusCode)
	}
	return nil
}

// TestRotationFailsNoRequest sends 50 requests a second to three replicas. Their certificate is
// valid for two minutes and their CA for six minutes. The test ends after ten renewals. Every half
// a second, a request uses a new connection. The test also deletes the Secret once.
func TestRotationFailsNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		host := fake.NewClientset()
		agg := aggregatorfake.NewClientset(&apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: options.APIService}})
		var servers []*server
		for range 3 {
			m := New(options, host, agg, clock.RealClock{})
			m.periods = periods{ca: 6 * time.Minute, leaf: 2 * time.Minute, check: 5 * time.Second}
			must.Do(t, m.RunOnce(ctx))
			s := &server{manager: m, connections: make(chan net.Conn)}
			serve(ctx, t, s, &running)
			running.Go(func() { m.Run(ctx, 1) })
			servers = append(servers, s)
		}
		var a frontProxy
		running.Go(func() { a.follow(ctx, t, agg) })
		<-time.After(2 * lag)

		leaves, bundles := map[string]bool{}, map[string]bool{}
		open := map[*server]*client{}
		failed := 0
		for i := 0; len(leaves) < 11; i++ {
			s := servers[i%len(servers)]
			if i%25 == 0 && open[s] != nil {
				open[s].Close()
				delete(open, s)
			}
			err := func() (err error) {
				if open[s] == nil {
					if open[s], err = a.dial(ctx, s); err != nil {
						delete(open, s)
						return err
					}
				}
				return open[s].get(ctx)
			}()
			if err != nil {
				failed++
				t.Errorf("request %d failed after %d certificates: %v", i, len(leaves), err)
				if failed > 10 {
					return
				}
			}
			leaf, _ := s.manager.CurrentCertKeyContent()
			leaves[string(leaf)], bundles[string(*a.bundle.Load())] = true, true
			if i == 10_000 {
				must.Do(t, host.CoreV1().Secrets(options.Namespace).Delete(ctx, SecretName, metav1.DeleteOptions{}))
			}
			must.True(t, i <= 200_000, "got %d certificates after %d requests, want 11", len(leaves), i)
			<-time.After(20 * time.Millisecond)
		}
		is.True(t, len(bundles) >= 3, "got %d caBundles, want some more: the CA has to be renewed, too", len(bundles))
		for _, c := range open {
			c.Close()
		}
	})
}

// serve serves HTTPS with the certificate of the manager, until the context ends.
func serve(ctx context.Context, t *testing.T, s *server, running *sync.WaitGroup) {
	t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	dynamic := dynamiccertificates.NewDynamicServingCertificateController(config, nil, s.manager, nil, nil)
	must.Do(t, dynamic.RunOnce())
	s.manager.AddListener(dynamic)
	running.Go(func() { dynamic.Run(1, ctx.Done()) })
	config.GetConfigForClient = dynamic.GetConfigForClient
	handler := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }),
	}
	running.Go(func() {
		if err := handler.Serve(tls.NewListener(s, config)); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	running.Go(func() {
		<-ctx.Done()
		close(s.connections)
		handler.Close()
	})
}
