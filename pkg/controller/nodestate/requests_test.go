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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	clocktesting "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestRequests(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"}, Spec: corev1.PodSpec{NodeName: "one"},
	}
	key := types.NamespacedName{Namespace: "shop", Name: protocol.CanonicalName("web", "1")}
	for name, test := range map[string]struct {
		happens func(*Requests)
		// pending: a node waits for the request. recent: the request was made within the last
		// RequestPatience and has not failed. unanswered: the request has no answer yet.
		pending, recent, unanswered bool
		failure                     string
	}{
		"no request was made": {happens: func(*Requests) {}},
		"the request has no answer yet": {
			happens: func(r *Requests) { r.Remember(pod) }, pending: true, recent: true, unanswered: true,
		},
		"the request was answered": {
			happens: func(r *Requests) { r.Remember(pod); r.Answered("1") }, pending: true, recent: true,
		},
		"the cache shows the Evacuation": {
			happens: func(r *Requests) { r.Remember(pod); r.Answered("1"); r.Forget("1") },
		},
		"the request failed once": {
			happens: func(r *Requests) { r.Remember(pod); r.Failed("1", errors.New("no")) }, pending: true,
			unanswered: true,
		},
		"another pod was deleted": {
			happens: func(r *Requests) { r.Remember(pod); r.Forget("2") }, pending: true, recent: true,
			unanswered: true,
		},
		"the namespace is being deleted, and the request is repeated": {happens: func(r *Requests) {
			r.Remember(pod)
			r.Refuse("1")
			r.Remember(pod)
		}, unanswered: true},
		"the request failed twice, and is repeated": {happens: func(r *Requests) {
			r.Remember(pod)
			r.Failed("1", errors.New("no"))
			r.Failed("1", errors.New("still no"))
			r.Remember(pod)
			r.Answered("1")
		}, pending: true, failure: "still no"},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
			r := newRequests(clock)
			test.happens(r)
			if got := r.On("one"); (len(got) == 1 && got[0] == key) != test.pending || len(r.On("two")) > 0 {
				t.Errorf("got pending requests %v, want pending %t", got, test.pending)
			}
			request, found := r.Of(key)
			if found != test.pending || request.Unanswered != test.unanswered || found && request.Node != "one" {
				t.Errorf("got request %+v, found %t, want found %t, unanswered %t",
					request, found, test.pending, test.unanswered)
			}
			is.Equal(t, r.AnyRecent("one"), test.recent, "recent")
			is.Equal(t, r.Failure("1"), test.failure, "failure")
			clock.SetTime(clock.Now().Add(RequestPatience))
			is.True(t, !r.AnyRecent("one"), "the request still counts as recent after %s", RequestPatience)
			if got := r.On("one"); (len(got) == 1) != test.pending {
				t.Errorf("got pending requests %v after %s, want pending %t", got, RequestPatience, test.pending)
			}
		})
	}
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
