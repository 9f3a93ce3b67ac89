// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/testing/is"
)

// TestJudgePreemption removes pods whose budget allows one disruption.
func TestJudgePreemption(t *testing.T) {
	call := func(user, pod string, deleted bool) Call {
		if deleted {
			return Call{User: user, Verb: "delete", Namespace: "shop", Name: pod, Code: 200}
		}
		return Call{User: user, Subresource: "eviction", Namespace: "shop", Name: pod, UID: types.UID(pod), Code: 201}
	}
	evicted := func(pod string) Call { return call("scheduler", pod, false) }
	deleted := func(pod string) Call { return call("scheduler", pod, true) }
	before := []corev1.Pod{newPod("web-1"), newPod("web-2"), newPod("web-3"), newPod("free-1")}
	for name, test := range map[string]struct {
		calls    []Call
		priority int32
		// counted is set if the status of the budget lists web-1 as a disrupted pod.
		counted bool
		// evicted, deleted and below are the expected Evicted, Deleted and DeletedBelow.
		evicted, deleted, below int
		want                    []string
	}{
		"an eviction within the budget": {calls: []Call{evicted("web-1")}, evicted: 1},
		"evictions past the budget": {
			calls: []Call{evicted("web-1"), evicted("web-2")}, evicted: 2,
			want: []string{"the eviction of pod web-2 left 1 healthy pods of budget shop/web, 2 are needed"},
		},
		"evictions past the budget, of pods that the kubelet has deleted": {
			calls: []Call{
				evicted("web-1"), call("kubelet", "web-1", true), evicted("web-2"), call("kubelet", "web-2", true),
			},
			evicted: 2, want: []string{"the eviction of pod web-2 left 1 healthy pods of budget shop/web, 2 are needed"},
		},
		"an eviction of which the API could not know that it was past the budget": {
			calls: []Call{deleted("web-1"), evicted("web-2")}, priority: 1000, evicted: 1,
		},
		"a deletion past the budget, for an important pod": {
			calls: []Call{evicted("web-1"), deleted("web-2")}, priority: 1000, evicted: 1, deleted: 1,
		},
		"a deletion past the budget, for another pod": {
			calls: []Call{evicted("web-1"), deleted("web-2")}, priority: 999, evicted: 1, deleted: 1, below: 1,
			want: []string{"the guarded pod web-2 was deleted for a pod of priority 999"},
		},
		"a deletion within the budget, for another pod": {
			calls: []Call{deleted("web-1")}, want: []string{"the guarded pod web-1 was deleted for a pod of priority 0"},
		},
		"a deletion after an eviction that was cut off": {calls: []Call{deleted("web-1")}, counted: true},
		"a deletion of a pod without a budget":          {calls: []Call{deleted("free-1")}},
		"a deletion by a user":                          {calls: []Call{call("alice", "web-1", true)}},
		"an eviction without the UID": {
			calls:   []Call{{User: "scheduler", Subresource: "eviction", Namespace: "shop", Name: "web-1", Code: 201}},
			evicted: 1, want: []string{"without its UID"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			budget := newPDB(intstr.FromInt32(1))
			var events []event
			for _, c := range test.calls {
				events = append(events, event{watch.Deleted, newPod(c.Name)})
			}
			log := played(before, events, &budget)
			if test.counted {
				counting := newPDB(intstr.FromInt32(1))
				counting.Status = policyv1.PodDisruptionBudgetStatus{DisruptedPods: map[string]metav1.Time{"web-1": {}}}
				log.Observations = append(log.Observations, observe(dawn, watch.Modified, &counting))
			}
			log.Calls = test.calls
			got := JudgePreemption(log, Scheduler{
				User: "scheduler", Threshold: 1000, PriorityFor: func(string) int32 { return test.priority },
			})
			is.Slices(t, []int{got.Evicted, got.Deleted, got.DeletedBelow},
				[]int{test.evicted, test.deleted, test.below}, "evicted, deleted and below")
			expect(t, got.Found, test.want...)
		})
	}
}
