// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/buckets"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// messagePeriod is the minimum time between two writes that change only the message: the
	// progress of a drain changes too often to write the Node after each change.
	messagePeriod = 10 * time.Second
	// conditionRetry is the pause after a failed write.
	conditionRetry = 5 * time.Second
	// conditionTimeout limits one write of a condition.
	conditionTimeout = 10 * time.Second
)

// conditionWriter keeps one condition of the node up to date.
type conditionWriter struct {
	slot slot
	// written is the last condition that was written, with its time and its step.
	written   *corev1.NodeCondition
	writtenAt time.Time
	step      string
	due       time.Time
}

// startGrace is how long the condition NodeAgentReady of an earlier process stays while this one
// does not know yet whether it can stop static pods. Without the condition, a drain would end
// without these pods.
const startGrace = 30 * time.Second

// dueAt returns when to write the condition. After a new step, the write is due immediately.
func (w *conditionWriter) dueAt(want *corev1.NodeCondition, step string) time.Time {
	switch old := w.written; {
	case old == nil || w.step != step || old.Status != want.Status || old.Reason != want.Reason:
		return time.Time{}
	case old.Message != want.Message:
		return w.writtenAt.Add(messagePeriod)
	}
	if want.Type == v1alpha1.NodeConditionAgentReady {
		// SetCondition skips this write if the heartbeat is not due.
		return w.writtenAt.Add(protocol.AgentHeartbeat)
	}
	return w.writtenAt.Add(protocol.AgentIdleHeartbeat)
}

// actConditions writes the conditions that have changed, or that need a heartbeat.
func (m *Manager) actConditions(ctx context.Context, in *input, d *decision) {
	reason, limit := m.config.Limited()
	staticProblem := cmp.Or(limit, m.config.StaticPodProblem())
	problems := m.problems(in)
	m.keepCondition(ctx, runningCondition(m.config.Version, reason, limit, &in.machine, problems), "")
	ready := readyCondition(m.config.Version, reason, staticProblem, &in.machine, problems)
	if m.conditions[ready.Type] != nil || limit != "" || staticProblem == "" || time.Since(m.started) >= startGrace {
		m.keepCondition(ctx, ready, "")
	}
	step := string(d.next.Phase)
	if d.next.Phase == state.Maintaining && in.drain != nil {
		step = "Draining" // from now on, the message has numbers
	}
	m.keepCondition(ctx, shutdownCondition(in, d), step)
}

func (m *Manager) keepCondition(ctx context.Context, want corev1.NodeCondition, step string) {
	w := m.conditions[want.Type]
	if w == nil {
		w = &conditionWriter{}
		m.conditions[want.Type] = w
	}
	w.due = w.dueAt(&want, step)
	if time.Now().Before(w.due) {
		return
	}
	m.want(ctx, &w.slot, "condition", conditionTimeout, func(ctx context.Context) func() {
		err := m.config.Cluster.SetCondition(ctx, want)
		return func() {
			if err != nil {
				klog.FromContext(ctx).V(2).Info("Failed to write a condition of the node, retrying", "condition", want.Type, "err", err)
				w.slot.next = time.Now().Add(conditionRetry)
				return
			}
			w.written, w.writtenAt, w.step = &want, time.Now(), step
			w.slot.next = time.Time{}
		}
	})
}

// problems returns a sentence for each problem that an operator should know.
func (m *Manager) problems(in *input) []string {
	problems := append(slices.Clone(in.machine.Problems), m.config.Warnings()...)
	if m.watching.Load() {
		m.machineErr = nil
	}
	for _, p := range []struct {
		what string
		err  error
	}{
		{"the stored state was lost", m.loadErr},
		{"the state cannot be stored, a restart of the agent would forget the shutdown", m.saveErr},
		{"the agent cannot watch for shutdowns of the machine", m.machineErr},
		{"the shutdown inhibitor lock cannot be released", m.releaseErr},
		{"the node cannot be made unschedulable", m.cordonErr},
		{"the pods cannot be ended on the node", m.engine.err},
		{"the kubelet cannot be started again", m.resumeErr},
	} {
		if p.err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", p.what, p.err))
		}
	}
	return problems
}

func (m *Manager) report(in *input, d *decision) {
	status := Status{
		State: d.next, Why: d.why, LockHeld: in.machine.LockHeld, Delay: in.machine.Delay, Problems: m.problems(in),
	}
	if d.next.Phase.Pending() {
		status.TimeLeft = max(in.deadline.Sub(in.now), 0)
	}
	m.statusMu.Lock()
	m.status = status
	m.statusMu.Unlock()
	recordMetrics(&status, m.config.Buckets, in.priorities)
}

var (
	lockHeld = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "lock_held",
		Help:           "1 while the node agent delays shutdowns of the machine, else 0.",
		StabilityLevel: metrics.ALPHA,
	})
	delaySeconds = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "shutdown_delay_seconds",
		Help:           "Maximum time that the machine waits for the node agent before it shuts down.",
		StabilityLevel: metrics.ALPHA,
	})
	phaseActive = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "shutdown_phase",
		Help:           "1 for the current phase of the shutdown, else 0. Armed means that no shutdown is pending.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"phase"})
	secondsLeft = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "shutdown_seconds_left",
		Help:           "Seconds until the machine goes down regardless of the node agent; 0 if no shutdown is pending.",
		StabilityLevel: metrics.ALPHA,
	})
	podsLeft = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "pods",
		Help:           "Pods on the node, by the lowest priority of their bucket in the configured table.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"bucket"})
	problemCount = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "problems",
		Help:           "Problems that the node agent reports in the node condition NodeAgentReady.",
		StabilityLevel: metrics.ALPHA,
	})
	startTime = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "graceful_shutdown_start_time_seconds",
		Help:           "Start of the last shutdown of the machine that was not cancelled, even if it was before the last boot, in Unix time; 0 if there was none.",
		StabilityLevel: metrics.ALPHA,
	})
	endTime = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "graceful_shutdown_end_time_seconds",
		Help:           "Time at which the node agent released the last shutdown, in Unix time; 0 if the machine went down before the node agent released the shutdown.",
		StabilityLevel: metrics.ALPHA,
	})
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(lockHeld, delaySeconds, phaseActive, secondsLeft, podsLeft, problemCount, startTime, endTime)
	})
)

func recordMetrics(status *Status, table buckets.Table, priorities []int32) {
	lockHeld.Set(oneIf(status.LockHeld))
	delaySeconds.Set(status.Delay.Seconds())
	secondsLeft.Set(status.TimeLeft.Seconds())
	problemCount.Set(float64(len(status.Problems)))
	startTime.Set(unixOf(status.State.Last.Start))
	endTime.Set(unixOf(status.State.Last.End))
	for _, phase := range state.Phases {
		phaseActive.WithLabelValues(string(phase)).Set(oneIf(phase == status.State.Phase))
	}
	counts := make([]int, len(table))
	for _, p := range priorities {
		counts[table.Index(p)]++
	}
	for i, b := range table {
		podsLeft.WithLabelValues(strconv.FormatInt(int64(b.Priority), 10)).Set(float64(counts[i]))
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// unixOf returns the Unix time, 0 for the zero time.
func unixOf(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
