// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

// dialTimeout limits an attempt to connect to one address.
const dialTimeout = 2 * time.Second

// ask sends a request for a shutdown. After a failure, it uses a new connection: client-go sends
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
	dialer := newDialer(c.shared.attempts)
	c.shared.mu.Unlock()
	config.Dial = dialer.DialContext
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, err
	}
	copied := *c
	return &copied, dialer.CloseAll, copied.useConnection(config, httpClient)
}

// newDialer returns a dialer for one attempt. Each attempt begins with the next address of the
// server's name: otherwise the agent could always reach the one API server that accepts connections
// but does not respond.
func newDialer(attempt int) *connrotation.Dialer {
	return connrotation.NewDialer(func(ctx context.Context, network, address string) (net.Conn, error) {
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
			ip := addresses[(attempt+i)%len(addresses)]
			conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, net.JoinHostPort(ip, port))
			if err == nil {
				return conn, nil
			}
			errs = append(errs, err)
		}
		return nil, errors.Join(errs...)
	})
}

// warningKey is the key of the warning that no controller is active, in the context of a request.
type warningKey struct{}

// warning has the text of the warning that no controller is active, "" if there is no warning.
type warning struct{ text string }

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
	if w, ok := ctx.Value(warningKey{}).(*warning); ok {
		if strings.HasPrefix(text, protocol.NoLeaderWarning) {
			w.text = text
		}
		return
	}
	if h.next != nil {
		h.next.HandleWarningHeaderWithContext(ctx, code, agent, text)
	}
}

// withWarning returns a context in which HandleWarningHeaderWithContext stores the warning of a
// request.
func withWarning(ctx context.Context) (context.Context, *warning) {
	w := &warning{}
	return context.WithValue(ctx, warningKey{}, w), w
}

// noLeader returns an error if the server warned that no controller is active.
func (w *warning) noLeader() error {
	if w.text == "" {
		return nil
	}
	return fmt.Errorf("the server warns: %s", w.text)
}
