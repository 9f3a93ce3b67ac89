// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

// dialTimeout limits an attempt to connect to one address.
const dialTimeout = 2 * time.Second

// ask makes a request for a shutdown. After a failure, it uses a new connection: client-go sends
// all requests of a process over one connection, and if that connection is dead but not closed, all
// requests fail while the API works.
func ask[T any](ctx context.Context, c *Client, request func(ctx context.Context, c *Client) (T, error)) (T, error) {
	c.shared.mu.Lock()
	failed := c.shared.failed
	c.shared.mu.Unlock()
	if failed {
		own, closeAll, err := c.reconnect()
		if err != nil {
			var none T
			return none, err
		}
		defer closeAll()
		c = own
	}
	result, err := request(ctx, c)
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	c.shared.failed = err != nil && !errors.Is(err, shutdown.ErrRefused)
	return result, err
}

// reconnect returns a copy of the client with its own connections, and a function that closes them.
func (c *Client) reconnect() (own *Client, closeAll func(), err error) {
	config := rest.CopyConfig(c.shared.rest)
	// Load the files: the transport of a configuration with file names starts a goroutine that
	// never ends.
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, nil, err
	}
	config.CAFile, config.CertFile, config.KeyFile = "", "", ""
	// Disable sharing: HTTP/2 would share the connection, and without its own proxy function a
	// configuration would share the transport.
	if len(config.CAData) > 0 || len(config.CertData) > 0 || config.Insecure || strings.HasPrefix(config.Host, "https:") {
		config.NextProtos = []string{"http/1.1"}
	}
	if config.Proxy == nil {
		config.Proxy = http.ProxyFromEnvironment
	}
	c.shared.mu.Lock()
	c.shared.attempts++
	dialer := &ownDialer{attempt: c.shared.attempts}
	c.shared.mu.Unlock()
	config.Dial = dialer.dial
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, err
	}
	copied := *c
	return &copied, dialer.closeAll, copied.useConnection(config, httpClient)
}

// ownDialer opens connections and closes them. Each attempt begins with the next address of the
// server's name: one of several API servers may accept connections without answering.
type ownDialer struct {
	attempt int

	mu    sync.Mutex
	conns []net.Conn
}

func (d *ownDialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	addresses, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i := range addresses {
		ip := addresses[(d.attempt+i)%len(addresses)]
		conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, net.JoinHostPort(ip, port))
		if err == nil {
			d.mu.Lock()
			d.conns = append(d.conns, conn)
			d.mu.Unlock()
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (d *ownDialer) closeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range d.conns {
		_ = conn.Close()
	}
}

// warningKey is the key of the warnings of one request in its context.
type warningKey struct{}

// warnings collects the warnings in the responses to one request.
type warnings struct {
	mu   sync.Mutex
	list []string
}

// listening returns a configuration whose clients pass the warnings of the API to the context of
// the request.
func listening(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.WarningHandler, config.WarningHandlerWithContext = nil, warningHandler{next: config.WarningHandlerWithContext}
	return config
}

type warningHandler struct {
	next rest.WarningHandlerWithContext
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (h warningHandler) HandleWarningHeaderWithContext(ctx context.Context, code int, agent, text string) {
	if w, ok := ctx.Value(warningKey{}).(*warnings); ok {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.list = append(w.list, text)
		return
	}
	if h.next != nil {
		h.next.HandleWarningHeaderWithContext(ctx, code, agent, text)
	}
}

// withWarnings returns a context that collects the warnings of its requests.
func withWarnings(ctx context.Context) (context.Context, *warnings) {
	w := &warnings{}
	return context.WithValue(ctx, warningKey{}, w), w
}

// noLeader returns an error if the server warned that no controller is active.
func (w *warnings) noLeader() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.list, func(text string) bool { return strings.HasPrefix(text, protocol.NoLeaderWarning) })
	if i < 0 {
		return nil
	}
	return fmt.Errorf("the server warns: %s", w.list[i])
}
