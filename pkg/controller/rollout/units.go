// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/rollout/window"
)

// followed is what happens to a unit of status.current.
type followed struct {
	// before is the stored entry, and unit the new one.
	before, unit v1alpha1.RolloutUnit
	// nm is the maintenance of the unit, nil if it does not exist.
	nm *v1alpha1.NodeMaintenance
	// end is how the maintenance has to be completed.
	end next.Ending
	// pause is the value that spec.paused has to get; nil if it stays.
	pause *bool
	// outcome is how the unit has ended, "" if it has not. over is set if it leaves status.current.
	outcome next.Outcome
	over    bool
	// wake is the time at which the unit changes without an event; zero if it does not.
	wake time.Time
	// unsettled is set if the maintenance of the unit does not exist, and may still appear.
	unsettled bool
}

// createPatience is how long an announcement without a maintenance keeps its places, unless the API
// has refused the maintenance: a request that has failed without an answer, or whose leader has
// ended, may still be stored.
const createPatience = time.Minute

// follow decides what happens to the unit of an entry of status.current. open is set if a window is
// open, drainsHeld if a hold stops drains.
func (f *facts) follow(entry v1alpha1.RolloutUnit, open, drainsHeld bool) followed {
	u := followed{before: entry, unit: *entry.DeepCopy(), nm: f.own[entry.Maintenance]}
	if u.nm == nil {
		// The maintenance was deleted, or a leader ended before it created it, or the request has
		// failed. In the latter cases the same unit is decided about again, and gets the same name.
		last := ptr.Deref(f.starts[entry.Unit], failedStart{})
		end := window.Latest(f.endsAt(&entry, int32(createPatience.Seconds())), last.unanswered.Add(createPatience))
		u.unsettled = entry.Phase == v1alpha1.RolloutPhaseStarting && !last.refused && !f.foreign[entry.Maintenance] && f.cluster.Now.Before(end)
		if u.over = !u.unsettled; !u.over {
			u.wake = end
		}
		return u
	}
	switch {
	case u.nm.DeletionTimestamp != nil && v1alpha1.IsDone(u.nm):
		u.over = true
	case v1alpha1.IsDone(u.nm):
		u.outcome = next.OutcomeOf(u.nm)
		f.soak(&u)
	default:
		f.setPhase(&u.unit, f.phaseOf(&u.unit, u.nm))
		u.end = f.endOf(&u.unit, u.nm, open)
		u.wake = u.end.Next
		if !u.end.Now {
			u.pause = pauseOf(u.nm, drainsHeld)
		}
	}
	u.unit.Message = f.messageOf(&u.unit, u.nm)
	return u
}

// endOf decides whether the maintenance of a unit ends. A unit that starts over, because a user has
// deleted the task of a failed node, has the whole deadline again.
func (f *facts) endOf(unit *v1alpha1.RolloutUnit, nm *v1alpha1.NodeMaintenance, open bool) next.Ending {
	end := next.EndOf(f.cluster, &f.rollout, unit, nm, open)
	deadline := f.endsAt(unit, ptr.Deref(f.rollout.Object.Spec.ProgressDeadlineSeconds, 0))
	if end.Withdrawn == next.WithdrawnBlocked && f.cluster.Now.Before(deadline) {
		return next.Ending{Next: deadline}
	}
	return end
}

// soak keeps a unit that is done in the status until the soak time is over.
func (f *facts) soak(u *followed) {
	if u.over = u.outcome != next.Done; u.over {
		return
	}
	f.setPhase(&u.unit, v1alpha1.RolloutPhaseSoaking)
	end := f.endsAt(&u.unit, f.rollout.Object.Spec.SoakSeconds)
	if u.over = !f.cluster.Now.Before(end); !u.over {
		u.wake = end
	}
}

// endsAt returns the end of a time that begins with the phase of a unit. Another leader, with a
// clock that is minutes behind, may have stored the beginning.
func (f *facts) endsAt(unit *v1alpha1.RolloutUnit, seconds int32) time.Time {
	after := time.Duration(seconds) * time.Second
	return window.Latest(unit.Since.Add(after), f.started.Add(min(after, loop.LeaderPatience)))
}

func (f *facts) setPhase(unit *v1alpha1.RolloutUnit, phase v1alpha1.RolloutPhase) {
	if unit.Phase != phase {
		unit.Phase, unit.Since = phase, metav1.NewTime(f.cluster.Now).Rfc3339Copy()
	}
}

// pauseOf returns the value that spec.paused of a maintenance has to get; nil if it stays. A pause
// withdraws offers, and does not touch nodes that a worker has. A rollout never touches the pause
// of a user.
func pauseOf(nm *v1alpha1.NodeMaintenance, held bool) *bool {
	switch {
	case !v1alpha1.IsHolding(nm) || nm.Spec.Paused == held:
	case held:
		return ptr.To(true)
	case nm.Status.Pause != nil && nm.Status.Pause.By == protocol.ServerUser:
		return ptr.To(false)
	}
	return nil
}

// taskOf returns the NodeTask of a node for a maintenance, or nil.
func (f *facts) taskOf(node string, nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeTask {
	if task := f.tasks[node]; task != nil && task.Spec.Maintenance.UID == nm.UID {
		return task
	}
	return nil
}

// phases are the phases of nodes, in the order of the work that is left.
var phases = []v1alpha1.RolloutPhase{
	v1alpha1.RolloutPhaseReleasing, v1alpha1.RolloutPhaseVerifying, v1alpha1.RolloutPhaseClaimed, v1alpha1.RolloutPhaseOffered,
	v1alpha1.RolloutPhaseDraining, v1alpha1.RolloutPhaseFailed,
}

// phaseOf returns the phase of a unit whose maintenance has not released its nodes.
func (f *facts) phaseOf(unit *v1alpha1.RolloutUnit, nm *v1alpha1.NodeMaintenance) v1alpha1.RolloutPhase {
	most := 0
	for i := range unit.Nodes {
		most = max(most, slices.Index(phases, f.nodePhase(unit.Nodes[i].Name, nm)))
	}
	return phases[most]
}

// nodePhase returns the phase of one node of a unit: Releasing if no work is left.
func (f *facts) nodePhase(node string, nm *v1alpha1.NodeMaintenance) v1alpha1.RolloutPhase {
	if task := f.taskOf(node, nm); task != nil {
		switch task.Status.State {
		case v1alpha1.NodeTaskClaimed:
			return v1alpha1.RolloutPhaseClaimed
		case v1alpha1.NodeTaskVerifying:
			return v1alpha1.RolloutPhaseVerifying
		case v1alpha1.NodeTaskFailed:
			if v1alpha1.IsEnding(nm) {
				return v1alpha1.RolloutPhaseReleasing
			}
			return v1alpha1.RolloutPhaseFailed
		case v1alpha1.NodeTaskDone:
			return v1alpha1.RolloutPhaseReleasing
		}
		return v1alpha1.RolloutPhaseOffered
	}
	if v1alpha1.IsEnding(nm) || f.nodes[node] == nil {
		return v1alpha1.RolloutPhaseReleasing
	}
	switch ptr.Deref(holds.TaskOf(nm, f.nodes[node]), v1alpha1.NodeMaintenanceNodeTask{}).State {
	case v1alpha1.NodeTaskDone, v1alpha1.NodeTaskGone:
		return v1alpha1.RolloutPhaseReleasing
	}
	return v1alpha1.RolloutPhaseDraining
}

// messageOf describes for people what a unit waits for.
func (f *facts) messageOf(unit *v1alpha1.RolloutUnit, nm *v1alpha1.NodeMaintenance) string {
	at := slices.IndexFunc(unit.Nodes, func(ref v1alpha1.NodeReference) bool { return f.nodePhase(ref.Name, nm) == unit.Phase })
	if at < 0 {
		return ""
	}
	name := unit.Nodes[at].Name
	task := ptr.Deref(f.taskOf(name, nm), v1alpha1.NodeTask{})
	var text string
	switch unit.Phase {
	case v1alpha1.RolloutPhaseDraining:
		return wording.Cut(cmp.Or(drainMessage(nm), f.otherMessage(unit), f.unassigned), protocol.MaxTaskMessage)
	case v1alpha1.RolloutPhaseOffered:
		text = "waits for a worker of class " + task.Spec.Worker
	case v1alpha1.RolloutPhaseClaimed:
		text = join(task.Status.Holder, task.Status.Message)
	case v1alpha1.RolloutPhaseVerifying:
		text = task.Status.ServerMessage
	case v1alpha1.RolloutPhaseFailed:
		text = join(string(task.Status.Reason), cmp.Or(task.Status.ServerMessage, task.Status.Message))
	case v1alpha1.RolloutPhaseReleasing:
		if nm.Annotations[v1alpha1.AnnotationWithdrawn] == next.WithdrawnBlocked {
			return unit.Message // the event at the end names what blocked the drain
		}
	}
	if text != "" && name != unit.Unit {
		text = join("node "+name, text)
	}
	return wording.Cut(text, protocol.MaxTaskMessage)
}

// drainMessage describes why a drain does not move; "" if it does. It has no counters, which would
// need a write of the rollout for each pod that leaves.
func drainMessage(nm *v1alpha1.NodeMaintenance) string {
	progressing := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionProgressing)
	switch {
	case progressing == nil:
		return ""
	case progressing.Status == metav1.ConditionFalse:
		return join(progressing.Reason, progressing.Message)
	case progressing.Reason == v1alpha1.ReasonProgressWaitingForCompletion:
		return progressing.Reason
	}
	return ""
}

// otherMessage names a maintenance that holds a node of a unit, too, and has no task, or a NodeTask
// of that node, or has recorded its work as done: the node is not offered before it ends. It is ""
// if there is none.
func (f *facts) otherMessage(unit *v1alpha1.RolloutUnit) string {
	for i := range unit.Nodes {
		name := unit.Nodes[i].Name
		node := f.nodes[name]
		other := holds.Oldest(f.holders(name), func(nm *v1alpha1.NodeMaintenance) bool {
			return v1alpha1.IsHolding(nm) && nm.Name != unit.Maintenance &&
				(nm.Spec.Task == nil || f.taskOf(name, nm) != nil || node != nil && holds.IsDone(nm, node))
		})
		if other != nil {
			return fmt.Sprintf("NodeMaintenance %s holds node %s, too", other.Name, name)
		}
	}
	return ""
}

// join returns two texts with a colon between them, or the only one that is not empty.
func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ": " + b
}

// adopted returns entries for maintenances of the rollout that still hold nodes although the status
// does not have them, so that the rollout completes them.
func (f *facts) adopted() []v1alpha1.RolloutUnit {
	known := map[string]bool{}
	for i := range f.rollout.Object.Status.Current {
		known[f.rollout.Object.Status.Current[i].Unit] = true
	}
	var missing []v1alpha1.RolloutUnit
	for _, nm := range f.rollout.Attempts {
		unit := nm.Annotations[v1alpha1.AnnotationRolloutUnit]
		if v1alpha1.IsDone(nm) || known[unit] || unit == "" {
			continue
		}
		known[unit] = true
		entry := v1alpha1.RolloutUnit{Unit: unit, Maintenance: nm.Name}
		for i := range nm.Status.NodeStatuses {
			entry.Nodes = append(entry.Nodes, nm.Status.NodeStatuses[i].NodeRef)
		}
		missing = append(missing, entry)
	}
	return missing
}

// maintenanceOf returns the maintenance of an announced unit.
func maintenanceOf(r *v1alpha1.NodeMaintenanceRollout, unit *v1alpha1.RolloutUnit) *v1alpha1.NodeMaintenance {
	template := r.Spec.Template.DeepCopy()
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{
			Name:            unit.Maintenance,
			Labels:          map[string]string{v1alpha1.LabelRollout: r.Name},
			Annotations:     map[string]string{v1alpha1.AnnotationRolloutUnit: unit.Unit},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r, protocol.RolloutKind)},
		},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageDrain, NodeSelector: &corev1.NodeSelector{},
			Reason: template.Reason, DrainPlan: template.DrainPlan, Task: template.Task, RequestedBy: r.Spec.RequestedBy.DeepCopy(),
		},
	}
	if template.Task != nil && template.Task.Stage == v1alpha1.NodeTaskStageCordon {
		nm.Spec.Stage = v1alpha1.NodeMaintenanceStageCordon
	}
	for i := range unit.Nodes {
		nm.Spec.NodeSelector.NodeSelectorTerms = append(nm.Spec.NodeSelector.NodeSelectorTerms, corev1.NodeSelectorTerm{
			MatchFields: []corev1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{unit.Nodes[i].Name},
			}},
		})
	}
	return nm
}

// announce returns the entry of status.current of a unit that starts. A unit that starts again has
// the same name, also if its maintenance has appeared by now.
func (f *facts) announce(u *next.Unit) v1alpha1.RolloutUnit {
	last, isUnsettled := f.rollout.Unsettled[u.Name]
	name := last.Maintenance
	for attempt := 1; !isUnsettled && (name == "" || f.cluster.Exists(name)); attempt++ {
		name = maintenanceName(f.rollout.Object.Name, u.Name, attempt)
	}
	return v1alpha1.RolloutUnit{
		Unit: u.Name, Maintenance: name, Nodes: u.References(),
		Phase: v1alpha1.RolloutPhaseStarting, Since: metav1.NewTime(f.cluster.Now).Rfc3339Copy(),
	}
}
