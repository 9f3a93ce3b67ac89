// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestDecideCost(t *testing.T) {
	surging := func(mods ...func(*maintenancev1alpha1.Evacuation)) *maintenancev1alpha1.Evacuation {
		class := maintenancev1alpha1.EvacuatorClassDeployment
		e := newEvacuation(withEvacuators(class), active(class))
		return build.With(e, mods...)
	}
	completed := withStatus(func(st *maintenancev1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true })
	lowered := annotated(map[string]string{costKey: lowest, originalKey: "7"})
	for name, tt := range map[string]struct {
		evacuation *maintenancev1alpha1.Evacuation
		pod        *corev1.Pod
		at         time.Duration
		want       bool
		wake       time.Duration
	}{
		"a pod that has waited for ten seconds": {
			evacuation: surging(), pod: newPod(ofReplicaSet), at: 10 * time.Second, want: true, wake: 0,
		},
		"a pod that has waited for less": {
			evacuation: surging(), pod: newPod(ofReplicaSet), at: 9 * time.Second, wake: 10 * time.Second,
		},
		"reports of the evacuator do not count": {
			evacuation: surging(reported(9*time.Second, "x")), pod: newPod(ofReplicaSet), at: 10 * time.Second,
			want: true, wake: 0,
		},
		"a pod without a ReplicaSet": {evacuation: surging(), pod: newPod(), at: time.Minute, wake: 0},
		"a pod whose deletion cost is lowered already": {
			evacuation: surging(), pod: newPod(ofReplicaSet, lowered), at: time.Minute, wake: 0,
		},
		"a terminating pod": {
			evacuation: surging(), pod: newPod(ofReplicaSet, terminatingUntil(time.Hour)), at: time.Minute, wake: 0,
		},
		"a pod that waits for the eviction": {
			evacuation: newEvacuation(active(evict)), pod: newPod(ofReplicaSet), at: time.Minute, wake: 0,
		},
		"a pod with another evacuator": {
			evacuation: newEvacuation(withEvacuators(classA), active(classA)), pod: newPod(ofReplicaSet),
			at: time.Minute, wake: 0,
		},
		"a pod that the evacuator has declined": {
			evacuation: surging(completed), pod: newPod(ofReplicaSet), at: time.Minute, wake: 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := decision{status: *tt.evacuation.Status.DeepCopy()}
			d.decideCost(situation{now: start.Add(tt.at), evacuation: tt.evacuation, pod: tt.pod})
			is.Equal(t, d.lowerCost, tt.want, "lowerCost")
			if wake := d.wake.Sub(start); !d.wake.IsZero() && wake != tt.wake || d.wake.IsZero() && tt.wake != 0 {
				t.Errorf("got the requeue after %s, want %s", wake, tt.wake)
			}
		})
	}
}

func TestDeletionCostIsLoweredDuringASurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		surge := maintenancev1alpha1.EvacuatorClassDeployment
		original := map[string]string{costKey: "7"}
		w := newWorld(t, 0, newEvacuation(withEvacuators(surge), active(surge)),
			newPod(ofReplicaSet, annotated(original)), newNode(corev1.ConditionTrue))
		w.untilAnnotations(time.Second, map[string]string{costKey: lowest, originalKey: "7"})
		if waited := w.clock.Since(start); waited < deletioncost.LowerAfter {
			t.Errorf("the deletion cost was lowered after %s, want not before %s", waited, deletioncost.LowerAfter)
		}
		if w.host.sent() != 0 {
			t.Errorf("got %d evictions, want none while the evacuator is active", w.host.sent())
		}
		w.api.edit(t, w.target, withFinalizers())
		w.untilAnnotations(0, original)
	})
}

func TestDeletionCostsAreLoweredOneAfterAnother(t *testing.T) {
	var p pace
	pod := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: name} }
	for i, want := range []time.Duration{0, deletioncost.LowerEvery, 2 * deletioncost.LowerEvery} {
		if got, ok := p.delay(pod(string(rune('a'+i))), start); !ok || got != want {
			t.Errorf("pod %d: got delay %s, %t, want %s", i, got, ok, want)
		}
	}
	if _, ok := p.delay(pod("a"), start); ok {
		t.Error("got a second delay for a pod that is scheduled already")
	}
	p.done(pod("a"))
	if got, ok := p.delay(pod("a"), start.Add(time.Minute)); !ok || got != 0 {
		t.Errorf("got delay %s, %t, want no delay a minute after the last write", got, ok)
	}
}
