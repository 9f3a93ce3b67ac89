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
	// The engine must stop at least engineReserve before the deadline, and the agent releases the
	// shutdown at least releaseReserve before the deadline: an orderly shutdown with some pods is
	// better than a shutdown that the machine forces.
	engineReserve  = 2 * time.Second
	releaseReserve = time.Second
	// knownGrace is the time that a restarted agent waits for the state of the machine before it
	// continues a stored shutdown, which may have been cancelled in the meantime.
	knownGrace = 5 * time.Second
	// vanishedGrace is the time after which a released shutdown that the machine no longer reports
	// counts as forgotten. The agent waits because logind ends, like all services, when the machine
	// goes down.
	vanishedGrace = time.Minute
	// minFailures is the number of failed requests after which an API counts as lost.
	minFailures = 3
	// reportGrace is the longest time for which the kubelet stays stopped, or the machine stays up,
	// because the reports of ended pods fail. It begins with the first report after the last of
	// these pods has ended.
	reportGrace = 10 * time.Second
)

// settings are the inputs that are the same for all decisions.
type settings struct {
	node, bootID string
	buckets      buckets.Table
	apiGrace     time.Duration
	// drain is set if the agent drains the node, or evicts its pods, before it ends pods on the
	// node.
	drain bool
	// engine is the name of the engine; empty if there is none.
	engine        string
	keepForgotten bool
}

// outcome is the way in which the last shutdown ended.
type outcome string

const (
	outcomeNone      outcome = ""
	outcomeRebooted  outcome = "Rebooted"
	outcomeCancelled outcome = "Cancelled"
)

// task is a request about the maintenance. Only one is in flight at a time.
type task string

const (
	taskNone     task = ""
	taskEnsure   task = "ensure"
	taskDrain    task = "drain"
	taskComplete task = "complete"
	// taskOlder completes maintenances of earlier boots, and deletes the oldest ones.
	taskOlder task = "completeOlder"
	// taskSweep completes a maintenance of this boot that should not exist: the API can execute a
	// request long after the agent has given up waiting for it.
	taskSweep task = "sweep"
)

// news are results since the last decision. The next decision uses and drops them.
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

// apiFacts are the results of the requests to one API: to Haulout about the maintenance, or to
// kube-apiserver.
type apiFacts struct {
	// ok is set if the last request succeeded.
	ok bool
	// since is the time of the last success, or the time since which the agent needs the API.
	since time.Time
	// failures is the number of failed requests since the last success. refusals is the number of
	// consecutive refusals of the maintenance, up to the last request. failure is the last error.
	failures, refusals int
	failure            string
}

// localFacts are the state of the engine.
type localFacts struct {
	running bool
	// asking is set while the engine has ended a bucket and waits for the decision whether to
	// continue.
	asking bool
	// final is set if the node cannot run pods again.
	final bool
}

type input struct {
	state   state.State
	news    news
	machine MachineState
	// now, deadline and the other times are on the monotonic clock. wall is the wall clock, for the
	// stored times. sinceBoot is the time since the boot, which is stored, too.
	now, wall time.Time
	sinceBoot time.Duration
	// deadline is set during a shutdown. unknownFor is the time since the start of the agent if the
	// machine has not reported its state yet. vanishedFor is the time for which the machine has no
	// longer reported the shutdown that the agent handles.
	deadline                time.Time
	unknownFor, vanishedFor time.Duration
	priorities              []int32
	// api describes Haulout. host describes kube-apiserver while the agent needs it.
	api  apiFacts
	host hostFacts
	// drain is the last known progress of the maintenance in the state.
	drain *DrainState
	local localFacts
	// stopped is set if an engine has stopped the kubelet, possibly in a process whose state was
	// lost.
	stopped bool
	// reportingFor is the time for which the agent has tried to report ended pods since it ended
	// the last of them.
	reportingFor time.Duration
	// releasedHere is set if this process released the lock during this shutdown.
	releasedHere bool
	// olderDone is set when older maintenances were completed. sweepDue and uncordonDue are set
	// when the agent must check whether it left a maintenance or a cordon that should not exist.
	olderDone, sweepDue, uncordonDue bool
	outcome                          outcome
	why                              string
}

type event struct {
	eventType, reason, message string
}

// decision is the result of decide. The manager stores the state before it acts.
type decision struct {
	next state.State
	// maintenance is the request to send; empty for none.
	maintenance task
	// local is set if the engine must run; a running engine stops if it is not set. proceed is the
	// decision for an engine that has ended a bucket and waits.
	local, proceed bool
	// list is set if the agent must list the pods of the node through kube-apiserver. cordon and
	// uncordon are set if it must cordon or uncordon the node. evictions are the pods to evict now.
	list, cordon, uncordon bool
	evictions              []Pod
	// report is set if the agent must report ended pods, resume if it must start the kubelet again,
	// and release if it must let the shutdown continue.
	report, resume, release bool
	outcome                 outcome
	// why is the explanation of the phase in messages.
	why    string
	events []event
	// wake is the time at which the next decision is due if no event occurs before; zero if there
	// is none.
	wake time.Time
}

// decide returns the next actions. It has no side effects, so that tests can list the cases in a
// table.
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

// asked reports whether the machine has reported its state, or has had enough time to do so.
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

// afterBoot replaces the state of another boot. It drops the unreported pods of that boot: the
// kubelet has started them again, even if the API does not show this yet. A soft reboot is another
// boot as well, although the kernel keeps running.
func (d *decision) afterBoot(s *settings) {
	old := d.next
	d.next = state.State{BootID: s.bootID, Phase: state.Armed, Last: old.Last}
	if old.Phase.Pending() {
		d.outcome = outcomeRebooted
		d.event(corev1.EventTypeNormal, EventRebooted, "the machine has booted again")
	}
}

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
		// The kubelet restarts pods that were not reported. A later report would end them again.
		st.Local, st.Killed = nil, nil
	}
	if n.released && st.Phase == state.Releasing {
		st.Phase = state.Down
	}
}

// mergeKilled adds the pods that are not in the list yet: a restarted engine may repeat pods.
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

// wakeAt makes the next decision happen at t or earlier.
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
		st.Signal.Kind = in.machine.Kind // logind reports the kind after the shutdown signal
	}
	if st.Phase == state.Releasing || st.Phase == state.Down {
		// A restarted agent may have taken the lock again before it found out that an earlier
		// process had released the shutdown.
		d.release = !in.releasedHere || st.Phase == state.Releasing || in.machine.LockHeld
		return
	}
	if release := in.deadline.Add(-releaseReserve); !in.now.Before(release) {
		d.releasing(in, "the machine does not wait any longer")
		return
	}
	d.wakeAt(in.deadline.Add(-releaseReserve))
	if left := in.deadline.Sub(in.now); in.sinceBoot > 0 && st.Signal.DeadlineSinceBoot > in.sinceBoot+left+time.Second {
		// The deadline has become earlier.
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
		st.Phase = state.Detected // happens only if the file was edited by hand
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

func (d *decision) detect(in *input) {
	st := &d.next
	if st.Phase != state.Cancelled && st.Local != nil && st.Local.Done {
		// Drop the pods of an earlier boot: they run again or are gone.
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

// leaving decides while the pods should be evicted through the API: by the drain of Haulout (step
// 1), or by evictions of the agent if only Haulout does not answer (step 2).
func (d *decision) leaving(s *settings, in *input) {
	st := &d.next
	if drain := in.drain; drain != nil && drain.Drained && st.Maintenance != nil {
		switch {
		case s.engine != "" && drain.NodeGone:
			d.endLocally(s, in, "the cluster no longer has the Node, so that Haulout cannot drain it")
		case drain.NodeGone && len(in.priorities) > 0:
			d.why = "the cluster no longer has the Node; without a local engine, the shutdown waits until its pods have ended"
		case s.engine != "" && drain.PodsKept > 0:
			d.endLocally(s, in, fmt.Sprintf("the drain has ended and keeps %d pods on the node", drain.PodsKept))
		default:
			d.releasing(in, "the node is drained")
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
	// The API responds again after an interrupted local run. Report the ended pods first, so that
	// they are replaced elsewhere; but do not keep the kubelet stopped because a report fails.
	if d.mustReport(s, in) {
		d.report = true
		return
	}
	d.resume = true
}

// ended reports whether another user has completed or deleted the maintenance.
func ended(in *input) bool {
	return in.drain != nil && in.drain.Ended
}

// hauloutLost returns the reason why Haulout cannot drain the node; empty if Haulout can, or if
// this is not certain yet. If kube-apiserver sends a response that the agent cannot use, Haulout
// cannot drain the node, but the agent must not end pods locally.
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

// grace returns the time without a response after which an API counts as lost. It begins with the
// last response, or with the time at which the agent first needed the API. A shortened shutdown has
// a shorter grace period.
func (s *settings) grace(in *input, since time.Time) time.Duration {
	return min(s.apiGrace, max(in.deadline.Sub(since)/4, 0))
}

// lost reports whether the API does not respond. A single hanging request is not enough.
func (f *apiFacts) lost(s *settings, in *input) bool {
	return f.failures >= minFailures && !in.now.Before(f.since.Add(s.grace(in, f.since)))
}

func (d *decision) releasing(in *input, why string) {
	d.next.Phase = state.Releasing
	if !d.next.Last.Start.IsZero() {
		d.next.Last.End = in.wall
	}
	d.maintenance, d.local, d.report, d.resume = taskNone, false, false, false
	d.list, d.cordon, d.evictions = false, false, nil
	d.release = true
	d.why = why
	d.event(corev1.EventTypeNormal, EventReleased, "the agent stops delaying the shutdown: %s", why)
}

// vanished decides when the machine no longer reports the shutdown that the agent handles.
func (d *decision) vanished(s *settings, in *input) {
	st := &d.next
	if in.machine.Forgotten && st.Phase == state.Down && in.vanishedFor < vanishedGrace {
		d.wakeAt(in.now.Add(vanishedGrace - in.vanishedFor))
		return
	}
	d.why, st.Last = "", state.Times{}
	if st.Local != nil {
		// The engine has stopped the kubelet, which must be started even if all pods had ended.
		st.Local.Done = false
	}
	if in.machine.Forgotten && s.keepForgotten && st.Maintenance != nil {
		st.Phase, st.Signal = state.Armed, state.Signal{}
		d.event(corev1.EventTypeWarning, EventVanished,
			"the service manager was restarted and has lost the pending shutdown; NodeMaintenance %s is kept: request the shutdown again, or complete the NodeMaintenance", st.Maintenance.Name)
		d.idle(s, in)
		return
	}
	st.Phase = state.Cancelled
	if st.Maintenance == nil && s.drain {
		// A failed request may have created the maintenance.
		st.Maintenance = &state.MaintenanceRef{Name: protocol.ShutdownName(s.node, s.bootID)}
	}
	d.outcome = outcomeCancelled
	reason, message := EventCancelled, "the shutdown was cancelled"
	if in.machine.Forgotten {
		reason, message = EventVanished, "the service manager was restarted and has lost the pending shutdown, which counts as cancelled"
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
	// A maintenance that is kept after a forgotten shutdown still needs the cordon.
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
		// The maintenance is kept after a forgotten shutdown until a user completes it.
		d.maintenance = taskDrain
	case in.sweepDue:
		d.maintenance = taskSweep
	}
}
