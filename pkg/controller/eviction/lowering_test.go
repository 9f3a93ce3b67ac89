// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

func ownedBy(apiVersion, kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = build.Owner(apiVersion, kind, "web", "uid-web")
	}
}

var ofReplicaSet = ownedBy("apps/v1", "ReplicaSet")

// closed is a world in which no pod can be evicted. The pods wait from now on.
func closed(t *testing.T, pods ...*corev1.Pod) *world {
	t.Helper()
	w := newWorld(t, worldConfig{pods: pods, answer: budgetRefuses}, newBudget("web", 0))
	for _, pod := range pods {
		w.add(pod.Name)
	}
	return w
}

func TestCostOfWaitingPodsIsLowered(t *testing.T) {
	lowered := func(p *corev1.Pod) {
		costs("-2147483647")(p)
		p.Annotations["maintenance.haulout.dev/original-pod-deletion-cost"] = "1000"
	}
	for name, tc := range map[string]struct {
		pods []*corev1.Pod
		want []string
	}{
		"in the order of the lane": {
			[]*corev1.Pod{
				newPod("old", ofReplicaSet), newPod("young", ofReplicaSet, younger(time.Minute)),
				newPod("cheap", ofReplicaSet, costs("-5")), newPod("broken", ofReplicaSet, costs("7"), notReady),
			},
			[]string{"broken", "cheap", "young", "old"},
		},
		"only of pods of a ReplicaSet": {
			[]*corev1.Pod{
				newPod("single"), newPod("stateful", ownedBy("apps/v1", "StatefulSet")),
				newPod("theirs", ownedBy("example.com/v1", "ReplicaSet")),
				newPod("odd", ownedBy("a/b/c", "ReplicaSet")), newPod("web", ofReplicaSet),
			},
			[]string{"web"},
		},
		"not again": {
			[]*corev1.Pod{newPod("before", ofReplicaSet, lowered), newPod("web", ofReplicaSet)}, []string{"web"},
		},
		"not of a malformed cost, which could not be restored": {
			[]*corev1.Pod{newPod("odd", ofReplicaSet, costs("low")), newPod("web", ofReplicaSet)}, []string{"web"},
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := closed(t, tc.pods...)
			w.pass(deletioncost.LowerAfter-time.Second, time.Second)
			if got := w.host.cheapened(); len(got) != 0 {
				t.Fatalf("got %v before the pods have waited for %s, want none", got, deletioncost.LowerAfter)
			}
			w.pass(deletioncost.LowerAfter, deletioncost.LowerEvery)
			is.Slices(t, w.host.cheapened(), tc.want)
		})
	}
}

func TestLoweringHasARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names, pods := podNames(50)
		for _, pod := range pods {
			ofReplicaSet(pod)
		}
		w := closed(t, pods...)
		w.pass(deletioncost.LowerAfter, time.Second)
		w.pass(2*time.Second, 10*time.Millisecond)
		if n, most := len(w.host.cheapened()), int(2*time.Second/deletioncost.LowerEvery)+1; n > most || n < most-2 {
			t.Errorf("got %d in two seconds, want up to %d", n, most)
		}
		w.until("all have been lowered", 10*time.Millisecond,
			func() bool { return len(w.host.cheapened()) == len(names) })
	})
}

func TestCostOfRemovedPodsIsNotLowered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := closed(t, newPod("stays", ofReplicaSet), newPod("leaves", ofReplicaSet))
		w.pass(deletioncost.LowerAfter/2, time.Second)
		w.queue.Remove(evacuationOf("leaves"))
		w.pass(deletioncost.LowerAfter, deletioncost.LowerEvery)
		if got, want := w.host.cheapened(), []string{"stays"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestLoweringIsRetriedAFewTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := closed(t, newPod("web-0", ofReplicaSet))
		w.host.refuseLower = errors.New("no")
		w.pass(20*deletioncost.LowerAfter, time.Second)
		is.Equal(t, len(w.host.cheapened()), lowerAttempts, "attempts")
	})
}

func TestLoweredPodsKeepTheirPlaceInTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dear := newPod("dear", ofReplicaSet, costs("-2147483647"))
		dear.Annotations["maintenance.haulout.dev/original-pod-deletion-cost"] = "1000"
		w := newWorld(t, worldConfig{answer: success},
			dear, newPod("cheap", ofReplicaSet, costs("-5")), newBudget("web", 0))
		w.add("dear", "cheap")
		w.settled()
		w.updateBudget(newBudget("web", 2))
		w.until("both were sent", 0, w.sentTo(2))
		if got, want := w.host.sent(), []string{"cheap/uid-cheap", "dear/uid-dear"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}
