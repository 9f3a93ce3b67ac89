// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// strictness has the behaviors of a drain plan, the strictest first: of several maintenances that
// drain a node, the strictest decides about a pod.
var strictness = []v1alpha1.DrainBehavior{
	v1alpha1.DrainBehaviorDrain, v1alpha1.DrainBehaviorWaitCompleted, v1alpha1.DrainBehaviorSkip,
}

// behaviorOf returns what the plan of a maintenance does with a pod at a time: the first entry that
// covers the pod and has a behavior decides. A wait with a limit ends that long after the begin of
// stage Drain, which has an accuracy of slack.
func (d *docket) behaviorOf(p *podRecord, at time.Time, slack time.Duration) v1alpha1.DrainBehavior {
	for _, e := range d.last.Spec.DrainPlan {
		if e.Behavior == nil || !covers(e, p.Pod) {
			continue
		}
		if *e.Behavior == v1alpha1.DrainBehaviorWaitCompleted && e.WaitSeconds != nil && *e.WaitSeconds > 0 {
			end := v1alpha1.StageEntered(d.last, v1alpha1.NodeMaintenanceStageDrain).Add(time.Duration(*e.WaitSeconds) * time.Second)
			if !at.Before(end.Add(-slack)) {
				break
			}
		}
		return *e.Behavior
	}
	return v1alpha1.DrainBehaviorDrain
}

// strictest returns what the maintenances that drain a node do with a pod of it. A maintenance that
// has drained it within slack before counts, since the server learns of its end later. The result
// is Drain if no maintenance drains the node.
func strictest(dockets []*docket, p *podRecord, node *nodeRecord, now stamp, slack time.Duration) v1alpha1.DrainBehavior {
	at := len(strictness)
	for _, d := range dockets {
		if _, covered := d.waves[p.UID]; covered && d.drainedSince(now, slack) && d.joined(node, now.at) != nil {
			at = min(at, slices.Index(strictness, d.behaviorOf(p, now.seen, slack)))
		}
	}
	if at == len(strictness) {
		return v1alpha1.DrainBehaviorDrain
	}
	return strictness[at]
}

// drainedSince reports whether the maintenance drained, and was not paused, at a place in the
// history or within slack before.
func (d *docket) drainedSince(now stamp, slack time.Duration) bool {
	from := now.seen.Add(-slack)
	if d.gone != nil && d.gone.at <= now.at && d.gone.seen.Before(from) {
		return false
	}
	drained := false
	for _, state := range d.states {
		if now.before(state.stamp) {
			break
		}
		is := state.draining && !state.paused
		drained = is || drained && !state.seen.Before(from)
	}
	return drained
}

// stayed describes a pod that was asked to leave although the plans of all maintenances that
// drained its node let it complete or kept it, "" if it may leave.
func stayed(dockets []*docket, p *podRecord, node *nodeRecord, asked stamp) string {
	behavior := strictest(dockets, p, node, asked, lag)
	if behavior == v1alpha1.DrainBehaviorDrain {
		return ""
	}
	return fmt.Sprintf("pod %s/%s on node %s was asked to leave, although no plan drains it: %s",
		p.Namespace, p.Name, p.Spec.NodeName, behavior)
}
