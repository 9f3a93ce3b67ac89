// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	clocktesting "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestRequests(t *testing.T) {
	pod := &Pod{Namespace: "shop", Name: "web", UID: "1", Node: "one"}
	key := types.NamespacedName{Namespace: "shop", Name: protocol.CanonicalName("web", "1")}
	// answering returns a function that makes a request whose send returns answer. Before that,
	// send calls the functions in during.
	answering := func(answer error, during ...func()) func(*Requests) {
		return func(r *Requests) {
			_ = r.Do(pod, func() error {
				for _, look := range during {
					look()
				}
				return answer
			})
		}
	}
	terminating := apierrors.NewForbidden(corev1.Resource("evacuations"), "web", nil)
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	no := errors.New("no")
	for name, test := range map[string]struct {
		happens []func(*Requests)
		// pending: an Evacuation is requested on the node. recent: the request was made within the
		// last RequestPatience and has not failed.
		pending, recent bool
		failures        int
		ended           int
	}{
		"no request was made":                                         {},
		"the request was answered":                                    {happens: []func(*Requests){answering(nil)}, pending: true, recent: true},
		"the Evacuation is in the cache":                              {happens: []func(*Requests){answering(nil), func(r *Requests) { r.Forget("1") }}},
		"the request failed":                                          {happens: []func(*Requests){answering(no)}, pending: true, failures: 1},
		"another pod was deleted":                                     {happens: []func(*Requests){answering(nil), func(r *Requests) { r.Forget("2") }}, pending: true, recent: true},
		"the namespace is being deleted, and the request is repeated": {happens: []func(*Requests){answering(terminating), answering(nil)}},
		"the request failed twice, and is repeated":                   {happens: []func(*Requests){answering(no), answering(no), answering(nil)}, pending: true, failures: 2},
		"the server stops":                                            {happens: []func(*Requests){answering(InconclusiveError{no})}, pending: true, recent: true},
		"the request is not sent":                                     {happens: []func(*Requests){answering(ErrNotRequested)}, ended: 1},
		"the Evacuation does not exist":                               {happens: []func(*Requests){answering(nil), func(r *Requests) { r.End("one", "1") }}, ended: 1},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
			ended := 0
			r := newRequests(clock, func(node string) { ended++ })
			for _, happens := range test.happens {
				happens(r)
			}
			_, found := r.For(key)
			is.Equal(t, found, test.pending, "pending")
			is.Equal(t, len(r.On("two")), 0, "requests on another node")
			last := r.Of("1")
			is.Equal(t, last.IsRecent(clock.Now()), test.recent, "recent")
			is.Equal(t, last.Failures, test.failures, "failures")
			is.Equal(t, ended, test.ended, "ended")
			is.True(t, !last.Unanswered && !last.IsRecent(clock.Now().Add(RequestPatience)), "got %+v", last)
		})
	}
	t.Run("the request has no answer yet", func(t *testing.T) {
		r := newRequests(clocktesting.NewFakePassiveClock(time.Time{}), nil)
		answering(nil, func() {
			if request, found := r.For(key); !found || !request.Unanswered || len(r.On("one")) != 1 {
				t.Errorf("got %+v, want a request under way", request)
			}
		})(r)
	})
}

func TestTextOf(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"no error":                  {nil, ""},
		"one error":                 {a, "a"},
		"several errors are sorted": {errors.Join(b, a), "a and 1 more errors"},
		"an aggregate of several errors": {
			utilerrors.NewAggregate([]error{errors.Join(b, a), fmt.Errorf("c: %w", a)}), "a and 2 more errors",
		},
		"an error with several lines": {
			errors.New("admission webhook \"kyverno\" denied the request: \n\npolicy Pod/a:\n  rule: no"),
			`admission webhook "kyverno" denied the request: policy Pod/a: rule: no`,
		},
		"an error that wraps another one": {fmt.Errorf("read: %w", a), "read: a"},
		"an error that is longer than maxText": {
			errors.New(strings.Repeat("x", 2*maxText)), strings.Repeat("x", maxText-len("…")) + "…",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := TextOf(test.err); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
