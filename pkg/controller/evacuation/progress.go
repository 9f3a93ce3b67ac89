// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
)

// decideProgress reports an active evacuator that has sent no report for half of its deadline:
// early enough for a user to fix it before the next one becomes active.
func (d *decision) decideProgress(s situation) {
	deadline := d.deadline(s)
	if d.status.ActiveEvacuatorClass == maintenancev1alpha1.EvacuatorClassDeployment {
		if s.standing != nil {
			d.setBlocked(s, s.standing)
			return
		}
		if at := surgePendingAt(s, deadline); s.now.Before(at) {
			d.wakeAt(at)
			d.unlessUnreachable(s)
		} else {
			d.setBlocked(s, d.surgePending(deadline))
		}
		return
	}
	quiet := d.quietAt(s, deadline)
	switch {
	case !deadline.runs:
		d.unlessUnreachable(s)
	case s.now.Before(quiet):
		d.wakeAt(quiet)
		d.unlessUnreachable(s)
	default:
		d.setBlocked(s, d.notProgressing(s, deadline))
	}
}

// quietAt is when the active evacuator has not reported for too long. As with its deadline, a new
// leader gives it time to report first, but keeps the condition that the previous leader set.
func (d *decision) quietAt(s situation, deadline deadline) time.Time {
	quiet := deadline.since.Add(deadline.length / 2)
	if was := blockerOf(&d.status); was != nil && was.Reason == maintenancev1alpha1.ReasonEvacuatorNotProgressing {
		return quiet
	}
	if grace := s.servingSince.Add(min(deadline.length, longestGrace) / 2); quiet.Before(grace) {
		return grace
	}
	return quiet
}

func (d *decision) notProgressing(s situation, deadline deadline) *eviction.Blocker {
	active := d.status.ActiveEvacuatorClass
	silent := fmt.Sprintf("Evacuator %s has not reported since %s", active, deadline.since.UTC().Format(time.RFC3339))
	if !deadline.reported {
		silent = fmt.Sprintf("Evacuator %s has not reported since it became active at %s", active, deadline.since.UTC().Format(time.RFC3339))
	}
	if d.onlyAgentCanAct(s) && !protocol.IsWithdrawn(s.evacuation) {
		return &eviction.Blocker{
			Reason: maintenancev1alpha1.ReasonEvacuatorNotProgressing,
			Message: fmt.Sprintf("%s. It is the node agent of node %s, and nothing else can remove a static pod: check that haulout-node-agent runs there "+
				"and what it says about the pod, or move the manifest of the pod away.", silent, s.pod.Spec.NodeName),
		}
	}
	end := fmt.Sprintf("%s becomes active", protocol.Next(s.evacuation.Spec.Evacuators, active))
	if protocol.IsWithdrawn(s.evacuation) {
		end = "the evacuation ends, as no instigator requests it any more,"
	}
	return &eviction.Blocker{
		Reason: maintenancev1alpha1.ReasonEvacuatorNotProgressing,
		Message: fmt.Sprintf("%s. Unless it does, %s at %s. Check that the controller behind it runs and what it says about the pod.",
			silent, end, deadline.at.UTC().Format(time.RFC3339)),
	}
}
