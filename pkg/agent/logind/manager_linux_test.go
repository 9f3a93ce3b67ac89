// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package logind_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestShutdownWaitsForTheRelease(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		a := start(t, config())
		before := a.until("the lock is held", locked)
		if before.Delay != time.Minute || before.ShuttingDown || !before.Known {
			t.Errorf("state %+v, want a delay of 1m and no shutdown", before)
		}
		locks := b.locks(logind.Who)
		if len(locks) != 1 || locks[0].What != "shutdown" || locks[0].Mode != "delay" || locks[0].PID != uint32(os.Getpid()) {
			t.Errorf("logind has the locks %+v, want one delay lock of this process", locks)
		}
		requested := time.Now()
		b.reboot()
		state := a.until("a shutdown is pending", pending)
		if state.Since.Before(requested) || time.Since(state.Since) > patience {
			t.Errorf("the shutdown began at %s, want after %s", state.Since, requested)
		}
		if got := state.Deadline.Sub(state.Since); got != time.Minute {
			t.Errorf("the deadline is %s after the request, want 1m", got)
		}
		b.mustWait()
		for range 2 { // the second call has no effect
			must.Do(t, a.Release(t.Context()))
		}
		b.mustGoDown("reboot.target")
		if state := a.State(); state.LockHeld || state.LockPath != "" || !state.ShuttingDown {
			t.Errorf("after the release the state is %+v, want a shutdown and no lock", state)
		}
		a.until("systemd's job tells the kind", func(s shutdown.MachineState) bool { return s.Kind == "reboot" })
		if problems := a.State().Problems; len(problems) != 0 {
			t.Errorf("problems %q, want none: the lock was released on purpose", problems)
		}
	})
}

func TestReleaseWithoutShutdownKeepsTheLock(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		a := start(t, config())
		a.until("the lock is held", locked)
		must.Do(t, a.Release(t.Context()))
		b.reboot()
		a.until("a shutdown is pending", pending)
		b.mustWait()
	})
}

// An agent that is restarted during a shutdown while the bus is broken learns of the shutdown only
// from its stored state.
func TestReleaseWithoutABus(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		store := &fakeStore{}
		holder, held := b.startHolder(locked)
		lock := must.Get(os.OpenFile(held.LockPath, os.O_WRONLY|syscall.O_NONBLOCK, 0))(t)
		b.kill(holder)
		b.kill(b.dbus)
		a := start(t, config(func(c *logind.Config) { c.Store, c.Stored = store, []*os.File{lock} }))
		a.until("the lock is held, and the bus is reported as missing", func(s shutdown.MachineState) bool {
			return s.LockHeld && !s.Known && hasProblem(s, "cannot be reached")
		})
		must.Do(t, a.Release(t.Context()))
		if a.State().LockHeld || !store.removed {
			t.Errorf("the lock is held: %t, removed from the store: %t", a.State().LockHeld, store.removed)
		}
	})
}

func TestMachineGoesDownAtTheDeadline(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		a := start(t, config(func(c *logind.Config) { c.Delay = 1500 * time.Millisecond }))
		if state := a.until("the lock is held", locked); state.Delay != 5*time.Second {
			t.Errorf("delay %s, want logind's own 5s: a longer delay than the configured one stays", state.Delay)
		}
		b.configure(etcDropIns+"/50-admin.conf", "1")
		b.sighup()
		a.until("the delay was raised from 1s, in whole seconds", func(s shutdown.MachineState) bool { return s.Delay == 2*time.Second })
		b.reboot()
		state := a.until("a shutdown is pending", pending)
		b.mustWait()
		b.mustGoDown("reboot.target")
		if late := time.Since(state.Deadline); late < -50*time.Millisecond {
			t.Errorf("the machine went down %s before the deadline that was reported", -late)
		}
		is.True(t, a.State().LockPath != "", "the lock was given up, although nothing released it")
	})
}

func TestLockOutlivesTheKilledHolder(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		first, held := b.startHolder(locked)
		b.reboot()
		// The next process opens the pipe by its path. While a process has the pipe open, the lock
		// is held.
		since := time.Now().Add(-10 * time.Second)
		deadline := since.Add(30 * time.Second)
		second := start(t, config(func(c *logind.Config) {
			c.Resume = logind.Resume{LockPath: held.LockPath, Since: since, Deadline: deadline}
		}))
		state := second.until("the second process knows of the shutdown", pending)
		b.kill(first)
		b.mustWait()
		if !state.LockHeld || state.LockPath != held.LockPath {
			t.Errorf("state %+v, want the lock %s", state, held.LockPath)
		}
		if !state.Since.Equal(since) || !state.Deadline.Equal(deadline) {
			t.Errorf("the shutdown is from %s to %s, want the times of the first process, %s to %s", state.Since, state.Deadline, since, deadline)
		}
		b.mustWait()
		must.Do(t, second.Release(t.Context()))
		b.mustGoDown("reboot.target")
	})
}

func TestLockEndsWithItsOnlyHolder(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		first, held := b.startHolder(locked)
		b.reboot()
		b.mustWait()
		b.kill(first)
		b.mustGoDown("reboot.target")
		// Now the lock is lost, and logind gives no new lock.
		a := start(t, config(func(c *logind.Config) { c.Resume.LockPath = held.LockPath }))
		state := a.until("the lock is missed", func(s shutdown.MachineState) bool { return s.ShuttingDown && len(s.Problems) > 0 })
		if state.LockHeld || !strings.Contains(state.Problems[0], "does not wait for the agent") {
			t.Errorf("state %+v, want no lock and a problem about it", state)
		}
	})
}

func TestResumedDeadlines(t *testing.T) {
	for name, test := range map[string]struct {
		since, deadline time.Duration // from now
		resumed         bool
	}{
		"a shutdown that is half over":  {since: -30 * time.Second, deadline: 30 * time.Second, resumed: true},
		"a deadline that has passed":    {since: -2 * time.Minute, deadline: -time.Minute, resumed: true},
		"the clock was set back by 1h":  {since: time.Hour, deadline: time.Hour + time.Minute},
		"the clock was set back by 50s": {since: -time.Second, deadline: 90 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			withLogind(t, func(t *testing.T, b *bench) {
				t.Helper()
				_, held := b.startHolder(locked)
				b.reboot()
				now := time.Now()
				resume := logind.Resume{LockPath: held.LockPath, Since: now.Add(test.since), Deadline: now.Add(test.deadline)}
				a := start(t, config(func(c *logind.Config) { c.Resume = resume }))
				state := a.until("a shutdown is pending", pending)
				if got := state.Deadline.Equal(resume.Deadline) && state.Since.Equal(resume.Since); got != test.resumed {
					t.Errorf("the stored times were taken over: %t, want %t", got, test.resumed)
				}
				if latest := time.Now().Add(time.Minute); state.Deadline.After(latest) {
					t.Errorf("the deadline %s is after %s, when logind stops waiting", state.Deadline, latest)
				}
			})
		})
	}
}

func TestLockIsKeptOverRestarts(t *testing.T) {
	for name, restart := range map[string]func(*bench){
		"of logind":  (*bench).restartLogind,
		"of the bus": (*bench).restartBus,
	} {
		t.Run(name, func(t *testing.T) {
			withLogind(t, func(t *testing.T, b *bench) {
				t.Helper()
				a := start(t, config())
				before := a.until("the lock is held", locked)
				restart(b)
				// Once the Manager reports this lock, it is connected to the new logind.
				kubelet := b.inhibit("kubelet")
				a.until("the new logind responded", func(s shutdown.MachineState) bool { return hasProblem(s, "kubelet") })
				kubelet.Close()
				after := a.until("the lock is held", locked)
				if after.LockPath != before.LockPath || after.Forgotten {
					t.Errorf("state %+v, want the lock %s and no forgotten shutdown", after, before.LockPath)
				}
				b.reboot()
				a.until("a shutdown is pending", pending)
				b.mustWait()
				must.Do(t, a.Release(t.Context()))
				b.mustGoDown("reboot.target")
			})
		})
	}
}

func TestRestartForgetsThePendingShutdown(t *testing.T) {
	for name, restart := range map[string]func(*bench){
		"of logind":  (*bench).restartLogind,
		"of the bus": (*bench).restartBus,
	} {
		t.Run(name, func(t *testing.T) {
			withLogind(t, func(t *testing.T, b *bench) {
				t.Helper()
				a := start(t, config())
				before := a.until("the lock is held", locked)
				b.reboot()
				a.until("a shutdown is pending", pending)
				restart(b)
				after := a.until("the shutdown is forgotten", func(s shutdown.MachineState) bool { return s.Forgotten })
				if after.ShuttingDown || !after.LockHeld || after.LockPath != before.LockPath || !after.Deadline.IsZero() {
					t.Errorf("state %+v, want no shutdown and the lock %s", after, before.LockPath)
				}
				b.reboot()
				again := a.until("the next shutdown is pending", pending)
				if again.Forgotten {
					t.Errorf("state %+v, want nothing forgotten", again)
				}
				b.mustWait()
				must.Do(t, a.Release(t.Context()))
				b.mustGoDown("reboot.target")
			})
		})
	}
}

func TestCancelledShutdown(t *testing.T) {
	for name, test := range map[string]struct {
		delay   time.Duration
		release bool
		// refuse is set if systemd refuses the shutdown; otherwise systemd cancels the job of the
		// shutdown.
		refuse bool
	}{
		"the job is cancelled after the release":            {delay: time.Minute, release: true},
		"systemd refuses the shutdown after the release":    {delay: time.Minute, release: true, refuse: true},
		"the job is cancelled after the delay was over":     {delay: time.Second},
		"systemd refuses the shutdown after the delay ends": {delay: time.Second, refuse: true},
	} {
		t.Run(name, func(t *testing.T) {
			withLogind(t, func(t *testing.T, b *bench) {
				t.Helper()
				b.configure(etcDropIns+"/50-admin.conf", "1")
				b.sighup()
				a := start(t, config(func(c *logind.Config) { c.Delay = test.delay }))
				before := a.until("the lock is held", locked)
				b.systemd.refuse(test.refuse)
				b.reboot()
				a.until("a shutdown is pending", pending)
				if test.release {
					must.Do(t, a.Release(t.Context()))
				}
				b.mustGoDown("reboot.target")
				if !test.refuse {
					b.systemd.cancelJob()
				}
				after := a.until("the agent waits for the next shutdown, with a lock", idle)
				if after.Forgotten {
					t.Errorf("state %+v, want a cancelled shutdown, not a forgotten one", after)
				}
				if kept := after.LockPath == before.LockPath; kept == test.release {
					t.Errorf("the lock is %s and was %s; it was released: %t", after.LockPath, before.LockPath, test.release)
				}
				if locks := b.locks(logind.Who); len(locks) != 1 {
					t.Errorf("logind has the locks %+v, want one", locks)
				}
				b.systemd.refuse(false)
				b.reboot()
				a.until("the next shutdown is pending", pending)
				b.mustWait()
			})
		})
	}
}

func TestScheduledShutdownHasAKind(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		a := start(t, config())
		a.until("the lock is held", locked)
		b.call("ScheduleShutdown", "poweroff", uint64(time.Now().UnixMicro()))
		state := a.until("the kind is known", func(s shutdown.MachineState) bool { return s.Kind != "" })
		if state.Kind != "poweroff" {
			t.Errorf("kind %q, want poweroff", state.Kind)
		}
		b.mustWait()
	})
}

func TestSignalsOfOthersAreNotBelieved(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		a := start(t, config(func(c *logind.Config) { c.ResyncPeriod = time.Hour }))
		a.until("the lock is held", locked)
		spoof := func(begins bool) {
			t.Helper()
			// The signal is sent as a broadcast, and directly to each client of the bus:
			// subscriptions do not filter a direct signal.
			var names []string
			must.Do(t, b.conn.BusObject().Call("org.freedesktop.DBus.ListNames", 0).Store(&names))
			for _, name := range append(names, "") {
				message := &dbus.Message{Type: dbus.TypeSignal, Body: []any{begins}, Headers: map[dbus.HeaderField]dbus.Variant{
					dbus.FieldInterface: dbus.MakeVariant(login),
					dbus.FieldMember:    dbus.MakeVariant("PrepareForShutdown"),
					dbus.FieldPath:      dbus.MakeVariant(loginPath),
					dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf(begins)),
				}}
				if name != "" {
					message.Headers[dbus.FieldDestination] = dbus.MakeVariant(name)
				}
				b.conn.Send(message, nil)
			}
		}
		// The bus delivers messages in order: when the next signal of logind is handled, the
		// spoofed one has been handled, too.
		spoof(true)
		requested := time.Now()
		b.reboot()
		since := a.until("a shutdown is pending", pending).Since
		is.True(t, !since.Before(requested), "the shutdown began at %s, before logind's signal", since)
		spoof(false)
		must.Do(t, a.Release(t.Context()))
		b.mustGoDown("reboot.target")
		if state := a.State(); !state.ShuttingDown || !state.Since.Equal(since) {
			t.Errorf("state %+v, want the shutdown of %s", state, since)
		}
		b.systemd.cancelJob()
		a.until("logind's own signal is believed", idle)
	})
}

func TestLostLockIsReplaced(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		store := &fakeStore{}
		a := start(t, config(func(c *logind.Config) { c.Store = store }))
		before := a.until("the lock is held", locked)
		must.Do(t, os.Remove(before.LockPath))
		after := a.until("there is another lock", func(s shutdown.MachineState) bool { return s.LockHeld && s.LockPath != before.LockPath })
		if got := store.paths(); !slices.Equal(got, []string{after.LockPath}) {
			t.Errorf("the store has %q, want %q alone", got, after.LockPath)
		}
		b.reboot()
		a.until("a shutdown is pending", pending)
		b.mustWait()
	})
}

func TestStoredLockIsTakenOver(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		store := &fakeStore{}
		holder, held := b.startHolder(locked)
		lock := must.Get(os.OpenFile(held.LockPath, os.O_WRONLY|syscall.O_NONBLOCK, 0))(t)
		regular := must.Get(os.Open("/etc/passwd"))(t)
		b.reboot()
		b.kill(holder)
		a := start(t, config(func(c *logind.Config) {
			c.Store, c.Stored = store, []*os.File{regular, lock}
		}))
		if state := a.until("a shutdown is pending", pending); state.LockPath != held.LockPath {
			t.Errorf("state %+v, want the lock %s", state, held.LockPath)
		}
		b.mustWait()
		must.Do(t, a.Release(t.Context()))
		is.True(t, store.removed, "the lock stayed in the store, where it delays the shutdown")
		b.mustGoDown("reboot.target")
	})
}

func TestLockOfAnotherProgramIsNotTakenOver(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		other := b.inhibit("another program")
		paths := describedLocks(t)
		must.True(t, len(paths) == 1, "logind has the pipes %q, want one", paths)
		a := start(t, config(func(c *logind.Config) { c.Resume.LockPath = paths[0] }))
		if state := a.until("a lock is held", locked); state.LockPath == paths[0] {
			t.Errorf("the agent took over %s", paths[0])
		}
		other.Close()
		eventually(t, "the other lock is gone", func() bool { return len(b.locks("another program")) == 0 })
	})
}

func TestAgentWaitsForLogind(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		b.kill(b.logind)
		b.kill(b.dbus)
		a := start(t, config())
		state := a.until("the bus is missed", func(s shutdown.MachineState) bool { return hasProblem(s, "cannot be reached") })
		if state.Known || state.LockHeld {
			t.Errorf("state %+v, want nothing known", state)
		}
		b.startBus()
		b.startLogind()
		a.until("the lock is held", locked)
		// Make logind hang.
		must.Do(t, b.logind.Process.Signal(syscall.SIGSTOP))
		slow := start(t, config(func(c *logind.Config) { c.CallTimeout = 50 * time.Millisecond }))
		slow.until("logind does not answer", func(s shutdown.MachineState) bool { return hasProblem(s, "cannot be reached") })
		must.Do(t, b.logind.Process.Signal(syscall.SIGCONT))
		slow.until("the lock is held", func(s shutdown.MachineState) bool { return s.LockHeld })
	})
}

func TestSystemdStopsTheAgent(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		a := start(t, config())
		a.until("the lock is held", locked)
		// `systemctl start reboot.target` bypasses logind.
		before := time.Now()
		a.Stopping("reboot", 10*time.Second)
		a.until("a shutdown is pending", pending)
		kubelet := b.inhibit("kubelet")
		defer kubelet.Close()
		state := a.until("the Manager has read the state of logind again", func(s shutdown.MachineState) bool { return hasProblem(s, "kubelet") })
		if !state.ShuttingDown || state.Kind != "reboot" || state.Deadline.Sub(before).Round(time.Second) != 10*time.Second {
			t.Errorf("state %+v, want a reboot within 10s, regardless of the state of logind", state)
		}
		must.Do(t, a.Release(t.Context()))
		kubelet.Close()
		state = a.until("the Manager has read the state of logind again", func(s shutdown.MachineState) bool { return len(s.Problems) == 0 })
		if !state.ShuttingDown || state.LockHeld || len(b.locks(logind.Who)) != 0 {
			t.Errorf("state %+v, want the shutdown and no new lock", state)
		}
	})
}

func hasProblem(s shutdown.MachineState, text string) bool {
	return slices.ContainsFunc(s.Problems, func(problem string) bool { return strings.Contains(problem, text) })
}

// fakeStore keeps copies of files, like the file descriptor store of systemd.
type fakeStore struct {
	mu      sync.Mutex
	files   []string
	removed bool
}

// Add keeps a copy of the file.
func (f *fakeStore) Add(_ string, file *os.File) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	f.files = append(f.files, path)
	return err
}

// Remove removes all copies.
func (f *fakeStore) Remove(string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files, f.removed = nil, true
	return nil
}

func (f *fakeStore) paths() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.files)
}

// describedLocks returns the pipes of all locks.
func describedLocks(t *testing.T) []string {
	t.Helper()
	paths := must.Get(filepath.Glob("/run/systemd/inhibit/*.ref"))(t)
	return paths
}
