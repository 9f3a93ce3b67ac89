// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"haulout.dev/haulout/pkg/apiserver"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// slowly is a host cluster that begins or completes its responses late.
type slowly struct{ answers, ends time.Duration }

func (s slowly) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	case <-time.After(s.answers):
		return &http.Response{StatusCode: http.StatusOK, Body: &slowBody{r.Context(), s.ends}}, nil
	}
}

type slowBody struct {
	ctx  context.Context
	ends time.Duration
}

func (b *slowBody) Read([]byte) (int, error) {
	select {
	case <-b.ctx.Done():
		return 0, context.Cause(b.ctx)
	case <-time.After(b.ends):
		return 0, io.EOF
	}
}

func (b *slowBody) Close() error { return nil }

func TestCallsAreCutWhenLeadershipIsOver(t *testing.T) {
	const grace = 4 * time.Second
	lost := errors.New("lost")
	for name, tc := range map[string]struct {
		host slowly
		// ends is the time from the call to the end of leadership; took is the duration of the
		// call.
		ends, took time.Duration
		cause      error
		cut        bool
	}{
		"a call that ends before is not cancelled": {host: slowly{answers: time.Second}, ends: time.Minute, took: time.Second},
		"a call that ends soon after is not cancelled": {
			host: slowly{answers: 4 * time.Second}, ends: time.Second, took: 4 * time.Second,
		},
		"a call without a response is cancelled": {
			host: slowly{answers: time.Hour}, ends: time.Second, took: time.Second + grace, cut: true,
		},
		"a call whose response does not end is cancelled": {
			host: slowly{ends: time.Hour}, ends: time.Second, took: time.Second + grace, cut: true,
		},
		"a call that begins afterwards is cancelled, too": {host: slowly{answers: time.Hour}, took: grace, cut: true},
		"a call is cancelled immediately when another replica may act": {
			host: slowly{answers: time.Hour}, ends: time.Second, took: time.Second, cause: apiserver.ErrLeaseLost, cut: true,
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			leading, end := context.WithCancelCause(t.Context())
			lost := lost
			if tc.cause != nil {
				lost = tc.cause
			}
			began := time.Now()
			if tc.ends == 0 {
				end(lost)
			}
			time.AfterFunc(tc.ends, func() { end(lost) })
			transport := &cutTransport{next: tc.host, until: leading, grace: grace, mayAct: func(time.Duration) error { return nil }}
			// The context of the call outlives leadership, like that of an eviction.
			req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, "https://example.com/",
				http.NoBody))(t)
			resp, err := transport.RoundTrip(req)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			if took := time.Since(began); took != tc.took || errors.Is(err, lost) != tc.cut {
				t.Errorf("took %v and got %v, want %v, cut: %v", took, err, tc.took, tc.cut)
			}
			synctest.Wait()
			end(lost)
		})
	}
}

// TestNothingIsSentWithoutTheLease has a replica that has lost the Lease while the context of its
// controllers has not ended yet.
func TestNothingIsSentWithoutTheLease(t *testing.T) {
	var calls atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	lost := errors.New("the lease is lost")
	clients := must.Get((&hostCluster{config: config}).leaderClients(t.Context(), config, time.Second, func(time.Duration) error { return lost }))(t)
	for name, send := range map[string]func() error{
		"host": func() error {
			return clients.Client.CoreV1().Pods("ns").Delete(t.Context(), "pod", metav1.DeleteOptions{})
		},
		"evictions": func() error {
			return clients.Unlimited.CoreV1().Pods("ns").Delete(t.Context(), "pod", metav1.DeleteOptions{})
		},
		"own": func() error {
			return clients.Maintenance.MaintenanceV1alpha1().Evacuations("ns").Delete(t.Context(), "pod", metav1.DeleteOptions{})
		},
	} {
		if err := send(); !errors.Is(err, lost) {
			t.Errorf("%s: got error %v, want %v", name, err, lost)
		}
	}
	is.Equal(t, calls.Load(), 0, "calls")
}

// TestSuspendedLeaderSendsNothing has a process that is suspended after it has checked the Lease
// for a request, and before it sends the request on a connection that is new or open.
func TestSuspendedLeaderSendsNothing(t *testing.T) {
	for name, opened := range map[string]bool{"a new connection": false, "an open connection": true} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodDelete {
					calls.Add(1)
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, "{}")
			}))
			server.EnableHTTP2 = true
			server.StartTLS()
			defer server.Close()
			config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
			var suspended atomic.Bool
			clients := must.Get((&hostCluster{config: config}).leaderClients(t.Context(), config, time.Second,
				func(grace time.Duration) error {
					if grace > 0 && suspended.Load() {
						return errors.New("the lease is too old")
					}
					return nil
				}))(t)
			pods := clients.Unlimited.CoreV1().Pods("ns")
			if opened {
				must.Get(pods.Get(t.Context(), "pod", metav1.GetOptions{}))(t)
				must.Do(t, pods.Delete(t.Context(), "pod", metav1.DeleteOptions{}))
				is.Equal(t, calls.Swap(0), 1, "deletions before")
			}
			suspended.Store(true)
			if err := pods.Delete(t.Context(), "pod", metav1.DeleteOptions{}); err == nil {
				t.Error("got no error of a request after the process was suspended")
			}
			is.Equal(t, calls.Load(), 0, "deletions")
		})
	}
}

// TestLeaseHasItsOwnConnection checks that renewals do not share the connection or the rate limiter
// of evictions.
func TestLeaseHasItsOwnConnection(t *testing.T) {
	var opened atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
	}))
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	host := &hostCluster{config: &rest.Config{
		Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		// The shared rate limiter allows no request at all.
		RateLimiter: flowcontrol.NewFakeNeverRateLimiter(),
	}}
	leases := must.Get(host.leaseClient())(t)
	clients := must.Get(host.leaderClients(t.Context(), host.config, time.Second, func(time.Duration) error { return nil }))(t)
	for range 3 {
		must.Get(leases.Leases("ns").Get(t.Context(), "lease", metav1.GetOptions{}))(t)
		must.Get(clients.Unlimited.CoreV1().Pods("ns").Get(t.Context(), "pod", metav1.GetOptions{}))(t)
	}
	if got := opened.Load(); got != 2 {
		t.Errorf("the two clients have opened %d connections, want 2", got)
	}
}
