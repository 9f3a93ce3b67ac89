// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/agent/buckets"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// scenario runs a script in a world with three pods, the last of which is critical, and an agent
// that knows the state of its machine.
func scenario(t *testing.T, configure func(w *world), script func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.addPod(0, false)
		w.addPod(0, false)
		w.addPod(2000001000, false)
		if configure != nil {
			configure(w)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.background(ctx)
		w.start()
		<-time.After(5 * time.Second)
		script(w)
		w.set(func() {}) // wait explains the lock
		// Wait until a machine that goes down has booted again.
		<-time.After(time.Minute)
		w.mu.Lock()
		p := w.process
		w.mu.Unlock()
		p.kill()
	})
}

// wait advances the time. The lock of the world makes the writes of the processes wait for the
// reads of the test.
func (w *world) wait(d time.Duration) {
	w.set(func() {})
	<-time.After(d)
	synctest.Wait()
}

// reasons returns the reasons that the agent wrote to a condition, in order and without
// repetitions.
func (w *world) reasons(conditionType corev1.NodeConditionType) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var reasons []string
	for _, c := range w.written {
		if c.Type == conditionType && (len(reasons) == 0 || reasons[len(reasons)-1] != c.Reason) {
			reasons = append(reasons, c.Reason)
		}
	}
	return reasons
}

func (w *world) condition(conditionType corev1.NodeConditionType) corev1.NodeCondition {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conditions[conditionType]
}

func (w *world) eventReasons() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var reasons []string
	for _, e := range w.events {
		reasons = append(reasons, e.reason)
	}
	return reasons
}

func (w *world) phase() state.Phase {
	w.mu.Lock()
	p := w.process
	w.mu.Unlock()
	return p.manager.Status().State.Phase
}

func (w *world) wantPhase(want state.Phase) {
	w.t.Helper()
	if got := w.phase(); got != want {
		w.t.Errorf("phase %s, want %s", got, want)
	}
}

// wantReleasedEmpty checks that the agent released the lock once, when no pods were left. left is
// the prefix of the time that remained.
func (w *world) wantReleasedEmpty(left string) {
	w.t.Helper()
	if len(w.releases) != 1 || !strings.HasPrefix(w.releases[0], "0 alive, "+left) {
		w.t.Errorf("releases %q, want one with 0 pods alive, %s", w.releases, left)
	}
}

func expect[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

const inProgress = corev1.NodeGracefulNodeShutdownInProgress

func TestDrainBeforeShutdown(t *testing.T) {
	scenario(t, nil, func(w *world) {
		w.request()
		w.wait(2 * time.Second)
		w.wantPhase(state.Maintaining)
		if c := w.condition(inProgress); c.Status != corev1.ConditionTrue || !strings.Contains(c.Message, "NodeMaintenance shutdown-worker-1-00000001: 3 pods left, pods are leaving") {
			t.Errorf("condition %+v", c)
		}
		w.wait(time.Minute)
		expect(t, "requests", []MaintenanceRequest{{BootID: "00000001-2fa1-11d2-883f-0016d3cca427", Reason: "node shutdown (reboot)", DrainPlan: testTable.DrainPlan()}}, w.requests)
		w.wantReleasedEmpty("4m5")
		expect(t, "reasons", []string{ReasonNoShutdown, ReasonWaitingForDrain, ReasonReleasing, ReasonRebooted}, w.reasons(inProgress))
		expect(t, "events", []string{EventDetected, EventDraining, EventReleased, EventRebooted}, w.eventReasons())
		expect(t, "local runs", 0, len(w.ends))
		for _, nm := range w.maintenances {
			is.True(t, nm.completed, "the maintenance is not completed after the boot")
		}
	})
}

func TestMaintenanceStaysAfterReboot(t *testing.T) {
	scenario(t, func(w *world) { w.configure = func(c *Config) { c.CompleteAfterReboot = false } }, func(w *world) {
		w.request()
		w.wait(10 * time.Minute)
		for _, nm := range w.maintenances {
			if nm.completed {
				t.Error("the maintenance is completed, the configuration leaves that to users")
			}
		}
	})
}

func TestAPILost(t *testing.T) {
	for name, mode := range map[string]apiMode{"down": apiDown, "hangs": apiHang} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(w *world) { w.mode = mode }, func(w *world) {
				w.request()
				w.wait(14 * time.Second)
				w.wantPhase(state.LocalRun)
				expect(t, "bucket", 0, w.ends[0].Bucket)
				w.wait(5 * time.Minute)
				expect(t, "ended pods", []string{"pod-0", "pod-1", "pod-2"}, w.ended)
				w.wantReleasedEmpty("")
				w.set(func() { w.mode = apiUp })
				w.wait(time.Minute)
				expect(t, "pods to report", nil, w.disk.Killed)
			})
		})
	}
}

// oneHang is a Cluster in which one request hangs until its context ends and all other requests
// work.
type oneHang struct {
	Cluster
	n atomic.Int32
}

func (c *oneHang) Drain(ctx context.Context, ref state.MaintenanceRef) (DrainState, error) {
	if c.n.Add(1) == 3 {
		<-ctx.Done()
		return DrainState{}, ctx.Err()
	}
	return c.Cluster.Drain(ctx, ref)
}

// If one request hangs and the API responds to all others, the agent must not treat the API as
// lost.
func TestOneHangingRequest(t *testing.T) {
	scenario(t, func(w *world) {
		for range 20 {
			w.addPod(0, false)
		}
		w.configure = func(c *Config) { c.Cluster = &oneHang{Cluster: c.Cluster} }
	}, func(w *world) {
		w.request()
		w.wait(30 * time.Second)
		w.wantPhase(state.Maintaining)
		w.wait(2 * time.Minute)
		expect(t, "local runs", 0, len(w.ends))
		expect(t, "evictions", nil, w.evicted)
	})
}

func TestWithoutDrain(t *testing.T) {
	scenario(t, func(w *world) { w.configure = func(c *Config) { c.DrainBeforeShutdown = false } }, func(w *world) {
		w.request()
		w.wait(4 * time.Minute)
		expect(t, "requests", nil, w.requests)
		expect(t, "lists", 0, w.lists)
		expect(t, "ended pods", []string{"pod-0", "pod-1", "pod-2"}, w.ended)
		w.wantReleasedEmpty("")
	})
}

// After the boot, the agent still knows and serves the start and the end of the last shutdown. It
// keeps neither of a cancelled shutdown.
func TestTimesOfTheLastShutdown(t *testing.T) {
	scenario(t, nil, func(w *world) {
		w.request()
		w.wait(2 * time.Second)
		w.vanish(false)
		w.wait(10 * time.Second)
		expect(t, "times of a cancelled shutdown", state.Times{}, w.disk.Last)
		w.request()
		w.wait(time.Minute)
		if last := w.disk.Last; w.boot != 2 || last.Start.IsZero() || !last.End.After(last.Start) {
			t.Errorf("boot %d, times %+v", w.boot, last)
		}
		for _, want := range []struct {
			gauge *metrics.Gauge
			at    time.Time
		}{{startTime, w.disk.Last.Start}, {endTime, w.disk.Last.End}} {
			got := must.Get(testutil.GetGaugeMetricValue(want.gauge))(t)
			expect(t, "metric "+want.gauge.Name, float64(want.at.UnixMilli())/1000, got)
		}
	})
}

// deafMachine is a Machine that does not release the lock, so the machine continues to run.
type deafMachine struct {
	Machine
}

func (deafMachine) Release(context.Context) error { return nil }

// If a shutdown fails after the release, the agent can still delay the next one.
func TestDownOfAShutdownThatFails(t *testing.T) {
	scenario(t, func(w *world) { w.configure = func(c *Config) { c.Machine = deafMachine{c.Machine} } }, func(w *world) {
		isDown := func() bool {
			select {
			case <-w.process.manager.Down():
				return true
			default:
				return false
			}
		}
		w.request()
		w.wait(30 * time.Second)
		expect(t, "down after the release", true, isDown())
		w.vanish(false)
		w.wait(10 * time.Second)
		w.wantPhase(state.Armed)
		expect(t, "down after the failure", false, isDown())
	})
}

// The agent reports the ended pods before it starts the kubelet, which would restart them
// otherwise.
func TestAPIBackBetweenBuckets(t *testing.T) {
	scenario(t, func(w *world) { w.mode = apiDown }, func(w *world) {
		w.request()
		w.wait(12 * time.Second)
		w.wantPhase(state.LocalRun)
		w.set(func() { w.mode = apiUp })
		w.wait(65 * time.Second)
		expect(t, "ended pods", []string{"pod-0", "pod-1"}, w.ended)
		w.mu.Lock()
		if !w.down && (!w.kubelet || w.pods[0].known || w.pods[0].alive) {
			t.Errorf("kubelet runs %t, pod-0 %+v", w.kubelet, w.pods[0])
		}
		w.mu.Unlock()
		w.wait(time.Minute)
		if events := w.eventReasons(); !slices.Equal(events[:4], []string{EventDetected, EventLocal, EventDraining, EventReleased}) {
			t.Errorf("events %v", events)
		}
		expect(t, "releases", 1, len(w.releases))
		expect(t, "local runs", 1, len(w.ends))
	})
}

// TestReportsThatHangDoNotKeepTheKubeletStopped: the API is back in the middle of a local end, and
// does not answer reports of ended pods.
func TestReportsThatHangDoNotKeepTheKubeletStopped(t *testing.T) {
	scenario(t, func(w *world) { w.mode, w.reportsHang, w.resumeTakes = apiDown, true, 3*time.Second }, func(w *world) {
		w.request()
		w.wait(12 * time.Second)
		w.wantPhase(state.LocalRun)
		w.set(func() { w.mode = apiUp })
		started := func() (running bool) {
			w.set(func() { running = w.kubelet })
			return running
		}
		for range 90 {
			if w.wait(time.Second); started() {
				return
			}
		}
		t.Error("the kubelet is still stopped")
	})
}

func TestAPIBackOnAFinalNode(t *testing.T) {
	scenario(t, func(w *world) { w.mode, w.final = apiDown, true }, func(w *world) {
		w.request()
		w.wait(12 * time.Second)
		w.set(func() { w.mode = apiUp })
		w.wait(3 * time.Minute)
		expect(t, "ended pods", []string{"pod-0", "pod-1", "pod-2"}, w.ended)
		expect(t, "releases", 1, len(w.releases))
		if len(w.ends) != 2 {
			t.Errorf("%d local runs, want 2: the second after the kubelet could not be started", len(w.ends))
		}
	})
}

// TestAPIBackWhileSystemdStops restores the API in the middle of a local end, while systemd stops
// the system: systemd then starts no units, so the kubelet cannot be started again.
func TestAPIBackWhileSystemdStops(t *testing.T) {
	scenario(t, func(w *world) { w.mode, w.final, w.stopping = apiDown, true, true }, func(w *world) {
		w.request()
		w.wait(12 * time.Second)
		w.set(func() { w.mode = apiUp })
		w.wait(3 * time.Minute)
		expect(t, "ended pods", []string{"pod-0", "pod-1", "pod-2"}, w.ended)
		expect(t, "releases", 1, len(w.releases))
		expect(t, "local runs", 1, len(w.ends))
	})
}

func TestTimeRunsOut(t *testing.T) {
	scenario(t, func(w *world) { w.delay = 100 * time.Second }, func(w *world) {
		// The server drains one pod every three seconds, and the pods need 95 seconds to end.
		w.set(func() {
			for range 20 {
				w.addPod(0, false)
			}
		})
		w.request()
		w.wait(2 * time.Second)
		w.wantPhase(state.Maintaining)
		w.wait(5 * time.Second)
		w.wantPhase(state.LocalRun)
		w.wait(3 * time.Minute)
		w.wantReleasedEmpty("")
	})
}

func TestDaemonSetPodsEndLocally(t *testing.T) {
	scenario(t, func(w *world) { w.addPod(2000001000, true) }, func(w *world) {
		w.request()
		w.wait(2 * time.Minute)
		expect(t, "ended pods", []string{"pod-3"}, w.ended)
		expect(t, "the API has the ended pod", false, w.pods[3].known)
		w.wantReleasedEmpty("")
	})
}

// A machine whose API does not answer reports goes down at most ten seconds later.
func TestReportsThatHangDoNotKeepTheMachineUp(t *testing.T) {
	scenario(t, func(w *world) { w.reportsHang = true; w.addPod(2000001000, true) }, func(w *world) {
		w.request()
		released := func() (released bool) {
			w.set(func() { released = len(w.releases) > 0 })
			return released
		}
		// Three pods are drained, one pod ends within 30 seconds, and the reports take 10.
		for left := 75; left > 0 && !released(); left-- {
			w.wait(time.Second)
		}
		is.True(t, released(), "the machine is still up")
	})
}

// The reports of the first pods fail until the last pod has ended.
func TestReportsOfTheLastPodsHaveTheirOwnTime(t *testing.T) {
	scenario(t, func(w *world) {
		w.reportsHang = true
		w.configure = func(c *Config) { c.DrainBeforeShutdown = false }
	}, func(w *world) {
		w.request()
		ended := func() (ended int) {
			w.set(func() { ended = len(w.ended) })
			return ended
		}
		for left := 120; left > 0 && ended() < len(w.pods); left-- {
			w.wait(time.Second)
		}
		w.set(func() { w.reportsHang = false })
		w.wait(2 * time.Minute)
		expect(t, "ended pods", []string{"pod-0", "pod-1", "pod-2"}, w.ended)
		expect(t, "the API has the last pod", false, w.pods[2].known)
		w.wantReleasedEmpty("")
	})
}

func TestWithoutEngine(t *testing.T) {
	none := func(w *world) {
		w.configure = func(c *Config) { c.Local = nil }
		w.mode = apiDown
	}
	t.Run("waits for the API until the deadline", func(t *testing.T) {
		scenario(t, none, func(w *world) {
			w.request()
			w.wait(4 * time.Minute)
			w.wantPhase(state.Detected)
			w.wait(2 * time.Minute)
			expect(t, "releases", []string{"3 alive, 1s left"}, w.releases)
		})
	})
	t.Run("without pods, the agent does not wait", func(t *testing.T) {
		scenario(t, func(w *world) { none(w); w.pods = nil }, func(w *world) {
			w.request()
			w.wait(15 * time.Second)
			w.wantReleasedEmpty("4m50s")
		})
	})
}

func TestCancelled(t *testing.T) {
	for name, tt := range map[string]struct {
		mode apiMode
		// after is the time of the cancellation; undone is the time in which the agent must undo
		// its work.
		after, undone time.Duration
	}{
		"while the API hangs":   {apiHang, 5 * time.Second, time.Second},
		"during the drain":      {apiUp, 4 * time.Second, 4 * time.Second},
		"during a local run":    {apiDown, 40 * time.Second, time.Second},
		"after the first group": {apiDown, 80 * time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(w *world) { w.mode = tt.mode }, func(w *world) {
				w.request()
				w.wait(tt.after)
				w.vanish(false)
				w.wait(tt.undone)
				is.True(t, w.kubelet, "the kubelet does not run again")
				if tt.mode != apiUp {
					w.wantPhase(state.Cancelled)
					w.set(func() { w.mode = apiUp })
					w.wait(40 * time.Second)
				}
				w.wantPhase(state.Armed)
				if nm := w.own(); nm != nil && !nm.completed {
					t.Error("the maintenance is not completed")
				}
				w.wait(30 * time.Second)
				if c := w.condition(inProgress); c.Status != corev1.ConditionFalse || c.Reason != ReasonCancelled {
					t.Errorf("condition %+v", c)
				}
				expect(t, "releases", 0, len(w.releases))
				// Another shutdown can be requested in the same boot.
				w.request()
				w.wait(4 * time.Minute)
				expect(t, "releases", 1, len(w.releases))
			})
		})
	}
}

func TestForgotten(t *testing.T) {
	t.Run("keep", func(t *testing.T) {
		scenario(t, nil, func(w *world) {
			w.request()
			w.wait(2 * time.Second)
			w.vanish(true)
			w.wait(time.Minute)
			w.wantPhase(state.Armed)
			if nm := w.own(); nm == nil || nm.completed {
				t.Errorf("the maintenance does not stay: %+v", nm)
			}
			if c := w.condition(inProgress); c.Status != corev1.ConditionFalse || c.Reason != ReasonShutdownVanished || !strings.Contains(c.Message, "complete the NodeMaintenance") {
				t.Errorf("condition %+v", c)
			}
			is.True(t, w.lock, "the lock is not held")
			first := w.own().ref
			w.request()
			w.wait(2 * time.Second)
			expect(t, "the adopted maintenance", first, *w.disk.Maintenance)
			w.wait(time.Minute)
			expect(t, "releases", 1, len(w.releases))
		})
	})
	t.Run("keep, until a user completes it", func(t *testing.T) {
		scenario(t, nil, func(w *world) {
			w.request()
			w.wait(2 * time.Second)
			w.vanish(true)
			w.wait(time.Minute)
			w.set(func() { w.own().completed = true })
			w.wait(time.Minute)
			if w.disk.Maintenance != nil || w.condition(inProgress).Reason != ReasonNoShutdown {
				t.Errorf("state %+v, condition %+v", w.disk, w.condition(inProgress))
			}
		})
	})
	t.Run("cancel", func(t *testing.T) {
		scenario(t, func(w *world) { w.configure = func(c *Config) { c.KeepForgotten = false } }, func(w *world) {
			w.request()
			w.wait(2 * time.Second)
			w.vanish(true)
			w.wait(10 * time.Second)
			if !w.own().completed || w.condition(inProgress).Reason != ReasonCancelled {
				t.Errorf("maintenance %+v, condition %+v", w.own(), w.condition(inProgress))
			}
		})
	})
}

// The shutdown ends in order, regardless of the phase in which the agent is killed.
func TestKilledInEveryPhase(t *testing.T) {
	for _, mode := range []apiMode{apiUp, apiDown, apiNoHaulout} {
		for _, phase := range []state.Phase{state.Detected, state.Maintaining, state.Evicting, state.LocalRun, state.Releasing, state.Down} {
			if phase == state.LocalRun && mode != apiDown || phase == state.Maintaining && mode != apiUp || phase == state.Evicting && mode != apiNoHaulout {
				continue
			}
			t.Run(string(phase), func(t *testing.T) {
				scenario(t, func(w *world) { w.mode, w.crashAfter = mode, phase }, func(w *world) {
					w.request()
					w.wait(4 * time.Minute)
					is.True(t, w.crashAfter == "", "the agent was not killed")
					w.wantReleasedEmpty("")
				})
			})
		}
	}
	t.Run("Cancelled", func(t *testing.T) {
		scenario(t, func(w *world) { w.crashAfter = state.Cancelled }, func(w *world) {
			w.request()
			w.wait(2 * time.Second)
			w.vanish(false)
			w.wait(30 * time.Second)
			w.wantPhase(state.Armed)
			if !w.own().completed || w.crashAfter != "" {
				t.Errorf("maintenance %+v", w.own())
			}
		})
	})
}

// When the service is stopped, the agent stores its decision and writes the last condition.
func TestStop(t *testing.T) {
	scenario(t, func(w *world) { w.mode = apiDown }, func(w *world) {
		w.request()
		w.wait(20 * time.Second)
		w.wantPhase(state.LocalRun)
		w.set(func() { w.mode, w.latency = apiUp, 500*time.Millisecond })
		w.wait(5 * time.Second)
		w.mu.Lock()
		p := w.process
		w.mu.Unlock()
		p.cancel()
		<-p.done
		expect(t, "stored phase", state.LocalRun, w.disk.Phase)
		expect(t, "releases", 0, len(w.releases))
		w.start()
		w.wait(4 * time.Minute)
		expect(t, "releases", 1, len(w.releases))
	})
}

func TestNewRefuses(t *testing.T) {
	for name, modify := range map[string]func(c *Config){
		"no node":         func(c *Config) { c.NodeName = "" },
		"no boot ID":      func(c *Config) { c.BootID = "" },
		"no machine":      func(c *Config) { c.Machine = nil },
		"no static pods":  func(c *Config) { c.StaticPodProblem = nil },
		"no warnings":     func(c *Config) { c.Warnings = nil },
		"no table":        func(c *Config) { c.Buckets = buckets.Table{} },
		"no way to end":   func(c *Config) { c.DrainBeforeShutdown, c.Local = false, nil },
		"no delay":        func(c *Config) { c.MaxShutdownDelay = 0 },
		"no grace period": func(c *Config) { c.APIGracePeriod = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			config := (&process{world: w}).config()
			modify(&config)
			if m, err := New(config); err == nil {
				t.Errorf("New() = %v", m)
			}
		})
	}
}
