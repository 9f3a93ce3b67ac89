// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package logind delays the shutdown of a Linux machine: it holds a delay lock of systemd-logind,
// reports when logind wants to shut the machine down, and releases the lock when the shutdown may
// continue.
//
// The lock is the writing end of a named pipe (/run/systemd/inhibit/N.ref). logind starts no
// shutdown while a process has the pipe open, for at most InhibitDelayMaxSec, and refuses new locks
// while a shutdown is pending. So the lock must outlive this process: systemd stores a copy, and
// the agent stores the path of the pipe, so that its next process can open the pipe again.
package logind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/systemd"
)

const (
	// Who is the name of the agent in logind's list of locks.
	Who = "haulout-node-agent"
	// StoreName is the name of the lock in the file descriptor store of systemd.
	StoreName = "inhibit"

	defaultRetryPeriod  = time.Second
	defaultResyncPeriod = 20 * time.Second
	defaultCallTimeout  = 10 * time.Second
)

// Store keeps a copy of the lock that outlives the process; systemd.Notifier implements it.
type Store interface {
	Add(name string, file *os.File) error
	Remove(name string) error
}

// Resume is the state of an earlier process of this boot.
type Resume struct {
	// LockPath is the path of the lock's pipe.
	LockPath string
	// Since and Deadline are the start and the deadline of the pending shutdown, or zero.
	Since, Deadline time.Time
}

// Config is the configuration of a Manager.
type Config struct {
	// Delay is the maximum delay of a shutdown that logind must allow.
	Delay time.Duration
	// Resume is the state of an earlier process of this boot.
	Resume Resume
	// Stored are the copies of the lock from systemd's store. The Manager closes them.
	Stored []*os.File
	// Store keeps a copy of the lock; nil means no copy.
	Store Store
	// GiveUp makes the Manager take no lock, and release the lock of an earlier process when no
	// shutdown is pending.
	GiveUp bool
	// RetryPeriod is the pause between two attempts to connect to logind, 1s if zero; up to half of
	// it is added at random.
	RetryPeriod time.Duration
	// ResyncPeriod is the interval at which the manager reads the state of logind even without a
	// signal, 20s if zero.
	ResyncPeriod time.Duration
	// CallTimeout limits each call of logind, 10s if zero. A logind that has lost its bus may keep
	// running without answering.
	CallTimeout time.Duration
}

// Manager holds the lock and reports shutdowns. It implements shutdown.Machine.
type Manager struct {
	cfg     Config
	changed func()

	mu    sync.Mutex
	state shutdown.MachineState
	// published is the state at the last call of changed.
	published shutdown.MachineState
	// lock is nil if no lock is held.
	lock *os.File
	// released is set if Release closed the lock during the pending shutdown.
	released bool
	// stored is set if systemd's store may have a copy of the lock.
	stored bool
	// stopping is set once systemd ends this service because the system goes down. From then on
	// logind's state does not matter.
	stopping bool
	problems problems

	// Only the goroutine of Run uses the following fields.

	// detectedBy is the identity of the logind that announced the pending shutdown.
	detectedBy string
	// reloaded identifies the logind process and the configuration of the last reload.
	reloaded reloadKey
}

var _ shutdown.Machine = &Manager{}

// problems has the sentences about each problem that prevents the agent from delaying shutdowns; ""
// if there is no such problem.
type problems struct {
	bus, lock, store, delay, kubelet string
}

func (p problems) list() []string {
	var list []string
	for _, problem := range []string{p.bus, p.lock, p.store, p.delay, p.kubelet} {
		if problem != "" {
			list = append(list, problem)
		}
	}
	return list
}

// New returns a Manager, which does nothing before Run.
func New(cfg Config) *Manager {
	cfg.RetryPeriod = cmp.Or(cfg.RetryPeriod, defaultRetryPeriod)
	cfg.ResyncPeriod = cmp.Or(cfg.ResyncPeriod, defaultResyncPeriod)
	cfg.CallTimeout = cmp.Or(cfg.CallTimeout, defaultCallTimeout)
	return &Manager{cfg: cfg}
}

// Run holds the lock and watches logind until ctx ends. It calls changed after each change of the
// State. It does not close the lock when it returns: a pending shutdown must not continue only
// because the agent is restarted.
func (m *Manager) Run(ctx context.Context, changed func()) error {
	m.changed = changed
	m.adopt(ctx)
	m.publish()
	wait.JitterUntilWithContext(ctx, func(ctx context.Context) {
		if err := m.session(ctx); ctx.Err() == nil {
			m.busProblem(ctx, err)
		}
	}, m.cfg.RetryPeriod, 0.5, true)
	return nil
}

// State returns the last known state of the machine.
func (m *Manager) State() shutdown.MachineState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snapshot()
}

func (m *Manager) snapshot() shutdown.MachineState {
	state := m.state
	state.Problems = m.problems.list()
	state.LockHeld = m.lock != nil
	if !state.LockHeld {
		state.LockPath = ""
	}
	return state
}

// Release lets the pending shutdown continue. It does nothing if logind reports that there is none.
func (m *Manager) Release(ctx context.Context) error {
	defer m.publish()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state.Known && !m.state.ShuttingDown {
		return nil
	}
	m.released = true
	return m.closeLock(ctx)
}

// closeLock closes the lock and its copy in systemd's store. The caller holds mu.
func (m *Manager) closeLock(ctx context.Context) error {
	if m.lock != nil {
		m.lock.Close()
		m.lock = nil
		klog.FromContext(ctx).Info("Released the shutdown lock", "path", m.state.LockPath)
	}
	if m.stored {
		if err := m.cfg.Store.Remove(StoreName); err != nil {
			return fmt.Errorf("remove the shutdown lock from systemd's store: %w", err)
		}
		m.stored = false
	}
	return nil
}

// Stopping informs the Manager that systemd stops this service because the system goes down, and
// that systemd kills the service after limit. Either logind was bypassed (`systemctl start
// reboot.target`) or its delay has passed. From then on the shutdown cannot be cancelled.
func (m *Manager) Stopping(kind string, limit time.Duration) {
	defer m.publish()
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if !m.state.ShuttingDown {
		m.state.Since = now
	}
	m.stopping, m.state.Known, m.state.ShuttingDown, m.state.Forgotten = true, true, true, false
	m.state.Deadline, m.state.Stopping = now.Add(limit), true
	if kind != "" {
		m.state.Kind = kind
	}
}

// session watches logind over one connection to the bus.
func (m *Manager) session(ctx context.Context) error {
	conn, err := systemd.ConnectBus(ctx, "")
	if err != nil {
		return err
	}
	defer conn.Close()
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	c := &client{conn: conn, timeout: m.cfg.CallTimeout}
	// Subscribe before reading, so that each later change causes a signal.
	if err := c.subscribe(ctx); err != nil {
		return err
	}
	for {
		pause := m.cfg.ResyncPeriod
		err := m.sync(ctx, c)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if !conn.Connected() {
				return err
			}
			pause = wait.Jitter(m.cfg.RetryPeriod, 0.5)
		}
		m.busProblem(ctx, err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case signal, open := <-signals:
			timer.Stop()
			if !open {
				return errors.New("connection to the bus lost")
			}
			m.handle(c, signal)
		case <-timer.C:
		}
	}
}

// handle processes the information of a signal that the following sync cannot read from logind. It
// checks the sender, since a signal can be sent directly to this client, regardless of
// subscriptions.
func (m *Manager) handle(c *client, signal *dbus.Signal) {
	if signal.Sender != c.owner {
		return
	}
	begins, kind := parsePrepare(signal)
	if begins == nil {
		return
	}
	m.observe(*begins, c.identity)
	if *begins {
		m.setKind(kind)
	}
	m.publish()
}

// sync reads the whole state from logind, and takes the lock and raises the delay if necessary.
func (m *Manager) sync(ctx context.Context, c *client) error {
	defer m.publish()
	if err := c.findOwner(ctx); err != nil {
		return err
	}
	delay, err := c.delay(ctx)
	if err != nil {
		return err
	}
	preparing, err := c.preparing(ctx)
	if err != nil {
		return err
	}
	m.setDelay(delay, preparing)
	m.observe(preparing, c.identity)
	if err := m.ensureLock(ctx, c, preparing); err != nil {
		return err
	}
	if !preparing {
		raised, err := m.ensureDelay(ctx, c, delay)
		if err != nil {
			return err
		}
		// Read this again: for a shutdown that began in the meantime, the old delay applies.
		if preparing, err = c.preparing(ctx); err != nil {
			return err
		}
		m.setDelay(raised, preparing)
		m.observe(preparing, c.identity)
	}
	if preparing {
		m.setKind(c.kind(ctx))
	}
	return nil
}

// observe stores whether a shutdown is pending, as reported by the logind with that identity.
func (m *Manager) observe(preparing bool, identity string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.Known = true
	if m.stopping {
		return
	}
	m.released = m.released && preparing
	switch {
	case preparing && !m.state.ShuttingDown:
		m.state.ShuttingDown, m.state.Forgotten = true, false
		m.state.Since, m.state.Deadline = m.resumed(time.Now())
		m.detectedBy = identity
	case preparing:
		// This is the same shutdown, or a new shutdown after a restart of logind.
		m.detectedBy = identity
	case m.state.ShuttingDown:
		m.state.ShuttingDown = false
		// Only the logind that announced a shutdown can cancel it; a restarted logind has forgotten
		// it.
		m.state.Forgotten = m.detectedBy != identity
		m.state.Since, m.state.Deadline, m.state.Kind = time.Time{}, time.Time{}, ""
	}
	// Only the first shutdown in this process can be the one that an earlier process recorded.
	m.cfg.Resume.Since, m.cfg.Resume.Deadline = time.Time{}, time.Time{}
}

// resumed returns the start and the deadline of a newly observed shutdown.
func (m *Manager) resumed(now time.Time) (since, deadline time.Time) {
	since, deadline = m.cfg.Resume.Since, m.cfg.Resume.Deadline
	latest := now.Add(m.state.Delay)
	switch {
	case since.IsZero() || deadline.IsZero():
		return now, latest
	case deadline.After(latest) || since.After(now):
		// The wall clock was set back.
		return now, latest
	default:
		return since, deadline
	}
}

func (m *Manager) setKind(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if kind != "" && m.state.ShuttingDown {
		m.state.Kind = kind
	}
}

// busProblem stores the error with which logind does not respond; nil if it responds.
func (m *Manager) busProblem(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = fmt.Sprintf("logind cannot be reached: %v.", err)
	}
	m.mu.Lock()
	if text != "" && text != m.problems.bus {
		klog.FromContext(ctx).Error(err, "Cannot reach logind, retrying")
	}
	m.problems.bus = text
	m.mu.Unlock()
	m.publish()
}

// publish calls changed if the State has changed since the last call.
func (m *Manager) publish() {
	m.mu.Lock()
	state := m.snapshot()
	same := reflect.DeepEqual(state, m.published)
	m.published = state
	m.mu.Unlock()
	if !same && m.changed != nil {
		m.changed()
	}
}
