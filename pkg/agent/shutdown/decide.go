// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/agent/buckets"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

const (
	// localReserve is the time between the end of the last bucket and the deadline: stopping the
	// kubelet and the containers of the last bucket takes longer than planned.
	localReserve = 5 * time.Second
	// engineReserve is how long before the deadline the engine must have ended, and releaseReserve
	// is how long before it the lock is released at the latest: an orderly shutdown with some pods
	// is better than one that the machine forces.
	engineReserve  = 2 * time.Second
	releaseReserve = time.Second
	// knownGrace is how long a restarted agent waits for the machine before it continues the
	// shutdown that it has stored: until then the shutdown may have been cancelled.
	knownGrace = 5 * time.Second
	// vanishedGrace is how long a released shutdown may be unknown to the machine before it counts
	// as forgotten: the services of a machine that goes down end, logind as well.
	vanishedGrace = time.Minute
	// minFailures is how many requests have to fail before an API counts as lost.
	minFailures = 3
	// reportGrace is how long the kubelet stays stopped at most because a report fails.
	reportGrace = 10 * time.Second
)

// settings are what decisions depend on and what does not change.
type settings struct {
	node, bootID string
	buckets      buckets.Table
	apiGrace     time.Duration
	// drain: pods are drained or evicted before they are ended on the node.
	drain bool
	// engine is the name of the engine, empty if there is none.
	engine        string
	keepForgotten bool
}

// outcome is how the last shutdown ended.
type outcome string

const (
	outcomeNone      outcome = ""
	outcomeRebooted  outcome = "Rebooted"
	outcomeCancelled outcome = "Cancelled"
)

// task is a request about the maintenance. There is one at a time.
type task string

const (
	taskNone     task = ""
	taskEnsure   task = "ensure"
	taskDrain    task = "drain"
	taskComplete task = "complete"
	// taskOlder completes maintenances of earlier boots, and deletes the oldest ones.
	taskOlder task = "completeOlder"
	// taskSweep completes a maintenance of this boot that should not exist: the API can execute a
	// request long after the agent has given it up.
	taskSweep task = "sweep"
)

// news are results that came in since the last decision. Each is used once.
type news struct {
	ensured   *state.MaintenanceRef
	completed bool
	progress  *state.Local
	killed    []state.KilledPod
	ended     bool
	reported  []state.KilledPod
	resumed   bool
	released  bool
}

// apiFacts report how an API answers: Haulout about the maintenance, or kube-apiserver.
type apiFacts struct {
	// ok: the last request succeeded.
	ok bool
	// since is the time of the last success, or the time since which the API is needed.
	since time.Time
	// failures is how many requests have failed since the last success, refusals with how many of
	// them, up to the last one, the API has refused the maintenance. failure is the last error.
	failures, refusals int
	failure            string
}

// localFacts report what the engine does.
type localFacts struct {
	running bool
	// asking: the engine has ended a bucket and waits for the answer whether to continue.
	asking bool
	// final: the node cannot run pods again.
	final bool
}

// input is everything that a decision depends on.
type input struct {
	state   state.State
	news    news
	machine MachineState
	// now, deadline and the other times are on the monotonic clock; wall is what a clock on the
	// wall shows, for the times that are stored.
	// sinceBoot is the time since the boot, for the same.
	now, wall time.Time
	sinceBoot time.Duration
	// deadline is set during a shutdown. unknownFor is how long the machine has not answered since
	// the agent started, vanishedFor how long a shutdown that the agent works on is gone.
	deadline                time.Time
	unknownFor, vanishedFor time.Duration
	priorities              []int32
	// api is Haulout, host is kube-apiserver while it is asked.
	api  apiFacts
	host hostFacts
	// drain is the last answer about the maintenance of the state.
	drain *DrainState
	local localFacts
	// stopped: an engine has stopped the kubelet, perhaps one of a process of which no state is
	// left.
	stopped bool
	// reportingFor is how long the agent has tried to report pods.
	reportingFor time.Duration
	// releasedHere: this process has released the lock during this shutdown.
	releasedHere bool
	// olderDone: older maintenances were completed. sweepDue and uncordonDue: it is time to look
	// for a maintenance, or a cordon of the agent, that should not exist.
	olderDone, sweepDue, uncordonDue bool
	outcome                          outcome
	why                              string
}

// event is an event about the node.
type event struct {
	eventType, reason, message string
}

// decision is what to do. The state is stored before anything is done.
type decision struct {
	next state.State
	// maintenance is the request that is due.
	maintenance task
	// local: the engine has to run; if it runs and local is false, it has to stop. proceed answers
	// an engine that asks.
	local, proceed bool
	// list: kube-apiserver has to list the pods of the node. cordon and uncordon are about the
	// node, evictions are the pods that are asked to leave now.
	list, cordon, uncordon bool
	evictions              []Pod
	// report, resume and release: what the names say.
	report, resume, release bool
	outcome                 outcome
	// why is the reason of the phase, for people.
	why    string
	events []event
	// wake is the next time at which the decision changes by itself; zero if there is none.
	wake time.Time
}

// decide returns what to do. It does nothing else, so that every case can be a row of a table.
func decide(s *settings, in *input) decision {
	d := decision{next: cloneState(&in.state), outcome: in.outcome, why: in.why}
	if d.next.BootID != s.bootID {
		d.afterBoot(s)
	}
	d.absorb(in)
	st := &d.next
	if in.stopped && st.Local == nil && in.asked() {
		st.Local = &state.Local{Started: in.wall}
	}
	if in.machine.Known || in.machine.LockPath != "" {
		st.LockPath = in.machine.LockPath
	}
	switch {
	case in.machine.ShuttingDown:
		d.shutdown(s, in)
	case !st.Phase.Pending():
		d.idle(s, in)
	case !in.machine.Known:
		if in.unknownFor >= knownGrace {
			d.shutdown(s, in)
		} else {
			d.wakeAt(in.now.Add(knownGrace - in.unknownFor))
		}
	default:
		d.vanished(s, in)
	}
	return d
}

// asked reports whether the machine has been asked whether a shutdown is pending, or does not
// answer.
func (in *input) asked() bool {
	return in.machine.Known || in.unknownFor >= knownGrace
}

func cloneState(st *state.State) state.State {
	c := *st
	if st.Maintenance != nil {
		ref := *st.Maintenance
		c.Maintenance = &ref
	}
	if st.Local != nil {
		local := *st.Local
		c.Local = &local
	}
	c.Killed = slices.Clone(st.Killed)
	return c
}

// afterBoot replaces the state of another boot. Pods of that one that were not reported are not
// reported any more: the kubelet has started them again, and the API may not know that yet. A boot
// that the kernel has survived, a soft reboot, is another boot.
func (d *decision) afterBoot(s *settings) {
	old := d.next
	d.next = state.State{BootID: s.bootID, Phase: state.Armed, Last: old.Last}
	if old.Phase.Pending() {
		d.outcome = outcomeRebooted
		d.event(corev1.EventTypeNormal, EventRebooted, "the machine has booted again")
	}
}

// absorb adds the news to the state.
func (d *decision) absorb(in *input) {
	st, n := &d.next, &in.news
	if n.ensured != nil {
		ref := *n.ensured
		st.Maintenance = &ref
	}
	if n.completed && !st.Phase.Pending() {
		st.Maintenance = nil
	}
	running := st.Phase == state.LocalRun && st.Local != nil
	if n.progress != nil && running {
		st.Local.Bucket, st.Local.Done = n.progress.Bucket, n.progress.Done
	}
	st.Killed = mergeKilled(st.Killed, n.killed)
	st.Killed = markReported(st.Killed, n.reported)
	if n.ended && running {
		st.Local.Done = true
	}
	if n.resumed {
		// The kubelet restarts pods that were not reported. A report would end them again.
		st.Local, st.Killed = nil, nil
	}
	if n.released && st.Phase == state.Releasing {
		st.Phase = state.Down
	}
}

// mergeKilled adds the pods that are not in the list yet: the engine may repeat itself after it was
// restarted.
func mergeKilled(list, more []state.KilledPod) []state.KilledPod {
	for _, pod := range more {
		if !wasKilled(list, pod.UID) {
			list = append(list, pod)
		}
	}
	return list
}

func markReported(list, reported []state.KilledPod) []state.KilledPod {
	for i := range list {
		list[i].Reported = list[i].Reported || wasKilled(reported, list[i].UID)
	}
	return list
}

func unreported(pods []state.KilledPod) bool {
	return slices.ContainsFunc(pods, func(p state.KilledPod) bool { return !p.Reported })
}

func (d *decision) event(eventType, reason, format string, args ...any) {
	d.events = append(d.events, event{eventType, reason, fmt.Sprintf(format, args...)})
}

// wakeAt makes sure that the next decision is not later.
func (d *decision) wakeAt(t time.Time) {
	if d.wake.IsZero() || t.Before(d.wake) {
		d.wake = t
	}
}

// shutdown decides while a shutdown is pending.
func (d *decision) shutdown(s *settings, in *input) {
	st := &d.next
	if !st.Phase.Pending() {
		d.detect(in)
	}
	if st.Signal.Kind == "" {
		st.Signal.Kind = in.machine.Kind // logind tells it after the signal
	}
	if st.Phase == state.Releasing || st.Phase == state.Down {
		// A restarted agent may have taken the lock again before it knew that it had released it.
		d.release = !in.releasedHere || st.Phase == state.Releasing || in.machine.LockHeld
		return
	}
	if release := in.deadline.Add(-releaseReserve); !in.now.Before(release) {
		d.releasing(in, "the machine does not wait any longer")
		return
	}
	d.wakeAt(in.deadline.Add(-releaseReserve))
	if left := in.deadline.Sub(in.now); in.sinceBoot > 0 && st.Signal.DeadlineSinceBoot > in.sinceBoot+left+time.Second {
		// The deadline has come closer.
		st.Signal.Deadline, st.Signal.DeadlineSinceBoot = in.wall.Add(left), in.sinceBoot+left
	}
	if !s.drain {
		if st.Phase == state.LocalRun {
			d.localRun(s, in)
		} else {
			d.endLocally(s, in, "drainBeforeShutdown is false")
		}
		return
	}
	d.maintenance = taskEnsure
	if st.Refused {
		d.maintenance = taskNone
	}
	if st.Phase == state.Maintaining && st.Maintenance == nil {
		st.Phase = state.Detected // only after the file was changed by hand
	}
	if st.Maintenance != nil && st.Maintenance.UID != "" {
		d.maintenance = taskDrain
		if st.Phase == state.Detected {
			st.Phase = state.Maintaining
			d.why = ""
			d.event(corev1.EventTypeNormal, EventDraining, "NodeMaintenance %s drains the node before it shuts down", st.Maintenance.Name)
		}
	}
	if st.Phase == state.LocalRun {
		d.localRun(s, in)
	} else {
		d.leaving(s, in)
	}
}

// detect starts a shutdown.
func (d *decision) detect(in *input) {
	st := &d.next
	if st.Phase != state.Cancelled && st.Local != nil && st.Local.Done {
		// What is left of an earlier boot: those pods run again or are gone.
		st.Local, st.Killed = nil, nil
	}
	st.Phase, st.Maintenance, st.Refused = state.Detected, nil, false
	st.Last = state.Times{Start: in.wall}
	left := in.deadline.Sub(in.now)
	st.Signal = state.Signal{Kind: in.machine.Kind, Time: in.wall, Deadline: in.wall.Add(left)}
	if in.sinceBoot > 0 {
		st.Signal.DeadlineSinceBoot = in.sinceBoot + left
	}
	d.outcome, d.why = outcomeNone, ""
	d.event(corev1.EventTypeNormal, EventDetected, "%s: pods have until %s to leave",
		shutdownReason(in.machine.Kind), st.Signal.Deadline.UTC().Format(time.RFC3339))
}

// leaving decides while the pods leave through the API, or should: by the drain of Haulout (step
// 1), or by evictions of the agent's own if only Haulout does not answer (step 2).
func (d *decision) leaving(s *settings, in *input) {
	st := &d.next
	if drain := in.drain; drain != nil && drain.Drained && st.Maintenance != nil {
		if drain.PodsKept == 0 || s.engine == "" {
			d.releasing(in, "the node is drained")
		} else {
			d.endLocally(s, in, fmt.Sprintf("the drain has ended and keeps %d pods on the node", drain.PodsKept))
		}
		return
	}
	lost := d.hauloutLost(s, in)
	d.list = lost != "" || in.api.failures > 0 || st.Phase == state.Evicting
	if why := d.localDue(s, in, lost); why != "" {
		switch {
		case s.engine != "":
			d.endLocally(s, in, why)
		case len(in.priorities) == 0:
			d.releasing(in, why+", and nothing is left to do")
		default:
			d.why = why + "; without a local engine, the shutdown waits until its deadline"
		}
		return
	}
	d.why = lost
	if due := in.api.since.Add(s.grace(in, in.api.since)); lost == "" && due.After(in.now) {
		d.wakeAt(due)
	}
	switch {
	case lost == "" && st.Phase == state.Evicting && in.drain != nil && st.Maintenance != nil:
		st.Phase = state.Maintaining
		d.event(corev1.EventTypeNormal, EventDraining, "Haulout answers again: NodeMaintenance %s continues with the remaining pods", st.Maintenance.Name)
	case lost == "" && st.Phase != state.Evicting:
	case in.host.ok:
		if !d.evicting(s, in, lost) {
			return
		}
	}
	if st.Local == nil || in.local.running {
		return
	}
	// The API is back after an interrupted run. Pods that are reported first stay down, and are
	// replaced elsewhere; but a report that fails must not keep the kubelet stopped.
	if unreported(st.Killed) && in.reportingFor < min(s.apiGrace, reportGrace) {
		d.report = true
		return
	}
	d.resume = true
}

// ended reports whether another user has ended the maintenance.
func ended(in *input) bool {
	return in.drain != nil && in.drain.Ended
}

// hauloutLost returns why Haulout cannot drain the node, empty if it can or that is not certain
// yet. Each answer of kube-apiserver that is of no use comes to this, and never to a local end.
func (d *decision) hauloutLost(s *settings, in *input) string {
	switch st := &d.next; {
	case ended(in) && st.Maintenance != nil:
		return fmt.Sprintf("NodeMaintenance %s was ended by another user", st.Maintenance.Name)
	case st.Refused || in.api.refusals >= minFailures:
		return "the API refuses the NodeMaintenance" + prefixed(": ", in.api.failure)
	case in.api.lost(s, in):
		return fmt.Sprintf("Haulout has not answered for %s", in.now.Sub(in.api.since).Round(time.Second)) + prefixed(": ", in.api.failure)
	}
	return ""
}

// grace returns how long an API may fail that has answered last, or is needed, since a time. A
// shutdown that was shortened cannot wait that long.
func (s *settings) grace(in *input, since time.Time) time.Duration {
	return min(s.apiGrace, max(in.deadline.Sub(since)/4, 0))
}

// lost reports whether the API does not answer. One request that hangs says nothing.
func (f *apiFacts) lost(s *settings, in *input) bool {
	return f.failures >= minFailures && !in.now.Before(f.since.Add(s.grace(in, f.since)))
}

// releasing lets the shutdown continue.
func (d *decision) releasing(in *input, why string) {
	d.next.Phase = state.Releasing
	if !d.next.Last.Start.IsZero() {
		d.next.Last.End = in.wall
	}
	d.maintenance, d.local, d.report, d.resume = taskNone, false, false, false
	d.list, d.cordon, d.evictions = false, false, nil
	d.release = true
	d.why = why
	d.event(corev1.EventTypeNormal, EventReleased, "lets the machine shut down: %s", why)
}

// vanished decides when the shutdown that the agent works on is not pending any more.
func (d *decision) vanished(s *settings, in *input) {
	st := &d.next
	if in.machine.Forgotten && st.Phase == state.Down && in.vanishedFor < vanishedGrace {
		d.wakeAt(in.now.Add(vanishedGrace - in.vanishedFor))
		return
	}
	d.why, st.Last = "", state.Times{}
	if st.Local != nil {
		// The kubelet is stopped, also if all pods had ended: it has to be started.
		st.Local.Done = false
	}
	if in.machine.Forgotten && s.keepForgotten && st.Maintenance != nil {
		st.Phase, st.Signal = state.Armed, state.Signal{}
		d.event(corev1.EventTypeWarning, EventVanished,
			"the service manager was restarted and has forgotten the shutdown; NodeMaintenance %s stays: request the shutdown again, or complete it", st.Maintenance.Name)
		d.idle(s, in)
		return
	}
	st.Phase = state.Cancelled
	if st.Maintenance == nil && s.drain {
		// A request that failed may have created it.
		st.Maintenance = &state.MaintenanceRef{Name: protocol.ShutdownName(s.node, s.bootID)}
	}
	d.outcome = outcomeCancelled
	reason, message := EventCancelled, "the shutdown was cancelled"
	if in.machine.Forgotten {
		reason, message = EventVanished, "the service manager was restarted and has forgotten the shutdown, which counts as cancelled"
	}
	d.event(corev1.EventTypeNormal, reason, "%s", message)
	d.idle(s, in)
}

// idle decides while no shutdown is pending.
func (d *decision) idle(s *settings, in *input) {
	st := &d.next
	if st.Phase == "" {
		st.Phase = state.Armed
	}
	if st.Local != nil {
		if s.engine == "" && !in.stopped {
			st.Local, st.Killed = nil, nil
		} else {
			d.resume = !in.local.running
		}
	}
	// The node stays closed for a maintenance that is kept after a forgotten shutdown.
	d.uncordon = in.uncordonDue && in.asked() && (st.Phase == state.Cancelled || st.Maintenance == nil)
	if st.Phase == state.Cancelled {
		if st.Maintenance != nil {
			d.maintenance = taskComplete
		} else if st.Local == nil {
			st.Phase, st.Signal = state.Armed, state.Signal{}
		}
		return
	}
	if ended(in) {
		st.Maintenance = nil
	}
	switch {
	case !in.olderDone:
		d.maintenance = taskOlder
	case st.Maintenance != nil:
		// Kept after a forgotten shutdown, until a user ends it.
		d.maintenance = taskDrain
	case in.sweepDue:
		d.maintenance = taskSweep
	}
}
