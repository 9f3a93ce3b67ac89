// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"haulout.dev/haulout/pkg/testing/must"
)

// frozen is a TCP proxy. After freeze, its connections stay open but transfer nothing, as if an API
// server behind a load balancer had lost power. New connections work.
type frozen struct {
	net.Listener
	to string

	mu    sync.Mutex
	dead  map[net.Conn]bool
	conns []net.Conn
}

func newFrozen(t *testing.T, to string) *frozen {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &frozen{Listener: listener, to: to, dead: map[net.Conn]bool{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				t.Error(err)
				return
			}
			f.mu.Lock()
			f.conns = append(f.conns, client, server)
			f.mu.Unlock()
			running.Go(func() { f.pipe(client, server, client) })
			running.Go(func() { f.pipe(server, client, client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		f.mu.Lock()
		for _, conn := range f.conns {
			_ = conn.Close()
		}
		f.mu.Unlock()
		running.Wait()
	})
	return f
}

func (f *frozen) pipe(from, to, client net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			_ = to.Close()
			return
		}
		f.mu.Lock()
		dead := f.dead[client]
		f.mu.Unlock()
		if dead {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// freeze freezes the open connections and returns their number.
func (f *frozen) freeze() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.conns {
		f.dead[conn] = true
	}
	return len(f.conns) / 2
}

func (f *frozen) opened() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns) / 2
}

// One HTTP/2 connection is used for all requests of a process. If it is dead, one request fails.
// The next request uses a separate connection, which is closed afterwards.
func TestDeadConnection(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"PodList"}`)
	}))
	server.EnableHTTP2, server.TLS = true, &tls.Config{}
	server.StartTLS()
	t.Cleanup(server.Close)
	proxy := newFrozen(t, server.Listener.Addr().String())
	client, err := New(Config{
		NodeName: nodeName, Recorder: record.NewFakeRecorder(1),
		REST: &rest.Config{Host: "https://" + proxy.Addr().String(), TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1},
	})
	if err != nil {
		t.Fatal(err)
	}
	list := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := client.Pods(ctx)
		return err
	}
	for range 3 {
		must.Do(t, list(time.Minute))
	}
	if n := proxy.freeze(); n != 1 {
		t.Fatalf("%d connections, want one for all requests", n)
	}
	if err := list(200 * time.Millisecond); err == nil {
		t.Fatal("the request over the dead connection succeeded")
	}
	if err := list(time.Minute); err != nil {
		t.Errorf("the request after the failure: %v, want a response over a new connection", err)
	}
	if n := proxy.opened(); n != 2 {
		t.Errorf("%d connections were opened, want one more", n)
	}
}

// If an address accepts a connection but does not respond, the next attempt begins with another
// address.
func TestAttemptsBeginWithAnotherAddress(t *testing.T) {
	listener := must.Get(net.Listen("tcp", "localhost:0"))(t)
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for attempt := range 4 {
		d := newDialer(attempt)
		conn, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort("localhost", port))
		must.True(t, err == nil, "attempt %d: %v", attempt, err)
		d.CloseAll()
		if _, err := conn.Write([]byte("x")); err == nil {
			t.Error("the connection is still open")
		}
	}
}
