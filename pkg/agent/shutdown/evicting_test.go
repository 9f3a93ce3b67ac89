// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/testing/is"
)

// Haulout does not respond, but kube-apiserver does: the agent evicts the pods in the order of the
// table, and ends nothing on the node.
func TestWithoutHaulout(t *testing.T) {
	for name, tt := range map[string]struct {
		mode   apiMode
		after  time.Duration
		events []string
		// refused is set if the agent must not create the maintenance again.
		refused bool
	}{
		"Haulout does not respond":        {apiNoHaulout, 14 * time.Second, []string{EventDetected, EventEvicting, EventReleased, EventRebooted}, false},
		"Haulout refuses the maintenance": {apiRefuse, 6 * time.Second, []string{EventDetected, EventRefused, EventEvicting, EventReleased, EventRebooted}, true},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(w *world) { w.mode = tt.mode }, func(w *world) {
				w.request()
				w.wait(tt.after)
				w.wantPhase(state.Evicting)
				is.True(t, w.cordoned != "", "the node is not cordoned")
				expect(t, "refused", tt.refused, w.disk.Refused)
				if c := w.condition(inProgress); c.Status != corev1.ConditionTrue || c.Reason != ReasonEvictingPods {
					t.Errorf("condition %+v", c)
				}
				w.wait(90 * time.Second)
				slices.Sort(w.evicted[:min(2, len(w.evicted))]) // these requests run at the same time
				expect(t, "evicted pods", []string{"pod-0", "pod-1", "pod-2"}, w.evicted)
				expect(t, "local runs", 0, len(w.ends))
				expect(t, "events", tt.events, w.eventReasons())
				w.wantReleasedEmpty("4m")
				expect(t, "cordon after the boot", "", w.cordoned)
			})
		})
	}
}

func TestHauloutIsBack(t *testing.T) {
	scenario(t, func(w *world) {
		w.mode = apiNoHaulout
		w.pods[0].owner, w.pods[1].owner = "web", "web" // the second one waits for the budget
	}, func(w *world) {
		w.request()
		w.wait(16 * time.Second)
		w.wantPhase(state.Evicting)
		w.set(func() { w.mode = apiUp })
		w.wait(3 * time.Second)
		w.wantPhase(state.Maintaining)
		w.wait(time.Minute)
		expect(t, "evicted pods", []string{"pod-0"}, w.evicted)
		expect(t, "local runs", 0, len(w.ends))
		expect(t, "events", []string{EventDetected, EventEvicting, EventDraining, EventReleased, EventRebooted}, w.eventReasons())
	})
}

func TestCancelledWhileEvicting(t *testing.T) {
	scenario(t, func(w *world) { w.mode = apiNoHaulout }, func(w *world) {
		w.request()
		w.wait(14 * time.Second)
		w.wantPhase(state.Evicting)
		w.vanish(false)
		w.wait(15 * time.Second)
		expect(t, "cordon", "", w.cordoned)
	})
}

// The server releases the node at the end of a maintenance, or a user uncordons it. The
// replacements of the evicted pods must not come back to it.
func TestTheNodeStaysCordonedWhileTheAgentEvicts(t *testing.T) {
	scenario(t, func(w *world) { w.mode = apiNoHaulout }, func(w *world) {
		w.request()
		w.wait(14 * time.Second)
		w.wantPhase(state.Evicting)
		w.set(func() { w.cordoned = "" })
		w.wait(3 * time.Second)
		w.wantPhase(state.Evicting)
		is.True(t, w.cordoned != "", "the node is not cordoned again")
		w.wait(90 * time.Second)
		w.wantReleasedEmpty("4m")
		expect(t, "cordon after the boot", "", w.cordoned)
	})
}

// A request to shorten the shutdown moves its deadline.
func TestWithin(t *testing.T) {
	scenario(t, func(w *world) {
		w.pods = w.pods[:2]
		w.mode = apiNoHaulout
		w.pods[0].owner, w.pods[1].owner = "web", "web"
		w.disruptions["web"] = time.Now().Add(time.Hour)
		w.configure = func(c *Config) {
			boot, made := c.BootID, sinceBoot()+5*time.Second
			c.Within = func() *state.Within {
				return &state.Within{BootID: boot, SinceBoot: made, Within: 2 * time.Minute}
			}
		}
	}, func(w *world) {
		w.request()
		w.set(func() { w.unsettled = true }) // the world does not know the new deadline yet
		w.wait(50 * time.Second)
		w.wantPhase(state.Evicting)
		w.wait(10 * time.Second)
		w.wantPhase(state.LocalRun)
		if left := w.disk.Signal.Deadline.Sub(w.disk.Signal.Time).Round(time.Second); left != 2*time.Minute {
			t.Errorf("the stored deadline is %s after the request, want 2m", left)
		}
		w.wait(2 * time.Minute)
		expect(t, "evicted pods", nil, w.evicted)
		expect(t, "releases", 1, len(w.releases))
	})
}

// If a shutdown was shortened before it began, the plan does not have the entries of the table.
// While a longer time is left, it has them.
func TestPlanOfAShortenedShutdown(t *testing.T) {
	for within, want := range map[time.Duration]int{
		4 * time.Minute: 0, 5*time.Minute - time.Second: 0, 6 * time.Minute: len(testTable.DrainPlan()),
	} {
		t.Run(within.String(), func(t *testing.T) {
			scenario(t, func(w *world) {
				w.delay = 30 * time.Minute
				w.configure = func(c *Config) {
					boot, made := c.BootID, sinceBoot()
					c.MaxShutdownDelay = w.delay
					c.Within = func() *state.Within { return &state.Within{BootID: boot, SinceBoot: made, Within: within} }
				}
			}, func(w *world) {
				w.request()
				w.set(func() { w.unsettled = true }) // the world does not know the new deadline yet
				w.wait(time.Minute)
				is.True(t, len(w.requests) > 0, "no maintenance was requested")
				for _, request := range w.requests {
					expect(t, "entries of the plan", want, len(request.DrainPlan))
				}
				expect(t, "local runs", 0, len(w.ends))
				expect(t, "releases", 1, len(w.releases))
			})
		})
	}
}
