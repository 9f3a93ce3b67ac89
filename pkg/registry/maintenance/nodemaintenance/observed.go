// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// observePatience is the time after which users get a warning if no controller has observed a
// change of a NodeMaintenance.
const observePatience = time.Minute

// observation warns users if no controller acts on a NodeMaintenance. It depends only on the object
// and on the Lease, so every replica gives the same warnings.
type observation struct {
	clock clock.PassiveClock
	// noLeader returns the warning that no replica leads; empty if a replica leads, or if this is
	// unknown.
	noLeader func() string
}

// unobservedFor returns the time since the present generation of a maintenance was written if no
// controller has observed it; otherwise 0.
func (o observation) unobservedFor(nm *maintenance.NodeMaintenance) time.Duration {
	if nm.Status.ObservedGeneration >= nm.Generation || isDone(nm) {
		return 0
	}
	return o.clock.Since(lastWritten(nm))
}

// lastWritten returns the time of the last write of a maintenance by a user, which also wrote the
// present generation.
func lastWritten(nm *maintenance.NodeMaintenance) time.Time {
	last := nm.CreationTimestamp
	later := func(t *metav1.Time) {
		if t != nil && last.Before(t) {
			last = *t
		}
	}
	later(nm.DeletionTimestamp)
	for i := range nm.Status.StageStatuses {
		later(nm.Status.StageStatuses[i].StartTimestamp)
	}
	for i := range nm.ManagedFields {
		if nm.ManagedFields[i].Subresource == "" {
			later(nm.ManagedFields[i].Time)
		}
	}
	return last.Time
}

// isDone reports whether a maintenance is complete and has released its nodes. The controllers no
// longer observe it.
func isDone(nm *maintenance.NodeMaintenance) bool {
	return nm.Spec.Stage == maintenance.NodeMaintenanceStageComplete && !slices.Contains(nm.Finalizers, v1alpha1.FinalizerMaintenanceCompletion)
}

// isOverdue reports whether no controller has observed a maintenance for too long.
func (o observation) isOverdue(nm *maintenance.NodeMaintenance) bool {
	return o.unobservedFor(nm) >= observePatience
}

func (o observation) warnings(nm *maintenance.NodeMaintenance) []string {
	if text := o.noLeader(); text != "" && !isDone(nm) {
		return []string{text}
	}
	if !o.isOverdue(nm) {
		return nil
	}
	// Clients print equal warnings once.
	return []string{fmt.Sprintf("%s: no replica has observed generation %d of this NodeMaintenance, which was written at %s; the log of the server explains why",
		protocol.NoLeaderWarning, nm.Generation, lastWritten(nm).UTC().Format(time.RFC3339))}
}
