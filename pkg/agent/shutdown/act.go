// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

// Pauses between two attempts. Several requests must fit into the grace period of an API.
const (
	ensureRetry  = time.Second
	drainPeriod  = 2 * time.Second
	keptPeriod   = 30 * time.Second
	undoRetry    = 2 * time.Second
	olderRetry   = 10 * time.Second
	reportRetry  = 2 * time.Second
	resumeRetry  = 2 * time.Second
	engineRetry  = time.Second
	releaseRetry = 200 * time.Millisecond
	// resumeTimeout limits one attempt to start the kubelet.
	resumeTimeout = 30 * time.Second
	// maxRequestTimeout limits a request of a shutdown. minGrace is the minimum time for several
	// requests.
	maxRequestTimeout = 3 * time.Second
	minGrace          = time.Second
)

// pace limits how often an action is tried.
type pace struct {
	next time.Time
}

func (p *pace) due(now time.Time) bool {
	return !now.Before(p.next)
}

// slot is a kind of call of which only one is in flight at a time. The calls run in their own
// goroutines, so that an API that does not answer never delays a decision.
type slot struct {
	pace
	// task is the call in flight; empty if there is none. last is the previous one.
	task, last task
	cancel     context.CancelFunc
	// abandoned is set if the last call was cancelled in favor of a different one.
	abandoned bool
}

// want starts a call if the call is due and the slot has no call in flight. It cancels a call of
// another task in flight; the new call starts after the old one has returned.
func (m *Manager) want(ctx context.Context, s *slot, t task, timeout time.Duration, call func(context.Context) func()) {
	if s.task != taskNone {
		if s.task != t {
			s.cancel()
		}
		return
	}
	if t == taskNone || t == s.last && !s.due(time.Now()) {
		return
	}
	// Let a started call complete even if the agent ends, for example the write of a condition.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	s.task, s.last, s.cancel = t, t, cancel
	m.calls.Go(func() {
		defer cancel()
		result := call(ctx)
		abandoned := errors.Is(ctx.Err(), context.Canceled)
		m.post(func() {
			s.task, s.abandoned = taskNone, abandoned
			result()
		})
	})
}

// settle waits a short time for the calls in flight, which may write the last condition, and then
// cancels them.
func (m *Manager) settle() {
	// The node's API server may be one of the pods that have ended.
	if local := m.state.Local; m.state.Phase.Pending() && local != nil && local.Bucket >= m.settings.criticalBucket() {
		m.cancelCalls()
		return
	}
	deadline := time.NewTimer(time.Second)
	defer deadline.Stop()
	writing := func() bool {
		for _, w := range m.conditions {
			if w.slot.task != taskNone {
				return true
			}
		}
		return false
	}
	for writing() {
		select {
		case f := <-m.events:
			f()
			continue
		case <-deadline.C:
		}
		break
	}
	m.cancelCalls()
}

func (m *Manager) cancelCalls() {
	for _, s := range m.slots() {
		if s.task != taskNone {
			s.cancel()
		}
	}
}

func (m *Manager) slots() []*slot {
	slots := []*slot{&m.maintenance, &m.lists, &m.cordons, &m.evicts, &m.reports, &m.resumes}
	for _, w := range m.conditions {
		slots = append(slots, &w.slot)
	}
	return slots
}

// act carries out a decision, and returns the latest time of the next decision.
func (m *Manager) act(ctx context.Context, in *input, d *decision) time.Time {
	m.actLocal(ctx, d)
	m.actMaintenance(ctx, d)
	m.actHost(ctx, d)
	m.actReport(ctx, d)
	m.actResume(ctx, in, d)
	m.actConditions(ctx, in, d)
	// Release the shutdown last, after the agent has begun to write the condition that reports it.
	m.actRelease(ctx, in, d)
	return m.nextWake(in, d)
}

func (m *Manager) nextWake(in *input, d *decision) time.Time {
	next := in.now.Add(idlePeriod)
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if d.next.Phase.Pending() || d.next.Phase == state.Cancelled || m.dirty {
		earlier(in.now.Add(activePeriod))
	}
	if !d.wake.IsZero() {
		earlier(d.wake)
	}
	for _, s := range m.slots() {
		if s.task == taskNone && s.next.After(in.now) {
			earlier(s.next)
		}
	}
	for _, w := range m.conditions {
		if w.slot.task == taskNone && w.due.After(in.now) {
			earlier(w.due)
		}
	}
	if d.release && m.release.next.After(in.now) {
		earlier(m.release.next)
	}
	if d.local && !m.engine.running() && m.engine.next.After(in.now) {
		earlier(m.engine.next)
	}
	return next
}

func (m *Manager) actMaintenance(ctx context.Context, d *decision) {
	var ref state.MaintenanceRef
	if d.next.Maintenance != nil {
		ref = *d.next.Maintenance
	}
	request := MaintenanceRequest{BootID: m.config.BootID, Reason: shutdownReason(d.next.Signal.Kind)}
	if !m.hurried {
		// In a shortened shutdown, no entry of the table waits for another one: a pod whose turn
		// comes too late ends on the node, before its replacement has even been created.
		request.DrainPlan = m.config.Buckets.DrainPlan()
	}
	shutdown := d.next.Phase.Pending()
	timeout := m.requestTimeout()
	if !shutdown {
		timeout = m.config.APIGracePeriod // the agent may have to read many maintenances
	}
	m.want(ctx, &m.maintenance, d.maintenance, timeout, func(ctx context.Context) func() {
		switch d.maintenance {
		case taskEnsure:
			ensured, err := m.config.Cluster.EnsureMaintenance(ctx, request)
			return func() {
				m.answered(ctx, err, ensureRetry)
				if err == nil {
					// An adopted maintenance still has the progress of an earlier shutdown.
					m.news.ensured, m.drain = &ensured, nil
				}
			}
		case taskDrain:
			drain, err := m.drainOf(ctx, ref)
			return func() {
				period := drainPeriod
				if !shutdown {
					period = keptPeriod
				}
				m.answered(ctx, err, period)
				if err == nil {
					m.drain = &drain
				}
			}
		case taskComplete, taskSweep:
			return m.complete(ctx, d.maintenance, ref)
		default:
			completed, err := m.endOlder(ctx)
			return func() {
				m.answered(ctx, err, olderRetry)
				m.olderDone = err == nil
				if completed > 0 {
					klog.FromContext(ctx).Info("Completed the maintenances of earlier shutdowns", "count", completed)
				}
			}
		}
	})
}

// drainOf returns the progress of the drain. A server that is older than the agent does not read
// the list of kept static pods, and waits for these pods. So the node also counts as drained if the
// server waits only for the static pods that the agent keeps.
func (m *Manager) drainOf(ctx context.Context, ref state.MaintenanceRef) (DrainState, error) {
	drain, err := m.config.Cluster.Drain(ctx, ref)
	if err != nil || drain.Ended || drain.Drained || drain.PodsLeft == 0 || m.config.Refused() != drain.PodsLeft {
		return drain, err
	}
	list, err := m.config.Cluster.Pods(ctx)
	if err == nil && !slices.ContainsFunc(list, func(pod Pod) bool { return !pod.Stays }) {
		drain.Drained, drain.PodsLeft, drain.PodsKept = true, 0, drain.PodsKept+drain.PodsLeft
	}
	return drain, nil
}

// endOlder completes the maintenances of earlier boots, unless the configuration leaves this to
// users, and deletes the oldest ones.
func (m *Manager) endOlder(ctx context.Context) (completed int, err error) {
	if m.config.CompleteAfterReboot {
		completed, err = m.config.Cluster.CompleteOlder(ctx, m.config.BootID)
	}
	return completed, errors.Join(err, m.config.Cluster.DeleteOldest(ctx, m.config.BootID))
}

func (m *Manager) complete(ctx context.Context, t task, ref state.MaintenanceRef) func() {
	if t == taskSweep {
		ref = state.MaintenanceRef{Name: protocol.ShutdownName(m.config.NodeName, m.config.BootID)}
	}
	err := m.config.Cluster.Complete(ctx, ref)
	// The API may execute a request of the last boot after this boot has completed the older
	// maintenances. Check for that once only, since an older server reads all maintenances for it.
	older := t == taskSweep && !m.olderSwept && m.config.CompleteAfterReboot
	if err == nil && older {
		_, err = m.config.Cluster.CompleteOlder(ctx, m.config.BootID)
	}
	return func() {
		m.answered(ctx, err, undoRetry)
		if err != nil {
			return
		}
		m.news.completed = t == taskComplete
		m.olderSwept = m.olderSwept || older
		m.sweepAt = time.Now().Add(sweepPeriod)
	}
}

// answered records the result of a request about the maintenance, and the time of the next request.
func (m *Manager) answered(ctx context.Context, err error, retry time.Duration) {
	now := time.Now()
	m.maintenance.next = now.Add(m.pause(retry))
	if err == nil {
		m.api = apiFacts{ok: true, since: now}
		m.refusedReported = false
		return
	}
	if m.maintenance.abandoned {
		return
	}
	klog.FromContext(ctx).V(2).Info("A request about the maintenance failed", "request", m.maintenance.last, "err", err)
	m.api.ok, m.api.failure = false, err.Error()
	m.api.failures++
	refused := errors.Is(err, ErrRefused)
	if refused {
		m.api.refusals++
	} else {
		m.api.refusals = 0
	}
	if refused && !m.refusedReported {
		m.refusedReported = true
		m.config.Cluster.Event(corev1.EventTypeWarning, EventRefused, err.Error())
	}
}

func (m *Manager) actReport(ctx context.Context, d *decision) {
	if !d.report {
		// Keep the time while the kubelet is being started because reports took too long: otherwise
		// they would be due again, and cancel the start.
		if !d.resume {
			m.reportingSince = time.Time{}
		}
		m.want(ctx, &m.reports, taskNone, 0, nil)
		return
	}
	if m.reportingSince.IsZero() {
		m.reportingSince = time.Now()
	}
	var pods []state.KilledPod
	for _, pod := range d.next.Killed {
		if !pod.Reported {
			pods = append(pods, pod)
		}
	}
	var since time.Time
	if d.next.Local != nil {
		since = d.next.Local.Started
	}
	m.want(ctx, &m.reports, "report", m.config.APIGracePeriod, func(ctx context.Context) func() {
		reported, err := m.config.Cluster.ReportKilled(ctx, pods, since)
		return func() {
			m.news.reported = append(m.news.reported, reported...)
			m.reports.next = time.Time{}
			if err != nil {
				klog.FromContext(ctx).Error(err, "Failed to report pods that were ended on the node", "reported", len(reported), "pods", len(pods))
				m.reports.next = time.Now().Add(reportRetry)
			}
		}
	})
}

func (m *Manager) actResume(ctx context.Context, in *input, d *decision) {
	if !d.resume {
		m.resumeErr = nil
	}
	if !d.resume || m.engine.running() {
		m.want(ctx, &m.resumes, taskNone, 0, nil)
		return
	}
	m.want(ctx, &m.resumes, "resume", resumeTimeout, func(ctx context.Context) func() {
		var err error
		if in.stopped {
			err = m.config.Kubelet.Start(ctx)
		} else {
			err = m.config.Local.Resume(ctx)
		}
		return func() {
			m.resumes.next = time.Time{}
			m.resumeErr = err
			if err == nil {
				m.news.resumed = true
				return
			}
			klog.FromContext(ctx).Error(err, "Failed to start the kubelet again, retrying")
			m.resumes.next = time.Now().Add(resumeRetry)
			m.final = errors.Is(err, ErrFinal)
		}
	})
}

func (m *Manager) actRelease(ctx context.Context, in *input, d *decision) {
	if !d.release {
		m.releaseErr = nil
		return
	}
	if !m.release.due(in.now) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	m.releaseErr = m.config.Machine.Release(ctx)
	m.release.next = time.Now().Add(releaseRetry)
	if m.releaseErr != nil {
		klog.FromContext(ctx).Error(m.releaseErr, "Failed to release the shutdown inhibitor lock, retrying")
		return
	}
	m.releasedHere, m.news.released = true, true
	m.release.next = time.Time{}
	m.setDown(true)
}
