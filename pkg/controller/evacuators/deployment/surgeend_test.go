// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"strings"
	"testing"
	"time"
)

// TestSurgeEndsWithAvailablePods: with minReadySeconds, a surge ends when the pods that stay are
// available, after a drain whose pods are evicted as well as after one that is called off.
func TestSurgeEndsWithAvailablePods(t *testing.T) {
	for _, n := range []int{2, 4, 10} {
		for name, c := range drainCases(n) {
			if c.needsMore() {
				continue
			}
			for seed := range uint64(20) {
				c.seed, c.slowest, c.minReadySeconds = seed, 3, 30
				w := newDrainSimulation(t, c)
				calledOff := -1
				if seed%2 == 0 {
					calledOff = 20 + w.rng.IntN(160)
				}
				for j := range w.pods {
					w.pods[j].Pod = w.pods[j].DeepCopy()
					if calledOff < 0 {
						keepsCost(&w.pods[j])
					}
				}
				for i := range 900 {
					for j := range w.pods {
						if p := &w.pods[j]; i == calledOff && !p.isEvicting {
							p.evacuation, p.staysUp = nil, true
						}
					}
					w.dirty = w.dirty || i == calledOff
					w.now = w.now.Add(time.Second)
					w.kubelets()
					w.controllers()
					if calledOff < 0 {
						w.costs()
					}
					if available := w.availablePods(); available < n {
						t.Fatalf("%d pods, %s, seed %d, called off at %d: %d pods are available at %d: %s", n, name, seed, calledOff, available, i,
							strings.Join(w.log[max(0, len(w.log)-25):], "; "))
					}
				}
			}
		}
	}
}
