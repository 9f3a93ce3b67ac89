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

// surgePendingAt is when the evacuator of Deployments has made no progress for the surge timeout.
// The evacuator stops reporting when the replacement makes no progress. If the surge timeout does
// not end within the deadline, half of the deadline counts.
func surgePendingAt(s situation, deadline deadline) time.Time {
	at := deadline.since.Add(s.surgeTimeout)
	if !at.Before(deadline.at) {
		at = deadline.since.Add(deadline.length / 2)
	}
	// A new leader lets the evacuator report first, but keeps the condition that the previous
	// leader set.
	if was := blockerOf(&s.evacuation.Status); was != nil && was.Reason == maintenancev1alpha1.ReasonSurgePending {
		return at
	}
	if grace := s.servingSince.Add(min(s.surgeTimeout, longestGrace) / 2); at.Before(grace) {
		return grace
	}
	return at
}

// surgePending returns the blocker of a pod whose replacement is not available. The evacuator's
// report is quoted.
func (d *decision) surgePending(deadline deadline) *eviction.Blocker {
	message := fmt.Sprintf("The replacement of this pod is not available, and there has been no progress since %s. "+
		"Free capacity for one more pod of the Deployment or fix what prevents it from starting; "+
		"set the annotation %s on the Deployment if its pods start slowly, "+
		"or %s: %s to evict its pods without a replacement, as their disruption budget allows.",
		deadline.since.UTC().Format(time.RFC3339), maintenancev1alpha1.AnnotationSurgeTimeout,
		maintenancev1alpha1.AnnotationSurge, maintenancev1alpha1.SurgeDisabled)
	if deadline.reported {
		if said := protocol.OneLine(d.status.Message, maxMessage/4); said != "" {
			message += fmt.Sprintf(" Last report of the evacuator: %q", said)
		}
	}
	return &eviction.Blocker{Reason: maintenancev1alpha1.ReasonSurgePending, Message: message}
}
