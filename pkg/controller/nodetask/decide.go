// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/host/rights"
)

// facts are the inputs of the decision about a node.
type facts struct {
	now time.Time
	// served is the time for which this leader has served.
	served time.Duration
	// heard is the time at which this leader has seen the times of the task change, and entered
	// that at which it has seen the time of the state change; zero if it has not.
	heard, entered time.Time
	// task is the NodeTask, and node the node; nil if it does not exist.
	task *v1alpha1.NodeTask
	node *corev1.Node
	// owner is the maintenance of the task, nil if it does not exist. selected is set if it selects
	// the node.
	owner    *v1alpha1.NodeMaintenance
	selected bool
	// tasks returns all NodeTasks of the owner, by node. The status of the owner may be older.
	tasks func() map[string]*v1alpha1.NodeTask
	// holding are the maintenances that select and hold the node.
	holding []*v1alpha1.NodeMaintenance
	// assigns reports, by the UID of each maintenance in holding that has a task, whether its
	// requester may assign workers of the class of the task.
	assigns map[types.UID]rights.Answer
	// volumes is the number of the volumes that are attached to the node.
	volumes int
	// doneWhen evaluates the condition of a task for the node. An error counts as false.
	doneWhen func(expression string, before v1alpha1.NodeVersions) (bool, error)
	// isLive is set after the live read for a claim, and refusal is the reason why the claim must
	// not be granted, "" if there is none.
	isLive  bool
	refusal string
}

type step int

const (
	_ step = iota
	// stepOffer creates a NodeTask for decision.maintenance.
	stepOffer
	// stepLook reads the node live, and then decides again.
	stepLook
	// stepWrite writes decision.status.
	stepWrite
	// stepDelete deletes the NodeTask.
	stepDelete
	// stepRelease completes the maintenance, because no worker has claimed its node.
	stepRelease
)

// decision is the next step. The zero value means that there is none.
type decision struct {
	step        step
	maintenance *v1alpha1.NodeMaintenance
	status      v1alpha1.NodeTaskStatus
	// event is the event after the step; none if it has no reason. result is the end of the work to
	// count, or "".
	event  event
	result string
	// wake is the time after which the decision may change without an event, 0 for never.
	wake time.Duration
}

// event is an event about the node.
type event struct{ eventType, reason, note string }

// decide returns the next step for a node. It is a pure function.
func decide(f *facts) decision {
	if f.task == nil {
		return decideOffer(f)
	}
	switch holds.StateOf(f.task) {
	case v1alpha1.NodeTaskOffered:
		return decideOffered(f)
	case v1alpha1.NodeTaskClaimed:
		return decideClaimed(f)
	case v1alpha1.NodeTaskVerifying:
		return decideVerifying(f)
	case v1alpha1.NodeTaskDone:
		return decideDone(f)
	case v1alpha1.NodeTaskFailed:
		return decideFailed(f)
	}
	return decision{} // a newer server has written the state
}

// decideOffer offers a node without a NodeTask for the first maintenance whose work on it is not
// done: the one that has been in the stage of its task for longest. The others wait even if that
// one is not ready: if two maintenances each had a node that the other one needs, both would wait
// for ever.
func decideOffer(f *facts) decision {
	if f.node == nil || f.holderWithoutTask() != nil {
		return decision{}
	}
	for _, nm := range slices.SortedFunc(slices.Values(f.holding), compareTurns) {
		switch answer := f.assigns[nm.UID]; {
		case holds.IsDone(nm, f.node), isCurrent(nm) && f.cannotHave(nm),
			!answer.Allowed && answer.Err == nil:
			continue
		case !isCurrent(nm), holds.TaskOf(nm, f.node) != nil, !answer.Allowed, answer.Stale, f.whyNotReady(nm) != "":
			// Another recorded task means that the status is older than the end of that task.
			return decision{}
		}
		if wait := f.volumesWait(nm); wait > 0 {
			return decision{wake: wait}
		}
		offer := decision{step: stepOffer, maintenance: nm}
		if met, _ := f.isMet(nm.Spec.Task, protocol.VersionsOf(f.node)); !met {
			offer.event = event{corev1.EventTypeNormal, EventOffered, fmt.Sprintf(
				"Offered to workers of class %s by NodeMaintenance %s", nm.Spec.Task.Worker, nm.Name)}
		}
		return offer
	}
	return decision{}
}

// isCurrent reports whether the status of a maintenance is about its present spec.
func isCurrent(nm *v1alpha1.NodeMaintenance) bool {
	return nm.Status.ObservedGeneration == nm.Generation
}

// holderWithoutTask returns a maintenance that holds the node for a user or for a shutdown, or nil.
func (f *facts) holderWithoutTask() *v1alpha1.NodeMaintenance {
	return holds.Oldest(f.holding, func(nm *v1alpha1.NodeMaintenance) bool { return nm.Spec.Task == nil && !holds.LeavesAlone(nm, f.node) })
}

// whyNotReady returns the reason why a maintenance does not offer the node, "" if it does.
func (f *facts) whyNotReady(nm *v1alpha1.NodeMaintenance) string {
	entry := v1alpha1.NodeStatusOf(nm, v1alpha1.NodeReference{Name: f.node.Name, UID: f.node.UID})
	switch {
	case nm.Spec.Task == nil:
		return "it has no task"
	case v1alpha1.IsEnding(nm) && nm.Annotations[v1alpha1.AnnotationWithdrawn] == string(v1alpha1.NodeTaskNoWorker):
		return "no worker has claimed it in time"
	case v1alpha1.IsEnding(nm):
		return "it ends"
	case nm.Spec.Paused:
		return "it is paused"
	case !isCurrent(nm):
		return ""
	case entry == nil || entry.Reason != "" && entry.Reason != v1alpha1.NodeStatusFastForwarded:
		return "it does not have the node, or not alone"
	case !f.node.Spec.Unschedulable || !marks.Holds(f.node, nm):
		return "the node is not cordoned for it"
	case nm.Spec.Task.Stage == v1alpha1.NodeTaskStageCordon && nm.Spec.Stage == v1alpha1.NodeMaintenanceStageCordon:
		return ""
	case !isDrained(nm):
		return "it is not drained"
	}
	return ""
}

// cannotHave reports whether a maintenance does not offer the node before a user changes something.
func (f *facts) cannotHave(nm *v1alpha1.NodeMaintenance) bool {
	entry := v1alpha1.NodeStatusOf(nm, v1alpha1.NodeReference{Name: f.node.Name, UID: f.node.UID})
	return nm.Spec.Task == nil || v1alpha1.IsEnding(nm) || entry != nil && v1alpha1.IsLeftAlone(entry) ||
		nm.Spec.Stage == v1alpha1.NodeMaintenanceStageCordon && nm.Spec.Task.Stage != v1alpha1.NodeTaskStageCordon
}

// compareTurns orders maintenances by the time since which they have been in the stage of their
// task, and then by age. One whose stage is not recorded yet is the first: nothing is offered
// before it is known.
func compareTurns(a, b *v1alpha1.NodeMaintenance) int {
	since := func(nm *v1alpha1.NodeMaintenance) time.Time {
		if nm.Spec.Task != nil && nm.Spec.Task.Stage == v1alpha1.NodeTaskStageCordon {
			return v1alpha1.StageEntered(nm, v1alpha1.NodeMaintenanceStageCordon)
		}
		return v1alpha1.StageEntered(nm, v1alpha1.NodeMaintenanceStageDrain)
	}
	return cmp.Or(since(a).Compare(since(b)), v1alpha1.CompareAge(a, b))
}

func isDrained(nm *v1alpha1.NodeMaintenance) bool {
	return meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained)
}

// volumesWait returns how long to wait for the volumes of a drained node to be detached.
func (f *facts) volumesWait(nm *v1alpha1.NodeMaintenance) time.Duration {
	if f.volumes == 0 || !isDrained(nm) {
		return 0
	}
	drained := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
	return max(0, protocol.VolumePatience-f.now.Sub(drained.LastTransitionTime.Time))
}

// decideOffered withdraws the offer if it is not valid any more, grants a claim after a live read,
// and releases the node if no worker claims it.
func decideOffered(f *facts) decision {
	if why := f.whyNotOffered(); why != "" {
		return withdraw(why)
	}
	if !isCurrent(f.owner) || !f.assigns[f.owner.UID].Allowed {
		return decision{} // the status or the answer of the authorizer follows
	}
	task := f.owner.Spec.Task
	// A node that meets the condition and is not healthy stays offered, until a worker claims it or
	// the deadline is over.
	if met, _ := f.isMet(task, f.task.Spec.Before); met && f.whyNotVerified() == "" {
		d := f.enter(v1alpha1.NodeTaskDone, "The node meets doneWhen without any work")
		d.event, d.result = event{corev1.EventTypeNormal, EventVerified, d.status.ServerMessage}, string(v1alpha1.NodeTaskDone)
		return d
	}
	if f.task.Status.Holder != "" {
		switch {
		case !f.isLive:
			return decision{step: stepLook}
		case f.refusal != "":
			return withdraw(f.refusal)
		}
		d := f.enter(v1alpha1.NodeTaskClaimed, "")
		d.event = event{corev1.EventTypeNormal, EventClaimed, fmt.Sprintf(
			"Worker %q of user %q works on the node for NodeMaintenance %s", f.task.Status.Holder, f.task.Status.ClaimedBy, f.owner.Name)}
		return d
	}
	left, counts := f.claimLeft()
	if !counts || left > 0 {
		return decision{wake: left}
	}
	// The NodeTask is withdrawn afterwards: a maintenance that has ended grants no claim.
	return decision{step: stepRelease, result: string(v1alpha1.NodeTaskNoWorker), event: event{corev1.EventTypeWarning, EventFailed, fmt.Sprintf(
		"%s: no worker of class %s has claimed the node within %s; NodeMaintenance %s releases its nodes",
		v1alpha1.NodeTaskNoWorker, task.Worker, seconds(f.task.Spec.ClaimDeadlineSeconds), f.owner.Name)}}
}

// claimLeft returns how much of the deadline of the claim is left. The end of the maintenance
// releases its other nodes, too: the deadline does not count while a worker has one of them or the
// work on it has failed, and begins again when the work on one has ended. In a maintenance that a
// user has made, it does not count after a worker has worked on one: only the user ends it.
func (f *facts) claimLeft() (left time.Duration, counts bool) {
	isByUser := protocol.RolloutOf(f.owner) == nil
	since := []*metav1.Time{f.task.Status.StateTime, &f.task.CreationTimestamp}
	for i := range f.owner.Status.NodeStatuses {
		other := f.owner.Status.NodeStatuses[i].Task
		switch {
		case other == nil:
		case protocol.IsInHands(other.State) && (other.State != v1alpha1.NodeTaskDone || isByUser && other.Holder != ""):
			return 0, false
		default:
			since = append(since, other.EndTime)
		}
	}
	if left = f.left(seconds(f.task.Spec.ClaimDeadlineSeconds), since...); left > 0 {
		return left, true
	}
	for _, other := range f.tasks() {
		if protocol.IsInHands(other.Status.State) {
			return 0, false
		}
	}
	return 0, true
}

func withdraw(why string) decision {
	return decision{step: stepDelete, event: event{corev1.EventTypeNormal, EventWithdrawn, "No longer offered to workers: " + why}}
}

// whyNotOffered returns the reason why an offer is withdrawn before the claim, "" if it is valid.
func (f *facts) whyNotOffered() string {
	about := func(why string) string {
		return fmt.Sprintf("NodeMaintenance %s: %s", f.task.Spec.Maintenance.Name, why)
	}
	switch {
	case f.owner == nil:
		return about("it does not exist any more")
	case f.node == nil || f.node.UID != f.task.Spec.NodeUID:
		return "the node is gone"
	case !f.selected:
		return about("it does not select the node any more")
	}
	if other := f.holderWithoutTask(); other != nil {
		return fmt.Sprintf("NodeMaintenance %s holds the node, too", other.Name)
	}
	if why := f.whyNotReady(f.owner); why != "" {
		return about(why)
	}
	if answer := f.assigns[f.owner.UID]; !answer.Allowed && answer.Err == nil {
		return fmt.Sprintf("user %q may not assign workers of class %s", protocol.UserName(v1alpha1.RequesterOf(f.owner)), f.task.Spec.Worker)
	}
	return ""
}

// isMet reports whether the condition of a task is set and true, and if not, why.
func (f *facts) isMet(task *v1alpha1.NodeMaintenanceTask, before v1alpha1.NodeVersions) (met bool, why string) {
	if task.DoneWhen == "" {
		return false, ""
	}
	met, err := f.doneWhen(task.DoneWhen, before)
	if err != nil {
		return false, "doneWhen: " + err.Error()
	}
	return met, "doneWhen is false"
}

// decideClaimed waits for the result of a worker. A worker that reinstalls the node may delete
// it, so the task keeps its place until the node returns, or the deadline passes. A node that can
// be verified when the worker reports Done does not enter Verifying.
func decideClaimed(f *facts) decision {
	status := &f.task.Status
	switch {
	case status.Result == v1alpha1.NodeTaskResultDone && f.node != nil && f.whyNotVerified() == "":
		return f.verified()
	case status.Result == v1alpha1.NodeTaskResultDone:
		return f.enter(v1alpha1.NodeTaskVerifying, "")
	case f.isUnheld():
		return decision{} // its cordon follows
	case status.Result == v1alpha1.NodeTaskResultFailed:
		return f.fail(v1alpha1.NodeTaskWorkerFailed, cmp.Or(status.Message, "The worker reported Failed"))
	}
	deadline := seconds(f.task.Spec.ProgressDeadlineSeconds)
	left := f.left(deadline, status.StateTime, status.ProgressTime)
	switch {
	case left > 0:
		return decision{wake: left}
	case f.node == nil:
		return f.gone()
	}
	text := fmt.Sprintf("Worker %q has not reported for %s", status.Holder, deadline)
	if status.Message != "" {
		text += "; its last report: " + status.Message
	}
	return f.fail(v1alpha1.NodeTaskLost, text)
}

// decideVerifying waits until the node is Ready and meets the condition.
func decideVerifying(f *facts) decision {
	status := &f.task.Status
	if f.node == nil {
		left := f.left(seconds(f.task.Spec.ProgressDeadlineSeconds), status.StateTime, status.ProgressTime)
		if left > 0 {
			return decision{wake: left}
		}
		return f.gone()
	}
	why := f.whyNotVerified()
	if why == "" {
		return f.verified()
	}
	deadline := seconds(f.task.Spec.VerifyDeadlineSeconds)
	switch left := f.leftSince(f.entered, deadline, status.StateTime); {
	case left <= 0:
		// It is short, so that the unit of a rollout has room for the message of the worker, too.
		text := fmt.Sprintf("%s after the worker reported Done: %s", deadline, why)
		if status.Message != "" {
			text += "; its last message: " + status.Message
		}
		return f.fail(v1alpha1.NodeTaskNotVerified, text)
	case status.ServerMessage != cut(why):
		d := decision{step: stepWrite, status: *status.DeepCopy(), wake: left}
		d.status.ServerMessage = cut(why)
		return d
	default:
		return decision{wake: left}
	}
}

// verified returns the write of the state Done.
func (f *facts) verified() decision {
	d := f.enter(v1alpha1.NodeTaskDone, "")
	d.result = string(v1alpha1.NodeTaskDone)
	d.event = event{corev1.EventTypeNormal, EventVerified, fmt.Sprintf("The work of worker %q is done, and the node is verified", f.task.Status.Holder)}
	return d
}

// whyNotVerified returns the reason why the node cannot return to service, "" if it can.
func (f *facts) whyNotVerified() string {
	switch {
	case f.isUnheld():
		return "the node was registered again, and is not cordoned yet"
	case protocol.NodeCondition(f.node, corev1.NodeReady).Status != corev1.ConditionTrue:
		return "the node is not Ready"
	case protocol.HasReadinessTaint(f.node):
		return "the node has a taint " + v1alpha1.TaintReadinessPrefix
	case f.owner == nil || f.owner.Spec.Task == nil || f.owner.Spec.Task.DoneWhen == "":
		return ""
	}
	if met, why := f.isMet(f.owner.Spec.Task, f.task.Spec.Before); !met {
		return why
	}
	return ""
}

// decideDone deletes the task when the maintenance has recorded it. A maintenance that does not
// select the node any more records nothing. A node that was registered again may get its labels
// later: without the record, the work would begin again then.
func decideDone(f *facts) decision {
	if f.node == nil || f.isForgotten() || f.hasLeft() || holds.IsDone(f.owner, f.node) {
		return decision{step: stepDelete}
	}
	return decision{}
}

// decideFailed waits for a user, for a late result of the worker, or, if the result was not
// verified, until it can be. It deletes the task when its maintenance has ended and has recorded
// it, or does not select the node any more: the node is in service again, and no drain would touch
// the node while the task exists. The deletion of the node ends no failure: its rollout would go on
// with the next node, although no user has seen why this one failed.
func decideFailed(f *facts) decision {
	switch {
	case f.isForgotten(), f.node == nil && v1alpha1.IsEnding(f.owner):
		return decision{step: stepDelete}
	case f.node == nil && f.task.Status.Result != v1alpha1.NodeTaskResultDone:
		return decision{}
	case f.node != nil && f.hasLeft():
		return decision{step: stepDelete, event: event{corev1.EventTypeWarning, EventWithdrawn, fmt.Sprintf(
			"The failed work is forgotten: NodeMaintenance %s does not select the node any more", f.task.Spec.Maintenance.Name)}}
	case f.task.Status.Result == v1alpha1.NodeTaskResultDone:
		// The reason stays until the node is verified: until then rollouts count the failure.
		d := f.enter(v1alpha1.NodeTaskVerifying, "")
		d.status.Reason = f.task.Status.Reason
		return d
	case f.task.Status.Reason == v1alpha1.NodeTaskNotVerified && f.whyNotVerified() == "":
		d := f.enter(v1alpha1.NodeTaskVerifying, "")
		d.status.Reason, d.status.Result = f.task.Status.Reason, v1alpha1.NodeTaskResultDone
		return d
	case v1alpha1.IsEnding(f.owner):
		if recorded := holds.TaskOf(f.owner, f.node); recorded != nil && recorded.State == v1alpha1.NodeTaskFailed {
			return decision{step: stepDelete}
		}
	}
	return decision{}
}

// hasLeft reports whether the maintenance of the task does not select the node any more. One that
// was registered again while the worker had it has not left: it may get its labels later.
func (f *facts) hasLeft() bool {
	return !f.selected && (f.node.UID == f.task.Spec.NodeUID || !marks.Holds(f.node, f.owner))
}

// isUnheld reports whether the node was registered again without the labels by which the
// maintenance of the task selects it, and the maintenance does not hold it yet. Work that ended now
// would be forgotten.
func (f *facts) isUnheld() bool {
	return f.node != nil && f.node.UID != f.task.Spec.NodeUID && !f.isForgotten() && !f.selected && !marks.Holds(f.node, f.owner)
}

// isForgotten reports whether the maintenance of the task does not exist, or is over.
func (f *facts) isForgotten() bool { return f.owner == nil || v1alpha1.IsDone(f.owner) }

// gone ends the task of a node that does not exist.
func (f *facts) gone() decision {
	return decision{step: stepDelete, result: string(v1alpha1.NodeTaskGone), event: event{corev1.EventTypeWarning, EventNodeGone, fmt.Sprintf(
		"The node of worker %q is gone; NodeMaintenance %s goes on without it", f.task.Status.Holder, f.task.Spec.Maintenance.Name)}}
}

// enter returns the write of a new state.
func (f *facts) enter(state v1alpha1.NodeTaskState, message string) decision {
	d := decision{step: stepWrite, status: *f.task.Status.DeepCopy()}
	d.status.State, d.status.StateTime = state, &metav1.Time{Time: f.now}
	d.status.Reason, d.status.ServerMessage = "", cut(message)
	return d
}

// fail returns the write of the state Failed. A result Done becomes Failed, so that a result Done
// after that is a late report.
func (f *facts) fail(reason v1alpha1.NodeTaskReason, message string) decision {
	d := f.enter(v1alpha1.NodeTaskFailed, message)
	if d.status.Reason = reason; d.status.Result == v1alpha1.NodeTaskResultDone {
		d.status.Result = v1alpha1.NodeTaskResultFailed
	}
	d.event, d.result = event{corev1.EventTypeWarning, EventFailed, fmt.Sprintf("%s: %s", reason, message)}, string(reason)
	return d
}

// left returns how much of a deadline is left that counts from the latest of some times, or from
// the last change of the task that this leader has seen: the clocks of the replicas that set the
// times may be minutes behind. A new leader waits for some time before the deadline passes.
func (f *facts) left(deadline time.Duration, since ...*metav1.Time) time.Duration {
	return f.leftSince(f.heard, deadline, since...)
}

// leftSince does the same as left with another change of the task that this leader has seen.
func (f *facts) leftSince(latest time.Time, deadline time.Duration, since ...*metav1.Time) time.Duration {
	for _, t := range since {
		if t != nil && t.After(latest) {
			latest = t.Time
		}
	}
	return max(deadline-f.now.Sub(latest), min(deadline, loop.LeaderPatience)-f.served, 0)
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

func cut(text string) string { return wording.Cut(text, protocol.MaxMessage) }
