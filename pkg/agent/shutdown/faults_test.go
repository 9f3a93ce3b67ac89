// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// A full disk and a crash do not make the agent forget that it has stopped the kubelet.
func TestTheKubeletIsStartedAfterAFullDisk(t *testing.T) {
	scenario(t, func(w *world) { w.mode, w.diskFull = apiDown, true }, func(w *world) {
		w.request()
		w.wait(20 * time.Second)
		w.wantPhase(state.LocalRun)
		w.set(func() { w.process.crash() })
		w.vanish(false)
		w.wait(20 * time.Second)
		is.True(t, w.kubelet, "the kubelet does not run again")
	})
}

// A new process stores on the disk the state that only the copy for this boot had.
func TestTheCopyOfTheStateIsStored(t *testing.T) {
	scenario(t, func(w *world) { w.diskFull = true }, func(w *world) {
		w.set(func() {
			w.diskFull = false
			w.process.crash()
		})
		w.wait(10 * time.Second)
		expect(t, "stored boot", w.bootID, w.disk.BootID)
	})
}

// If the agent could not store its state, it undoes its cordon by the annotation of the node.
func TestTheNodeIsOpenedAfterAFullDisk(t *testing.T) {
	scenario(t, func(w *world) { w.mode, w.diskFull = apiNoHaulout, true }, func(w *world) {
		w.request()
		w.wait(14 * time.Second)
		w.wantPhase(state.Evicting)
		is.True(t, w.cordoned != "", "the node is not cordoned")
		w.wait(90 * time.Second)
		expect(t, "boot", 2, w.boot)
		expect(t, "cordon after the boot", "", w.cordoned)
	})
}

func TestFullDisk(t *testing.T) {
	scenario(t, func(w *world) { w.diskFull = true }, func(w *world) {
		w.wait(30 * time.Second)
		if c := w.condition(v1alpha1.NodeConditionAgentReady); !strings.Contains(c.Message, "no space left on device") {
			t.Errorf("condition %+v", c)
		}
		w.request()
		w.wait(15 * time.Second)
		w.wantReleasedEmpty("4m5")
		w.set(func() { w.diskFull = false })
		w.wait(40 * time.Second)
		expect(t, "stored phase", state.Armed, w.disk.Phase)
		if c := w.condition(v1alpha1.NodeConditionAgentReady); strings.Contains(c.Message, "no space left") {
			t.Errorf("condition %+v", c)
		}
	})
}

// The wall clock is changed in the middle of a shutdown.
func TestClockIsSet(t *testing.T) {
	for name, d := range map[string]time.Duration{"back": -24 * time.Hour, "forward": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(w *world) { w.mode, w.engineOK = apiDown, false }, func(w *world) {
				w.request()
				w.wait(time.Minute)
				w.jump(d)
				w.wait(3 * time.Minute)
				expect(t, "releases", 0, len(w.releases))
				w.wait(2 * time.Minute)
				expect(t, "releases", []string{"3 alive, 1s left"}, w.releases)
			})
		})
	}
}

// A new process cannot use the monotonic clock of the process that noticed the shutdown.
func TestClockIsSetAndTheAgentRestarted(t *testing.T) {
	for name, d := range map[string]time.Duration{
		"back": -24 * time.Hour, "forward": 24 * time.Hour, "back a little": -2 * time.Minute, "forward a little": 2 * time.Minute,
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(w *world) { w.mode, w.engineOK = apiDown, false }, func(w *world) {
				w.request()
				w.wait(time.Minute)
				w.set(func() { w.process.crash() })
				w.jump(d)
				w.wait(3 * time.Minute)
				expect(t, "releases", 0, len(w.releases))
				w.wait(2 * time.Minute)
				expect(t, "releases", []string{"3 alive, 1s left"}, w.releases)
			})
		})
	}
}

// An agent that starts while the machine goes down does not treat the shutdown as a new one.
func TestTheAgentIsRestartedAfterTheDeadline(t *testing.T) {
	scenario(t, func(w *world) { w.mode, w.engineOK = apiDown, false }, func(w *world) {
		w.request()
		w.wait(w.delay - 2*time.Second)
		w.wantPhase(state.LocalRun)
		w.process.kill()
		w.set(func() { w.crashed = time.Now() })
		w.wait(2*time.Second + 200*time.Millisecond)
		ends := len(w.ends)
		p := w.start()
		w.set(func() { p.known, p.seen, p.since, p.deadline = true, true, w.wall(), w.wall().Add(w.delay) })
		w.wait(1500 * time.Millisecond)
		w.wantPhase(state.Down)
		expect(t, "local runs after the deadline", 0, len(w.ends)-ends)
	})
}

// damagedStore is a Store whose stored state is damaged.
type damagedStore struct {
	Store
	err error
}

func (s damagedStore) Load() (state.State, error) {
	return state.State{}, s.err
}

func TestDamagedState(t *testing.T) {
	damaged := &state.DamagedError{Path: "state.json", KeptAs: "state.json.damaged", Reason: errors.New("EOF")}
	scenario(t, func(w *world) { w.configure = func(c *Config) { c.Store = damagedStore{c.Store, damaged} } }, func(w *world) {
		w.wait(20 * time.Second)
		w.wantPhase(state.Armed)
		if c := w.condition(v1alpha1.NodeConditionAgentReady); !strings.Contains(c.Message, "moved to state.json.damaged") {
			t.Errorf("condition %+v", c)
		}
	})
}

func TestStateOfAnotherVersion(t *testing.T) {
	w := newWorld(t, 1)
	p := &process{world: w}
	w.process = p
	config := p.config()
	config.Store = damagedStore{config.Store, &state.VersionError{Path: "state.json", Version: 7}}
	manager := must.Get(New(config))(t)
	var version *state.VersionError
	if err := manager.Run(t.Context()); !errors.As(err, &version) {
		t.Errorf("Run() = %v, want a VersionError", err)
	}
	expect(t, "what was stored", state.State{}, w.disk)
}

// brokenMachine is a Machine whose Run fails a number of times.
type brokenMachine struct {
	Machine
	broken *atomic.Bool
}

func (m brokenMachine) Run(ctx context.Context, changed func()) error {
	if m.broken.Load() {
		return errors.New("no bus")
	}
	return m.Machine.Run(ctx, changed)
}

func TestMachineGivesUp(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	scenario(t, func(w *world) { w.configure = func(c *Config) { c.Machine = brokenMachine{c.Machine, &broken} } }, func(w *world) {
		ready := v1alpha1.NodeConditionAgentReady
		w.wait(20 * time.Second)
		if c := w.condition(ready); !strings.Contains(c.Message, "the agent cannot watch for shutdowns of the machine: no bus") {
			t.Errorf("condition %+v", c)
		}
		broken.Store(false)
		w.wait(20 * time.Second)
		if c := w.condition(ready); strings.Contains(c.Message, "no bus") {
			t.Errorf("condition %+v", c)
		}
		w.request()
		w.wait(time.Minute)
		expect(t, "releases", 1, len(w.releases))
	})
}

// The process that stopped the kubelet has ended, and the next process does not have its state or
// its engine.
func TestKubeletRunsAgain(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"without the state": func(w *world) { w.disk = state.State{} },
		"without the engine": func(w *world) {
			w.configure = func(c *Config) { c.Local = nil }
		},
		"without both": func(w *world) {
			w.disk, w.configure = state.State{}, func(c *Config) { c.Local = nil }
		},
	} {
		for when, cancelled := range map[string]bool{"a shutdown that was cancelled": true, "a shutdown that is drained after all": false} {
			t.Run(name+", after "+when, func(t *testing.T) {
				scenario(t, func(w *world) { w.mode, w.noted = apiDown, true }, func(w *world) {
					w.request()
					w.wait(20 * time.Second)
					w.wantPhase(state.LocalRun)
					w.set(func() {
						change(w)
						w.process.crash()
					})
					if cancelled {
						w.vanish(false)
					} else {
						w.set(func() { w.mode = apiUp })
					}
					w.wait(15 * time.Second)
					if !w.kubelet {
						t.Errorf("the kubelet does not run again, in phase %s", w.phase())
					}
				})
			})
		}
	}
}
