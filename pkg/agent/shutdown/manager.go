// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package shutdown coordinates the shutdown of the machine of a node: it creates a NodeMaintenance,
// waits until the pods have left the node, ends them on the node if the API does not answer or the
// time is short, and then releases the shutdown (KEP-2712, KEP-4212).
//
// The Manager gathers the facts, decide returns the next actions, and the Manager carries them out.
// Before it acts, it stores the state that a restarted agent needs.
package shutdown

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/buckets"
	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

const (
	// maxSteps limits the changes of the state before the manager waits for an event.
	maxSteps = 16
	// releaseTimeout limits one attempt to release the shutdown.
	releaseTimeout = 5 * time.Second
	// sweepPeriod is the interval at which an idle agent checks for a maintenance that should
	// not exist.
	sweepPeriod = 5 * time.Minute
	// machineRetry is the pause between the end of Run of the Machine and the next call of Run.
	machineRetry = time.Second
	// idlePeriod and activePeriod are the maximum times between two decisions.
	idlePeriod   = 30 * time.Second
	activePeriod = time.Second
)

// Store stores the state; state.Store implements it.
type Store interface {
	Load() (state.State, error)
	Save(state.State) error
}

// Config has the dependencies and options of a Manager.
type Config struct {
	// NodeName is the name of the node, BootID identifies this boot, Version is the version of the
	// agent for messages.
	NodeName, BootID, Version string
	// All of the following are required.
	Machine Machine
	Cluster Cluster
	Store   Store
	// Priorities returns the priorities of the pods on the node, without the API. StaticPodProblem
	// returns the reason why the agent cannot stop and restart static pods at present; empty if it
	// can. Neither blocks.
	Priorities       func() []int32
	StaticPodProblem func() string
	// Local is the engine; nil means that pods are never ended without the API.
	Local Local
	// Kubelet starts the kubelet if the state, or the engine that stopped the kubelet, is lost. It
	// may be nil.
	Kubelet Kubelet
	// Buckets is the table of KEP-2712.
	Buckets buckets.Table
	// MaxShutdownDelay limits the delay. APIGracePeriod is the time without a response after which
	// the API counts as lost.
	MaxShutdownDelay, APIGracePeriod time.Duration
	// DrainBeforeShutdown is set if the agent drains the node, or evicts its pods, before it ends
	// pods on the node.
	DrainBeforeShutdown bool
	// CompleteAfterReboot is set if the agent completes the maintenances of earlier boots.
	// KeepForgotten is set if it keeps the maintenance of a shutdown that the service manager has
	// forgotten.
	CompleteAfterReboot, KeepForgotten bool
	// Configuration returns the configuration to store with every state, nil for none. The caller
	// must not change the result later.
	Configuration func() *configv1alpha1.NodeAgentConfiguration
	// Limited returns a reason and a sentence while the agent cannot end pods on the node or stop
	// static pods; both are empty otherwise.
	Limited func() (reason, message string)
	// Warnings returns sentences that the agent reports in addition to the problems of the machine.
	Warnings func() []string
	// Refused returns the number of static pods that are kept although the server requests their
	// end.
	Refused func() int
	// Wall returns the wall clock time, without a monotonic part, for stored and displayed times.
	// The default is the system clock, which can be set at any time; durations do not depend on it.
	Wall func() time.Time
	// SinceBoot returns the time since the machine booted, for the stored deadline. The default is
	// state.SinceBoot.
	SinceBoot func() time.Duration
	// Within returns the last request to shorten a shutdown, nil if there is none.
	Within func() *state.Within
}

// Status is the state of the manager, for the status page and the metrics.
type Status struct {
	State    state.State   `json:"state"`
	Why      string        `json:"why,omitempty"`
	TimeLeft time.Duration `json:"timeLeft,omitempty"`
	LockHeld bool          `json:"lockHeld"`
	Delay    time.Duration `json:"delay"`
	Problems []string      `json:"problems,omitempty"`
}

// Manager delays the shutdowns of the machine and coordinates them.
type Manager struct {
	config   Config
	settings settings

	// events carries results to the goroutine of Run; done is closed when Run has ended.
	events chan func()
	wake   chan struct{}
	done   chan struct{}
	calls  sync.WaitGroup
	// watching is set once the Machine has reported its state since its last start.
	watching atomic.Bool

	// down is closed while the shutdown is released.
	statusMu sync.Mutex
	status   Status
	down     chan struct{}
	released bool

	// The goroutine of Run owns all following fields.
	state           state.State
	dirty           bool
	loadErr         error
	saveErr         error
	machineErr      error
	releaseErr      error
	resumeErr       error
	news            news
	outcome         outcome
	why             string
	started         time.Time
	deadline        time.Time
	resumedHere     bool
	seen            MachineState
	vanishedSince   time.Time
	begun           time.Duration
	hurried         bool
	api             apiFacts
	host            hostFacts
	cordonErr       error
	refusedReported bool
	drain           *DrainState
	reportingSince  time.Time
	releasedHere    bool
	olderDone       bool
	olderSwept      bool
	sweepAt         time.Time
	engine          engineRun
	final           bool
	maintenance     slot
	lists           slot
	cordons         slot
	evicts          slot
	reports         slot
	resumes         slot
	release         pace
	conditions      map[corev1.NodeConditionType]*conditionWriter
}

// New returns a Manager that does nothing before it runs. A Manager runs once.
func New(config Config) (*Manager, error) {
	switch {
	case config.NodeName == "" || config.BootID == "":
		return nil, errors.New("the name of the node and the ID of the boot are required")
	case config.Machine == nil || config.Cluster == nil || config.Priorities == nil || config.Store == nil:
		return nil, errors.New("a machine, a cluster, the pods and a store are required")
	case config.StaticPodProblem == nil || config.Configuration == nil || config.Limited == nil || config.Warnings == nil || config.Refused == nil || config.Within == nil:
		return nil, errors.New("the static pods and the functions Configuration, Limited, Warnings, Refused and Within are required")
	case len(config.Buckets) == 0:
		return nil, errors.New("the table must have at least one bucket")
	case !config.DrainBeforeShutdown && config.Local == nil:
		return nil, errors.New("without a drain before the shutdown, an engine is required: nothing else would end the pods")
	case config.MaxShutdownDelay <= 0 || config.APIGracePeriod <= 0:
		return nil, errors.New("the maximum delay and the grace period of the API must be positive")
	}
	if config.Wall == nil {
		config.Wall = func() time.Time { return time.Now().Round(0) }
	}
	if config.SinceBoot == nil {
		config.SinceBoot = state.SinceBoot
	}
	m := &Manager{
		config: config,
		settings: settings{
			node: config.NodeName, bootID: config.BootID, buckets: config.Buckets, apiGrace: config.APIGracePeriod,
			drain: config.DrainBeforeShutdown, keepForgotten: config.KeepForgotten,
		},
		events:     make(chan func()),
		wake:       make(chan struct{}, 1),
		done:       make(chan struct{}),
		down:       make(chan struct{}),
		conditions: map[corev1.NodeConditionType]*conditionWriter{},
	}
	if config.Local != nil {
		m.settings.engine = config.Local.Name()
	}
	return m, nil
}

// Down returns a channel that is closed when the machine goes down and the agent has nothing more
// to do. A service that is stopped because of the shutdown must not end before that. If the
// shutdown fails, the channel is replaced: call Down each time.
func (m *Manager) Down() <-chan struct{} {
	m.statusMu.Lock()
	defer m.statusMu.Unlock()
	return m.down
}

// setDown closes the channel of Down, or replaces a closed channel.
func (m *Manager) setDown(down bool) {
	m.statusMu.Lock()
	defer m.statusMu.Unlock()
	switch {
	case down && !m.released:
		close(m.down)
	case !down && m.released:
		m.down = make(chan struct{})
	}
	m.released = down
}

// Status returns the state of the manager.
func (m *Manager) Status() Status {
	m.statusMu.Lock()
	defer m.statusMu.Unlock()
	return m.status
}

// Wake makes the manager decide again soon, for example because the problem of the static pods has
// changed.
func (m *Manager) Wake() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run coordinates shutdowns until the context ends. It loads the stored state first. If this fails,
// it reports the error and continues, because the agent must delay shutdowns in any case. Only if
// another version wrote the state, Run returns the error, because the agent must not overwrite that
// state.
func (m *Manager) Run(ctx context.Context) error {
	registerMetrics()
	if err := m.load(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer m.calls.Wait()
	defer close(m.done)
	defer m.settle()
	defer cancel()
	m.calls.Go(func() { m.watchMachine(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-m.events:
			f()
		case <-m.wake:
		case <-timer.C:
		}
		var next time.Time
		for changed, left := true, maxSteps; changed && left > 0; left-- {
			next, changed = m.step(ctx)
		}
		timer.Reset(max(time.Until(next), 0))
	}
}

func (m *Manager) load(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	m.started = time.Now()
	m.sweepAt = m.started.Add(sweepPeriod)
	stored, err := m.config.Store.Load()
	if err != nil {
		var version *state.VersionError
		if errors.As(err, &version) {
			return err
		}
		logger.Error(err, "Failed to load the stored state, starting without it")
		m.loadErr = err
	}
	// Write the state again: it may come from the copy that only lasts until the next boot.
	m.state, m.dirty = stored, true
	m.resumedHere = stored.BootID == m.config.BootID && stored.Phase.Pending()
	if m.resumedHere {
		logger.Info("Resuming the shutdown of an earlier process", "phase", stored.Phase)
	}
	return nil
}

// watchMachine calls Run of the Machine, again and again if it returns.
func (m *Manager) watchMachine(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := m.config.Machine.Run(ctx, func() {
			m.watching.Store(true)
			m.Wake()
		})
		if ctx.Err() != nil {
			return
		}
		m.watching.Store(false)
		if err == nil {
			err = errors.New("no reason given")
		}
		klog.FromContext(ctx).Error(err, "Failed to watch for shutdowns of the machine, retrying")
		m.post(func() { m.machineErr = err })
	}, machineRetry)
}

// post executes a function in the goroutine of Run. It returns false if Run has ended.
func (m *Manager) post(f func()) bool {
	select {
	case m.events <- f:
		return true
	case <-m.done:
		return false
	}
}

// step is one round: gather, decide, store, act. It returns the latest time of the next round, and
// whether the next round must follow immediately.
func (m *Manager) step(ctx context.Context) (next time.Time, again bool) {
	in := m.gather()
	d := decide(&m.settings, in)
	again = d.next.Phase != m.state.Phase
	if again {
		klog.FromContext(ctx).Info("Shutdown enters a phase", "from", m.state.Phase, "to", d.next.Phase, "why", d.why)
	}
	m.news = news{}
	m.outcome, m.why = d.outcome, d.why
	d.next.Configuration = m.config.Configuration()
	m.store(ctx, d.next)
	if !d.next.Phase.Pending() {
		m.setDown(false)
	}
	for _, e := range d.events {
		m.config.Cluster.Event(e.eventType, e.reason, e.message)
	}
	next = m.act(ctx, in, &d)
	m.report(in, &d)
	return next, again || m.news.released
}

// store saves a changed state. If that fails, the shutdown continues in memory, and every later
// step retries.
func (m *Manager) store(ctx context.Context, next state.State) {
	if !m.dirty && reflect.DeepEqual(m.state, next) {
		return
	}
	m.state = next
	err := m.config.Store.Save(next)
	if err != nil && m.saveErr == nil {
		klog.FromContext(ctx).Error(err, "Failed to store the state, continuing with the state in memory")
	}
	m.dirty, m.saveErr = err != nil, err
}

func (m *Manager) gather() *input {
	now, wall := time.Now(), m.config.Wall()
	machine := m.config.Machine.State()
	pending := machine.ShuttingDown || !machine.Known && m.resumedHere && m.state.Phase.Pending()
	m.keepDeadline(&machine, pending, now, wall)
	in := &input{
		state: m.state, news: m.news, machine: machine,
		now: now, wall: wall, sinceBoot: m.config.SinceBoot(), deadline: m.deadline,
		priorities: m.config.Priorities(),
		api:        m.api,
		host:       m.host,
		local:      localFacts{running: m.engine.running(), asking: m.engine.asking != nil, final: m.final || machine.Stopping},
		stopped:    m.config.Kubelet != nil && m.config.Kubelet.Stopped(),
		outcome:    m.outcome, why: m.why,
		olderDone:    m.olderDone,
		sweepDue:     !now.Before(m.sweepAt),
		uncordonDue:  m.cordons.last != taskUncordon || m.cordons.task == taskUncordon || m.cordons.due(now),
		releasedHere: m.releasedHere,
	}
	if !machine.Known {
		in.unknownFor = now.Sub(m.started)
	}
	if !pending && machine.Known && m.state.Phase.Pending() {
		if m.vanishedSince.IsZero() {
			m.vanishedSince = now
		}
		in.vanishedFor = now.Sub(m.vanishedSince)
	} else {
		m.vanishedSince = time.Time{}
	}
	in.drain = m.drain
	in.host.evicting = m.evicts.task != taskNone
	if len(m.news.killed) > 0 {
		m.reportingSince = time.Time{} // the new pods have the full time for their reports
	}
	if !m.reportingSince.IsZero() {
		in.reportingFor = now.Sub(m.reportingSince)
	}
	return in
}

// keepDeadline keeps the deadline on the monotonic clock. During one shutdown the deadline only
// becomes earlier, even if a restarted logind announces a later one.
func (m *Manager) keepDeadline(machine *MachineState, pending bool, now, wall time.Time) {
	if !pending {
		if machine.Known {
			m.deadline, m.seen, m.resumedHere = time.Time{}, MachineState{}, false
			m.releasedHere = m.releasedHere && m.state.Phase.Pending()
		}
		return
	}
	longest := m.config.MaxShutdownDelay
	if m.deadline.IsZero() {
		m.deadline, m.begun = now.Add(longest), m.config.SinceBoot()
		m.api = apiFacts{since: now}
		if m.resumedHere {
			if signal := &m.state.Signal; signal.DeadlineSinceBoot > 0 {
				m.begun = signal.DeadlineSinceBoot - signal.Deadline.Sub(signal.Time)
			}
			if remaining, ok := remainingOfStored(&m.state.Signal, wall, m.config.SinceBoot(), longest); ok {
				m.deadline = now.Add(remaining)
			}
		}
	}
	if machine.ShuttingDown && (!machine.Since.Equal(m.seen.Since) || !machine.Deadline.Equal(m.seen.Deadline) || !m.seen.ShuttingDown) {
		m.seen = *machine
		if own := now.Add(remainingOf(machine, wall, longest)); own.Before(m.deadline) {
			m.deadline = own
		}
	}
	remaining, ok := remainingWithin(m.config.Within(), m.config.BootID, m.begun, m.config.SinceBoot())
	if ok && now.Add(remaining).Before(m.deadline) {
		m.deadline = now.Add(remaining)
	}
	m.hurried = ok && m.deadline.Sub(now) < protocol.DefaultSurgeTimeout
}
