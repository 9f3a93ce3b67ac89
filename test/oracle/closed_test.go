// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestSentToClosed(t *testing.T) {
	start := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	status := func(allowed int32, behind ...int64) watch.Event {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Generation: 1}}
		b.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, ObservedGeneration: 1}
		for _, generation := range behind {
			b.Generation = generation
		}
		return watch.Event{Type: watch.Modified, Object: b}
	}
	refused := func(seconds float64) Call {
		return Call{
			Verb: "create", Subresource: "eviction", Namespace: "shop", Name: "web-1", User: "haulout", Code: 429,
			RefusedBy: "web", Received: at(seconds),
		}
	}
	granted := refused(5)
	granted.Code, granted.RefusedBy = 201, ""
	for sentence, tc := range map[string]struct {
		events map[float64]watch.Event
		calls  []Call
		want   []string
		probes int
	}{
		"one that is sent while the budget is open, and lost a race": {
			events: map[float64]watch.Event{0: status(1)}, calls: []Call{refused(5)},
		},
		"one that is sent before a client could know": {
			events: map[float64]watch.Event{0: status(1), 5: status(0)}, calls: []Call{refused(5.1)},
		},
		"one that is sent to a closed budget": {
			events: map[float64]watch.Event{0: status(1), 5: status(0)}, calls: []Call{refused(6)},
			want: []string{"budget web had let no pod go for 1s"},
		},
		"one that is sent to a budget that is not up to date": {
			events: map[float64]watch.Event{0: status(1), 5: status(1, 2)}, calls: []Call{refused(6)},
			want: []string{"budget web had let no pod go for 1s"},
		},
		"a budget that never closed any more after it had opened": {
			events: map[float64]watch.Event{0: status(0), 5: status(1)}, calls: []Call{refused(6)},
		},
		"what passes although the budget is closed": {
			events: map[float64]watch.Event{0: status(0)}, calls: []Call{granted},
		},
		"probes": {
			events: map[float64]watch.Event{0: status(0)}, calls: []Call{refused(10), refused(16), refused(22)},
			probes: 3,
		},
		"probes are not in the log by time": {
			events: map[float64]watch.Event{0: status(0)}, calls: []Call{refused(16), refused(10)}, probes: 2,
		},
		"more of them than there may be": {
			events: map[float64]watch.Event{0: status(0)}, calls: []Call{refused(10), refused(12), refused(16)},
			want: []string{"for 12s"}, probes: 2,
		},
		"a budget that no client has seen": {calls: []Call{refused(10)}},
	} {
		t.Run(sentence, func(t *testing.T) {
			var b Budgets
			for _, second := range []float64{0, 5} {
				if event, ok := tc.events[second]; ok {
					b.See(event, at(second))
				}
			}
			found, probes := b.SentToClosed(tc.calls)
			expect(t, found, tc.want...)
			if probes != tc.probes {
				t.Errorf("%d probes, want %d", probes, tc.probes)
			}
		})
	}
}
