// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apiserver"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/pkg/host"
)

// apiServiceName is the name of the APIService that registers our API with the host cluster.
var apiServiceName = v1alpha1.SchemeGroupVersion.Version + "." + v1alpha1.GroupName

const (
	// leaseQPS and leaseBurst allow one request in each --leader-elect-retry-period, and a few more
	// when the holder changes.
	leaseQPS, leaseBurst = 10, 20

	dialTimeout, keepAlive = 5 * time.Second, 10 * time.Second
)

// leaseClient returns a client for the Lease with its own connection and rate limiter: renewals
// must not wait for hundreds of evictions, and must not use the same connection.
func (h *hostCluster) leaseClient() (coordinationclient.LeasesGetter, error) {
	c := rest.CopyConfig(h.config)
	c.QPS, c.Burst, c.RateLimiter = leaseQPS, leaseBurst, nil
	// client-go shares connections between configurations with the same dialer.
	c.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	return coordinationclient.NewForConfig(c)
}

// registeredService returns a function that reads the Service in our APIService. The function
// returns the zero value if there is no APIService.
func (h *hostCluster) registeredService() (func(context.Context) (types.NamespacedName, error), error) {
	agg, err := aggregator.NewForConfig(h.jsonConfig())
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (types.NamespacedName, error) {
		registered, err := agg.ApiregistrationV1().APIServices().Get(ctx, apiServiceName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return types.NamespacedName{}, nil
		}
		if err != nil || registered.Spec.Service == nil {
			return types.NamespacedName{}, err
		}
		return types.NamespacedName{Namespace: registered.Spec.Service.Namespace, Name: registered.Spec.Service.Name}, nil
	}, nil
}

// leaderClients returns clients that send no requests while mayAct returns an error, and whose
// calls are cancelled after the grace period when the context has ended. All these clients share
// the rate limiter of the process. loopback is the configuration of clients of this server.
func (h *hostCluster) leaderClients(ctx context.Context, loopback *rest.Config, grace time.Duration,
	mayAct func(grace time.Duration) error) (c host.Clients, err error) {
	wrap := func(config *rest.Config) *rest.Config {
		config = rest.CopyConfig(config)
		config.Dial = (&leaderDialer{grace: grace, mayAct: mayAct}).dial
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return &cutTransport{next: next, until: ctx, grace: grace, mayAct: mayAct}
		})
		return config
	}
	config := wrap(h.config)
	// Two clients with the same HTTP client share its connection.
	connection, err := rest.HTTPClientFor(config)
	if err != nil {
		return c, err
	}
	if c.Client, err = kubernetes.NewForConfigAndClient(config, connection); err != nil {
		return c, err
	}
	config.QPS, config.Burst, config.RateLimiter = -1, 0, nil
	if c.Unlimited, err = kubernetes.NewForConfigAndClient(config, connection); err != nil {
		return c, err
	}
	c.Maintenance, err = clientset.NewForConfig(wrap(loopback))
	return c, err
}

// leaderDialer opens connections that send nothing once mayAct returns an error for the grace
// period. A process can be suspended after cutTransport has let a request pass and before the
// request is sent. The connection therefore asks again right before each write.
type leaderDialer struct {
	grace  time.Duration
	mayAct func(grace time.Duration) error
}

func (d *leaderDialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &leaderConn{Conn: conn, leaderDialer: d}, nil
}

type leaderConn struct {
	net.Conn
	*leaderDialer
}

// Write implements net.Conn.
func (c *leaderConn) Write(b []byte) (int, error) {
	if err := c.mayAct(c.grace); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// cutTransport sends no request while mayAct returns an error. It cancels all requests, regardless
// of their own contexts, after a grace period when the context of the term has ended; immediately
// if the cause is apiserver.ErrLeaseLost. A replica that has lost its Lease must not act at the
// same time as the new leader.
type cutTransport struct {
	next   http.RoundTripper
	until  context.Context
	grace  time.Duration
	mayAct func(grace time.Duration) error
}

// RoundTrip implements http.RoundTripper.
func (t *cutTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	// The rate limiter comes before this transport: a request that passes this check is sent
	// immediately.
	if err := t.mayAct(0); err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(t.until, func() {
		grace := t.grace
		if errors.Is(context.Cause(t.until), apiserver.ErrLeaseLost) {
			grace = 0 // another replica may already act
		}
		timer := time.AfterFunc(grace, func() { cancel(context.Cause(t.until)) })
		context.AfterFunc(ctx, func() { timer.Stop() })
	})
	done := sync.OnceFunc(func() {
		stop()
		cancel(nil)
	})
	resp, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		done()
		return nil, err
	}
	resp.Body = &closingBody{ReadCloser: resp.Body, closed: done}
	return resp, nil
}

// WrappedRoundTripper returns the underlying transport to client-go.
func (t *cutTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// closingBody calls a function when it is closed.
type closingBody struct {
	io.ReadCloser
	closed func()
}

// Close implements io.Closer.
func (b *closingBody) Close() error {
	defer b.closed()
	return b.ReadCloser.Close()
}
