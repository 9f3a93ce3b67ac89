// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// lets sets the behavior of the first entry of the plan. A wait ends some seconds after a time.
func lets(behavior v1alpha1.DrainBehavior, since time.Time, waitSeconds int32) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.DrainPlan[0].Behavior, nm.Spec.DrainPlan[0].WaitSeconds = &behavior, &waitSeconds
		nm.Status.StageStatuses = []v1alpha1.StageStatus{
			{Name: v1alpha1.NodeMaintenanceStageDrain, StartTimestamp: &metav1.Time{Time: since}},
		}
	}
}

func TestPodsThatNoPlanDrains(t *testing.T) {
	const wait, skip = v1alpha1.DrainBehaviorWaitCompleted, v1alpha1.DrainBehaviorSkip
	const refused = "pod shop/low-1 on node one was asked to leave, although no plan drains it: "
	asks := func(p *tape) { p.ask("low-1") }
	for name, test := range map[string]struct {
		behavior v1alpha1.DrainBehavior
		waits    int32
		play     func(p *tape)
		want     []string
	}{
		"a pod that may complete is asked": {behavior: wait, play: asks, want: []string{refused + "WaitCompleted"}},
		"a pod that is skipped is asked":   {behavior: skip, play: asks, want: []string{refused + "Skip"}},
		"a pod is asked before the end of its wait": {
			behavior: wait, waits: 3600, play: asks, want: []string{refused + "WaitCompleted"},
		},
		"a pod is asked after the end of its wait": {behavior: wait, waits: 1, play: asks},
		"another maintenance drains the pod": {behavior: wait, play: func(p *tape) {
			p.drain("b", "blue")
			p.ask("low-1")
		}},
		"another maintenance skips the pod": {
			behavior: wait, want: []string{refused + "WaitCompleted"},
			play: func(p *tape) {
				p.drain("b", "blue", lets(skip, p.now(), 0))
				p.ask("low-1")
			},
		},
		"another maintenance that drains the pod is paused": {
			behavior: wait, want: []string{refused + "WaitCompleted"},
			play: func(p *tape) {
				p.drain("b", "blue", func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Paused = true })
				p.ask("low-1")
			},
		},
		"the server learns a moment later that the other maintenance has ended": {behavior: wait, play: func(p *tape) {
			p.drain("b", "blue")
			p.complete("b")
			p.ask("low-1")
		}},
		"the other maintenance ended long before": {
			behavior: wait, want: []string{refused + "WaitCompleted"},
			play: func(p *tape) {
				p.drain("b", "blue")
				p.complete("b")
				p.host += 10
				p.ask("low-1")
			},
		},
		"the next wave does not wait for a skipped pod": {behavior: skip, play: func(p *tape) { p.ask("high-1") }},
		"the next wave waits for a pod that another maintenance drains": {
			behavior: skip, want: []string{"shop/high-1 on node one, in wave 2 of a, was asked to leave while shop/low-"},
			play: func(p *tape) {
				p.drain("b", "blue")
				p.ask("high-1")
			},
		},
		"the next wave waits for a pod that may complete": {
			behavior: wait, want: []string{"shop/high-1 on node one, in wave 2 of a, was asked to leave while shop/low-"},
			play: func(p *tape) { p.ask("high-1") },
		},
		"the pods have completed": {behavior: wait, play: func(p *tape) {
			p.end("low-1", "low-2")
			p.ask("high-1")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTape(t)
			begin(p)
			p.drain("a", "blue", lets(test.behavior, p.now(), test.waits))
			p.host += 5
			test.play(p)
			expect(t, outOfOrder(p.log), test.want...)
		})
	}
}
