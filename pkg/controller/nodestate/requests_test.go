/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodestate

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

func TestRequests(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"},
		Spec:       corev1.PodSpec{NodeName: "one"},
	}
	key := types.NamespacedName{Namespace: "shop", Name: protocol.CanonicalName("web", "1")}
	for name, test := range map[string]struct {
		happens func(*Requests)
		// pending: a node waits for the request. recent: it was made a moment ago and has not
		// failed. unanswered: it is under way.
		pending, recent, unanswered bool
		failure                     string
	}{
		"none was made": {happens: func(*Requests) {}},
		"it is under way": {
			happens:    func(r *Requests) { r.Remember(pod) },
			pending:    true,
			recent:     true,
			unanswered: true,
		},
		"it was answered": {
			happens: func(r *Requests) { r.Remember(pod); r.Answered("1") },
			pending: true,
			recent:  true,
		},
		"the cache shows it": {happens: func(r *Requests) { r.Remember(pod); r.Answered("1"); r.Forget("1") }},
		"it failed once": {
			happens:    func(r *Requests) { r.Remember(pod); r.Failed("1", errors.New("no")) },
			pending:    true,
			unanswered: true,
		},
		"another pod is gone": {
			happens:    func(r *Requests) { r.Remember(pod); r.Forget("2") },
			pending:    true,
			recent:     true,
			unanswered: true,
		},
		"its namespace is being deleted, also when it is made again": {happens: func(r *Requests) {
			r.Remember(pod)
			r.Refuse("1")
			r.Remember(pod)
		}, unanswered: true},
		"it failed twice, and is made again": {happens: func(r *Requests) {
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
				t.Errorf("pending are %v", got)
			}
			if request, found := r.Of(key); found != test.pending || request.Unanswered != test.unanswered || found && request.Node != "one" {
				t.Errorf("the request is %+v, %t", request, found)
			}
			if got := r.AnyRecent("one"); got != test.recent {
				t.Errorf("recent is %t", got)
			}
			if got := r.Failure("1"); got != test.failure {
				t.Errorf("the failure is %q, want %q", got, test.failure)
			}
			clock.SetTime(clock.Now().Add(RequestPatience))
			if r.AnyRecent("one") {
				t.Error("it counts as recent for ever")
			}
			if got := r.On("one"); (len(got) == 1) != test.pending {
				t.Errorf("after a while %v are pending: only an answer ends a request", got)
			}
		})
	}
}
