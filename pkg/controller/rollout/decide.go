// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/rollout/window"
)

// decision is what a sync does.
type decision struct {
	// units are the units of status.current, including those that leave it.
	units []followed
	// start are the units to start, once the API confirms what the caches have.
	start []*next.Unit
	// unsettled are the announced units whose maintenance may still appear. They keep their places
	// if they do not start.
	unsettled []v1alpha1.RolloutUnit
	// status is the new status, without the units to start and without unsettled ones.
	status v1alpha1.NodeMaintenanceRolloutStatus
	// wake is the time at which to decide again without an event; zero if at none.
	wake time.Time
}

// decide computes the decision from the facts alone. It replaces the status of the rollout in the
// facts by the new one.
func decide(f *facts) *decision {
	r := f.rollout.Object
	windows, err := window.At(r.Spec.Windows, f.cluster.Now)
	open := err == nil && windows.Open
	holds := window.HoldsAt(r.Spec.Holds, f.cluster.Now)
	d := &decision{wake: f.wake, status: *r.Status.DeepCopy()}
	d.status.Current = nil
	for _, entry := range slices.Concat(r.Status.Current, f.adopted()) {
		u := f.follow(entry, open, holds.Drains)
		d.units = append(d.units, u)
		d.wake = window.Earliest(d.wake, u.wake)
		switch {
		case u.unsettled:
			d.unsettled = append(d.unsettled, u.unit)
			f.rollout.Unsettled[u.unit.Unit] = u.unit
		case !u.over:
			d.status.Current = append(d.status.Current, u.unit)
		}
	}
	choice := d.choose(f, r)
	d.start = choice.Start
	d.wake = window.Earliest(d.wake, choice.Next)
	d.status.Nodes = choice.Nodes
	d.status.Window = nil
	if len(r.Spec.Windows) > 0 {
		d.status.Window = &v1alpha1.RolloutWindowStatus{Open: windows.Open}
		if !windows.Until.IsZero() {
			until := metav1.NewTime(windows.Until).Rfc3339Copy()
			d.status.Window.Until = &until
		}
	}
	d.status.ObservedGeneration = r.Generation
	d.setConditions(f, &choice)
	return d
}

// unsettledBut returns the unsettled units that do not start again.
func (d *decision) unsettledBut(starts func(unit string) bool) []v1alpha1.RolloutUnit {
	return slices.DeleteFunc(slices.Clone(d.unsettled), func(u v1alpha1.RolloutUnit) bool { return starts(u.Unit) })
}

// choose decides which units start. No other unit gets the places of unsettled ones that do not
// start again with the same nodes. It replaces the status of the rollout in the facts.
func (d *decision) choose(f *facts, r *v1alpha1.NodeMaintenanceRollout) next.Decision {
	var keep []v1alpha1.RolloutUnit
	for {
		followed := *r
		followed.Status = d.status
		followed.Status.Current = slices.Concat(d.status.Current, keep)
		f.rollout.Object = &followed
		f.cluster.Announce(&followed)
		choice := next.Decide(f.cluster, &f.rollout)
		more := d.unsettledBut(func(name string) bool {
			return slices.ContainsFunc(choice.Start, func(u *next.Unit) bool {
				return u.Name == name && slices.Equal(u.References(), f.rollout.Unsettled[name].Nodes)
			}) || slices.ContainsFunc(keep, func(u v1alpha1.RolloutUnit) bool { return u.Unit == name })
		})
		if len(more) == 0 {
			return choice
		}
		keep = append(keep, more...)
		f.cluster = next.NewCluster(f.cluster.Facts) // without the starts that were chosen
	}
}

// setConditions sets the conditions of the new status.
func (d *decision) setConditions(f *facts, choice *next.Decision) {
	reason, message := choice.Reason, conditionMessage(f, choice)
	set := func(conditionType string, isTrue bool) {
		condition := metav1.Condition{
			Type: conditionType, Status: metav1.ConditionFalse, Reason: reason, Message: message,
			ObservedGeneration: f.rollout.Object.Generation, LastTransitionTime: metav1.NewTime(f.cluster.Now).Rfc3339Copy(),
		}
		if isTrue {
			condition.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&d.status.Conditions, condition)
	}
	isComplete := reason == v1alpha1.ReasonRolloutComplete
	set(v1alpha1.ConditionProgressing, reason == v1alpha1.ReasonRolling || reason == v1alpha1.ReasonNoNodes)
	set(v1alpha1.ConditionComplete, isComplete)
	set(v1alpha1.ConditionReady, isComplete || reason == v1alpha1.ReasonIdle || reason == v1alpha1.ReasonStopped && len(f.rollout.Object.Status.Current) == 0)
	if reason == v1alpha1.ReasonHalted {
		set(v1alpha1.ConditionStalled, true)
	} else {
		meta.RemoveStatusCondition(&d.status.Conditions, v1alpha1.ConditionStalled)
	}
}

// setFailure sets the conditions of a rollout about which, or for which, the server cannot do what
// the message says.
func (d *decision) setFailure(f *facts, message string) {
	d.setConditions(f, &next.Decision{Reason: v1alpha1.ReasonProgressSyncFailed, Message: message})
}

// conditionMessage returns the message of the conditions.
func conditionMessage(f *facts, choice *next.Decision) string {
	text := choice.Message
	if f.broken != "" {
		text += "; " + f.broken
	}
	if f.failing != nil {
		text += "; requests fail since " + f.failing.Since.UTC().Format(time.RFC3339) + ": " + f.failing.Text
	}
	return text
}
