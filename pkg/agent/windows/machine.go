// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package windows is the part of the node agent for Windows: the service that Windows notifies
// before a shutdown begins (SERVICE_CONTROL_PRESHUTDOWN), the settings for the time and the order
// in which Windows waits for services, and the installation, start and stop of services (KEP-4802).
// It is experimental: it has not been tested on a real Windows machine.
//
// The code that makes decisions has no build tag, so that its tests run on every operating system.
// The code that calls Windows is in files that end with _windows.go.
package windows

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"haulout.dev/haulout/pkg/agent/shutdown"
)

// checkPeriod is the interval at which the settings in Windows are checked, since other programs
// change them as well.
const checkPeriod = time.Minute

// Settings are the settings of Windows for a shutdown.
type Settings interface {
	// Apply makes Windows wait for this service for the given delay, and notify it before the
	// kubelet. It returns the time that Windows waits, 0 if unknown, and the problems.
	Apply(delay time.Duration) (waits time.Duration, problems []string)
}

// Config has the dependencies and options of a Machine.
type Config struct {
	// Delay is the maximum delay of a shutdown.
	Delay time.Duration
	// Settings and Controls are required.
	Settings Settings
	Controls *Controls
	// Since and Deadline are the times of a pending shutdown of which Windows notified an earlier
	// process of this boot; zero if there is none.
	Since, Deadline time.Time
}

// Machine is a Windows machine. Windows notifies the service of a shutdown and then waits until the
// service has stopped or its time is over. Such a shutdown cannot be cancelled. Machine implements
// shutdown.Machine.
type Machine struct {
	config Config

	mu       sync.Mutex
	state    shutdown.MachineState
	waits    time.Duration
	problems []string
}

var _ shutdown.Machine = &Machine{}

// New returns a machine that has not made any call to Windows.
func New(config Config) *Machine {
	return &Machine{config: config}
}

// State implements shutdown.Machine.
func (m *Machine) State() shutdown.MachineState {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.state
	s.Problems = append([]string{}, m.problems...)
	return s
}

// Release implements shutdown.Machine. It does nothing: Windows continues when the service has
// stopped, and the caller of Run stops the service.
func (m *Machine) Release(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.LockHeld = false
	return nil
}

// Run implements shutdown.Machine.
func (m *Machine) Run(ctx context.Context, changed func()) error {
	preshutdown := m.config.Controls.Preshutdown()
	resumed := m.resume()
	m.apply()
	changed()
	ticker := time.NewTicker(checkPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-preshutdown:
			preshutdown, resumed = nil, nil
			m.begin(m.config.Controls.since)
		case <-resumed:
			resumed = nil
			m.forget()
			m.apply()
		case <-m.config.Controls.paramChanges:
			m.apply()
		case <-ticker.C:
			m.apply()
		}
		changed()
	}
}

// apply writes and checks the settings while no shutdown is pending.
func (m *Machine) apply() {
	m.mu.Lock()
	pending := m.state.ShuttingDown
	m.mu.Unlock()
	if pending {
		return
	}
	waits, problems := m.config.Settings.Apply(m.config.Delay)
	switch {
	case waits == 0:
		problems = append(problems, "The time that Windows waits for the agent in a shutdown is unknown.")
	case waits < m.config.Delay:
		problems = append(problems, fmt.Sprintf("Windows waits %s for the agent in a shutdown (PreshutdownTimeout), but maxShutdownDelay is %s.",
			waits, m.config.Delay))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waits, m.problems = waits, problems
	m.state.Known = true
	m.state.Delay = min(waits, m.config.Delay)
	m.state.LockHeld = waits > 0
}

// begin handles the notification of a shutdown.
func (m *Machine) begin(since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delay := m.state.Delay
	if m.waits == 0 {
		delay = min(DefaultTimeout, m.config.Delay)
	}
	m.state.Known, m.state.ShuttingDown, m.state.Forgotten, m.state.LockHeld = true, true, false, true
	m.state.Since, m.state.Deadline, m.state.Delay = since, since.Add(delay), delay
}

// resume takes over the shutdown of which Windows notified an earlier process. Windows does not
// wait for this process. The returned channel receives a value when the time of that shutdown is
// over: if the machine still runs then, no shutdown is pending.
func (m *Machine) resume() <-chan time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := time.Until(m.config.Deadline)
	if m.state.ShuttingDown || left <= 0 {
		return nil
	}
	m.state = shutdown.MachineState{Known: true, ShuttingDown: true, Since: m.config.Since, Deadline: m.config.Deadline, Delay: left}
	m.problems = []string{"The agent was restarted during a shutdown, and Windows no longer waits for it."}
	return time.After(left)
}

// forget drops a shutdown if the machine still runs after its deadline.
func (m *Machine) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = shutdown.MachineState{Known: true, Forgotten: true}
}

// milliseconds returns a time in the unit of Windows.
func milliseconds(d time.Duration) (uint32, error) {
	if d < time.Millisecond || d.Milliseconds() > math.MaxUint32 {
		return 0, fmt.Errorf("%s must be between 1ms and %s, the limits of Windows", d, math.MaxUint32*time.Millisecond)
	}
	return uint32(d.Milliseconds()), nil
}

// ServiceName is the name of the agent's service.
const ServiceName = "haulout-node-agent"

// DefaultTimeout is the time that Windows waits for a service without this setting, since build
// 15063. Earlier builds wait three minutes.
const DefaultTimeout = 10 * time.Second

// Controls are the requests of Windows to the running service.
type Controls struct {
	ready       chan struct{}
	preshutdown chan struct{}
	// paramChanges receives a value when a user requests that the service read its settings again.
	paramChanges chan struct{}

	readyOnce, preshutdownOnce sync.Once
	// since is the time of the notification. It must not be read before preshutdown is closed.
	since time.Time
}

// NewControls returns controls without any request.
func NewControls() *Controls {
	return &Controls{ready: make(chan struct{}), preshutdown: make(chan struct{}), paramChanges: make(chan struct{}, 1)}
}

// Ready reports to Windows that the service has started.
func (c *Controls) Ready() {
	c.readyOnce.Do(func() { close(c.ready) })
}

// Preshutdown is closed when Windows is about to shut down.
func (c *Controls) Preshutdown() <-chan struct{} {
	return c.preshutdown
}

func (c *Controls) beginPreshutdown(since time.Time) {
	c.preshutdownOnce.Do(func() {
		c.since = since
		close(c.preshutdown)
	})
}

func (c *Controls) paramChange() {
	select {
	case c.paramChanges <- struct{}{}:
	default: // a request is already pending
	}
}
