// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/testing/is"
)

// fakeSettings are the Settings of a Windows machine that waits for the time in waits.
type fakeSettings struct {
	mu       sync.Mutex
	waits    time.Duration
	problems []string
	applied  int
}

func (f *fakeSettings) Apply(time.Duration) (waits time.Duration, problems []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applied++
	return f.waits, slices.Clone(f.problems)
}

func (f *fakeSettings) set(waits time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waits = waits
}

// run runs a machine in a bubble of synctest until the test ends.
func run(t *testing.T, config Config) *Machine {
	t.Helper()
	config.Delay = 10 * time.Minute
	m := New(config)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return m
}

func TestMachineIsArmed(t *testing.T) {
	for name, test := range map[string]struct {
		settings *fakeSettings
		delay    time.Duration
		held     bool
		problems []string
	}{
		"as wanted":     {settings: &fakeSettings{waits: 10 * time.Minute}, delay: 10 * time.Minute, held: true},
		"longer":        {settings: &fakeSettings{waits: time.Hour}, delay: 10 * time.Minute, held: true},
		"shorter":       {settings: &fakeSettings{waits: time.Minute}, delay: time.Minute, held: true, problems: []string{"PreshutdownTimeout"}},
		"not known":     {settings: &fakeSettings{}, problems: []string{"is unknown"}},
		"a wrong order": {settings: &fakeSettings{waits: time.Hour, problems: []string{"order"}}, delay: 10 * time.Minute, held: true, problems: []string{"order"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := run(t, Config{Settings: test.settings, Controls: NewControls()})
				s := m.State()
				if !s.Known || s.ShuttingDown || s.LockHeld != test.held || s.Delay != test.delay {
					t.Errorf("state %+v, want delay %s, held %v", s, test.delay, test.held)
				}
				if len(s.Problems) != len(test.problems) {
					t.Fatalf("problems %q, want %q", s.Problems, test.problems)
				}
				for i, part := range test.problems {
					if !strings.Contains(s.Problems[i], part) {
						t.Errorf("problem %q does not contain %q", s.Problems[i], part)
					}
				}
			})
		})
	}
}

func TestShutdownHasADeadline(t *testing.T) {
	for name, test := range map[string]struct {
		waits, want time.Duration
	}{
		"own timeout":     {10 * time.Minute, 10 * time.Minute},
		"shorter timeout": {time.Minute, time.Minute},
		"unknown timeout": {0, DefaultTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				controls, settings := NewControls(), &fakeSettings{waits: test.waits}
				m := run(t, Config{Settings: settings, Controls: controls})
				since := time.Now()
				controls.beginPreshutdown(since)
				controls.beginPreshutdown(since.Add(time.Hour))
				synctest.Wait()
				s := m.State()
				if !s.ShuttingDown || !s.LockHeld || !s.Since.Equal(since) || !s.Deadline.Equal(since.Add(test.want)) {
					t.Errorf("state %+v, want a shutdown since %s for %s", s, since, test.want)
				}
				applied := settings.applied
				time.Sleep(2 * checkPeriod) //nolint:forbidigo // the clock of the bubble moves immediately
				is.True(t, settings.applied == applied, "settings are changed during a shutdown")
				if err := m.Release(t.Context()); err != nil || m.State().LockHeld || !m.State().ShuttingDown {
					t.Errorf("after the release: %+v (error %v)", m.State(), err)
				}
			})
		})
	}
}

func TestSettingsAreLookedAtAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		controls, settings := NewControls(), &fakeSettings{waits: time.Hour}
		m := run(t, Config{Settings: settings, Controls: controls})
		settings.set(time.Minute)
		controls.paramChange()
		controls.paramChange()
		synctest.Wait()
		if got := m.State().Delay; got != time.Minute {
			t.Errorf("after a change of parameters the delay is %s", got)
		}
		settings.set(time.Hour)
		time.Sleep(checkPeriod + time.Second) //nolint:forbidigo // the clock of the bubble moves immediately
		synctest.Wait()
		if got := m.State(); got.Delay != 10*time.Minute || len(got.Problems) > 0 {
			t.Errorf("after a minute the state is %+v", got)
		}
	})
}

func TestShutdownOfAnEarlierProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		since := time.Now().Add(-time.Minute)
		m := run(t, Config{Settings: &fakeSettings{waits: time.Hour}, Controls: NewControls(), Since: since, Deadline: since.Add(3 * time.Minute)})
		s := m.State()
		if !s.Known || !s.ShuttingDown || s.LockHeld || !s.Deadline.Equal(since.Add(3*time.Minute)) || len(s.Problems) != 1 {
			t.Errorf("state %+v, want the shutdown without a lock", s)
		}
		time.Sleep(2*time.Minute + time.Second) //nolint:forbidigo // the clock of the bubble moves immediately
		synctest.Wait()
		if s = m.State(); s.ShuttingDown || !s.Forgotten || !s.LockHeld || len(s.Problems) > 0 {
			t.Errorf("after its deadline the state is %+v, want a machine that is armed", s)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		since := time.Now().Add(-time.Hour)
		m := run(t, Config{Settings: &fakeSettings{waits: time.Hour}, Controls: NewControls(), Since: since, Deadline: since.Add(time.Minute)})
		if s := m.State(); s.ShuttingDown || !s.LockHeld {
			t.Errorf("a shutdown whose time is over gives %+v", s)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		controls, now := NewControls(), time.Now()
		m := run(t, Config{Settings: &fakeSettings{waits: time.Hour}, Controls: controls, Since: now, Deadline: now.Add(time.Minute)})
		controls.beginPreshutdown(now)
		time.Sleep(2 * time.Minute) //nolint:forbidigo // the clock of the bubble moves immediately
		synctest.Wait()
		if s := m.State(); !s.ShuttingDown || !s.LockHeld || !s.Deadline.Equal(now.Add(s.Delay)) {
			t.Errorf("after a second notification, the state is %+v", s)
		}
	})
}

func TestMachineIsAMachine(t *testing.T) {
	var m shutdown.Machine = New(Config{})
	if m.State().Known || m.State().LockHeld {
		t.Errorf("before Run, the state is %+v", m.State())
	}
}

func TestMilliseconds(t *testing.T) {
	for _, test := range []struct {
		in    time.Duration
		want  uint32
		fails bool
	}{
		{in: 0, fails: true},
		{in: -time.Second, fails: true},
		{in: time.Millisecond, want: 1},
		{in: 24 * time.Hour, want: 86400000},
		{in: math.MaxUint32 * time.Millisecond, want: math.MaxUint32},
		{in: (math.MaxUint32 + 1) * time.Millisecond, fails: true},
		{in: math.MaxInt64, fails: true},
	} {
		if got, err := milliseconds(test.in); got != test.want || (err != nil) != test.fails {
			t.Errorf("%s is %d (error %v), want %d", test.in, got, err, test.want)
		}
	}
}
