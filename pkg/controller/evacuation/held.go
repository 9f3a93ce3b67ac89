// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
)

// heldCheck is how often an Evacuation that foreign finalizers keep is reconciled without an event:
// this controller does not watch whether a maintenance still asks for the pod.
const heldCheck = time.Minute

// foreignHolders returns the finalizers that keep an Evacuation which is being deleted and has no
// instigator. The name of an Evacuation is canonical: while these keep it, no new one for the same
// pod can be created.
func foreignHolders(evacuation *maintenancev1alpha1.Evacuation) []string {
	if evacuation.DeletionTimestamp == nil || protocol.HasInstigator(evacuation.Finalizers) {
		return nil
	}
	return evacuation.Finalizers
}

// hasForeignFinalizer reports whether an Evacuation has a finalizer that is no instigator's.
func hasForeignFinalizer(evacuation *maintenancev1alpha1.Evacuation) bool {
	return slices.ContainsFunc(evacuation.Finalizers, func(finalizer string) bool {
		_, isInstigator := protocol.IsInstigatorFinalizer(finalizer)
		return !isInstigator
	})
}

// isDeadButHeld reports whether an Evacuation is over for its instigators and evacuators and only
// foreign finalizers keep it.
func isDeadButHeld(evacuation *maintenancev1alpha1.Evacuation) bool {
	return len(foreignHolders(evacuation)) > 0 && !isComplete(evacuation) &&
		evacuation.Status.EvacuationCancellationPolicy != maintenancev1alpha1.EvacuationCancellationPolicyForbid
}

// decideHeld makes sure that foreign finalizers do not keep the pod on its node: if a maintenance
// still asks the pod to leave, the pod is evicted within its budget, and the message names the
// finalizers. Otherwise nothing is done and the pod stays.
func (d *decision) decideHeld(s situation, holders []string) {
	d.countFailedEvictions(s)
	d.wakeAt(s.now.Add(heldCheck))
	switch {
	case !s.targeted:
		d.clearBlocked(s)
		return
	case s.pod.DeletionTimestamp != nil:
		d.decideTerminating(s)
		return
	}
	canLeave := s.podType == maintenancev1alpha1.PodTypeDefault ||
		s.podType == maintenancev1alpha1.PodTypeDaemonSet && !s.replaced
	d.evict = canLeave && !s.now.Before(heldUntil(s))
	d.setBlocked(s, held(s, d.evict, holders))
}

func held(s situation, evict bool, holders []string) *eviction.Blocker {
	b := &eviction.Blocker{Reason: maintenancev1alpha1.ReasonEvacuationHeld}
	names := protocol.OneLine(strings.Join(holders, ", "), maxMessage/2)
	b.Message = fmt.Sprintf("The Evacuation is being deleted and is held by the finalizers %s, "+
		"while a NodeMaintenance still asks the pod to leave. No evacuator works on it.", names)
	if evict {
		b.Message += " The server evicts the pod, within its disruption budget if it has one."
	}
	b.Message += " Remove these finalizers or repair the controllers that set them."
	if evict && s.eviction.Blocker != nil {
		b.Message += " The eviction waits: " + s.eviction.Blocker.Message
	}
	return b
}
