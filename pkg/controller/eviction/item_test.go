// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestOrderWithinALane(t *testing.T) {
	tests := map[string]struct {
		pods []*corev1.Pod
		want []string
	}{
		"younger pods are evicted first": {
			[]*corev1.Pod{newPod("old"), newPod("young", younger(time.Minute)), newPod("older", younger(-time.Minute))},
			[]string{"young", "old", "older"},
		},
		"pods that are not ready are evicted before younger pods": {
			[]*corev1.Pod{newPod("young", younger(time.Minute)), newPod("broken", notReady)},
			[]string{"broken", "young"},
		},
		"pods with a lower deletion cost are evicted before younger pods": {
			[]*corev1.Pod{
				newPod("young", younger(time.Minute)), newPod("cheap", costs("-5")), newPod("dear", costs("100")),
				newPod("cheaper", costs("-50")),
			},
			[]string{"cheaper", "cheap", "young", "dear"},
		},
		"pods that are not ready are evicted before pods with a lower deletion cost": {
			[]*corev1.Pod{newPod("cheap", costs("-2147483648")), newPod("broken", notReady, costs("2147483647"))},
			[]string{"broken", "cheap"},
		},
		"younger pods are evicted first at the same cost": {
			[]*corev1.Pod{newPod("old", costs("7")), newPod("young", costs("7"), younger(time.Minute))},
			[]string{"young", "old"},
		},
		"a pod whose cost was lowered keeps its place": {
			[]*corev1.Pod{
				newPod("dear", costs("-2147483647"), func(p *corev1.Pod) { p.Annotations["maintenance.haulout.dev/original-pod-deletion-cost"] = "1000" }),
				newPod("cheap", costs("-5")),
			},
			[]string{"cheap", "dear"},
		},
		"a malformed cost counts as 0": {
			[]*corev1.Pod{newPod("old", costs("cheap")), newPod("young", younger(time.Minute)), newPod("dear", costs("1"))},
			[]string{"young", "old", "dear"},
		},
	}
	for name, tc := range tests {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, worldConfig{maxConcurrent: 1, pods: tc.pods, answer: success}, newBudget("web", 0))
			for _, pod := range tc.pods {
				w.add(pod.Name)
			}
			w.settled()
			w.updateBudget(newBudget("web", int32(len(tc.pods))))
			w.until("all were sent", 0, w.sentTo(len(tc.pods)))
			var want []string
			for _, pod := range tc.want {
				want = append(want, pod+"/uid-"+pod)
			}
			is.Slices(t, w.host.sent(), want)
		})
	}
}
