// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

const (
	// maxStatusBytes is the maximum size of an object with the messages of its nodes; etcd refuses
	// 1.5 MiB by default.
	maxStatusBytes = 1 << 20
	// statusPace is the time between two writes of counters and messages, multiplied by the size of
	// the object in units of bytesPerPace if that is more than one.
	statusPace   = time.Second
	bytesPerPace = 100 << 10
)

// writeStatus stores a status if it differs, and returns the stored maintenance. A status that
// differs only in counters and messages is written later, unless it is urgent. writeStatus takes
// ownership of status.
func (c *Controller) writeStatus(ctx context.Context, nm *v1alpha1.NodeMaintenance, status v1alpha1.NodeMaintenanceStatus,
	urgent bool) (*v1alpha1.NodeMaintenance, error) {
	changed := *nm
	next := &changed
	next.Status = status
	c.keepSmall(next)
	if sameStatus(&nm.Status, &next.Status) {
		return nm, nil
	}
	if !urgent && !isUrgent(nm, next) {
		if wait := c.writePause(nm.Name, next.Size()); wait > 0 {
			c.queue.AddAfter(nm.Name, wait)
			return nm, nil
		}
	}
	stored, err := c.maintenance.MaintenanceV1alpha1().NodeMaintenances().UpdateStatus(ctx, next, metav1.UpdateOptions{FieldManager: fieldManager})
	if isTooLarge(err) {
		c.dropMessages(next)
		stored, err = c.maintenance.MaintenanceV1alpha1().NodeMaintenances().UpdateStatus(ctx, next, metav1.UpdateOptions{FieldManager: fieldManager})
	}
	if isTooLarge(err) {
		// The returned error is retried with backoff and, after a while, reported in the stored
		// status.
		c.maintenanceEvent(nm, corev1.EventTypeWarning, EventStatusTooLarge, actionDrain,
			"The status of %s is too large to be stored: select fewer nodes per NodeMaintenance or use fewer pod selectors", wording.Count(len(next.Status.NodeStatuses), "node"))
		return nil, fmt.Errorf("write status: %d bytes are too large to be stored: %w", next.Size(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("write status: %w", err)
	}
	c.latest.Wrote(stored)
	c.written.Set(nm.Name, c.clock.Now())
	return stored, nil
}

// isUrgent reports whether a status differs in more than counters and messages, so that other
// components or a new leader need it immediately.
func isUrgent(old, next *v1alpha1.NodeMaintenance) bool {
	was := meta.FindStatusCondition(old.Status.Conditions, v1alpha1.ConditionDrained)
	is := meta.FindStatusCondition(next.Status.Conditions, v1alpha1.ConditionDrained)
	switch {
	case old.Status.ObservedGeneration != next.Status.ObservedGeneration, was == nil, is == nil, was.Status != is.Status:
		return true
	case v1alpha1.IsHolding(next) && !drainplan.SameTargets(old, next):
		return true
	}
	return progressStatus(old) != progressStatus(next)
}

// progressStatus returns the status of the condition Progressing.
func progressStatus(nm *v1alpha1.NodeMaintenance) metav1.ConditionStatus {
	if condition := conditionOf(nm, v1alpha1.ConditionProgressing); condition != nil {
		return condition.Status
	}
	return ""
}

// keepSmall drops the messages of the nodes if the object would become too large, and sets the
// condition about that.
func (c *Controller) keepSmall(nm *v1alpha1.NodeMaintenance) {
	if nm.Size() > maxStatusBytes {
		c.dropMessages(nm)
		return
	}
	meta.RemoveStatusCondition(&nm.Status.Conditions, v1alpha1.ConditionNodeMessagesOmitted)
}

// dropMessages drops the messages of all nodes, and sets the condition about that.
func (c *Controller) dropMessages(nm *v1alpha1.NodeMaintenance) {
	for i := range nm.Status.NodeStatuses {
		nm.Status.NodeStatuses[i].DrainMessage = ""
	}
	setCondition(nm, &nm.Status, v1alpha1.ConditionNodeMessagesOmitted, verdict{metav1.ConditionTrue, v1alpha1.ReasonStatusTooLarge,
		"The status would be too large with a message for each node; the counters and reasons are complete"}, c.clock.Now())
}

// isTooLarge reports whether the API server or etcd refused an object because of its size. For etcd
// it has to compare the text: the API server passes no typed error on.
func isTooLarge(err error) bool {
	return err != nil && (apierrors.IsRequestEntityTooLargeError(err) || strings.Contains(err.Error(), "request is too large"))
}

// writePause returns how long to wait before the next write of the status of a maintenance whose
// object has the given size.
func (c *Controller) writePause(name string, size int) time.Duration {
	last, known := c.written.Get(name)
	if !known {
		return 0
	}
	pace := max(statusPace, statusPace*time.Duration(size)/bytesPerPace)
	return pace - c.clock.Since(last)
}

// sameNodeStatus reports whether two states of a node are equal. A new field of the type has to be
// added here; a test checks that.
func sameNodeStatus(a, b *v1alpha1.NodeMaintenanceNodeStatus) bool {
	return a.NodeRef == b.NodeRef && a.Reason == b.Reason && a.DrainMessage == b.DrainMessage && a.PodsPendingEvacuation == b.PodsPendingEvacuation &&
		a.PodsEvacuating == b.PodsEvacuating && a.PodsBlocked == b.PodsBlocked && a.PodsKept == b.PodsKept && a.PodsPeak == b.PodsPeak &&
		a.PodsGonePeak == b.PodsGonePeak &&
		drainplan.SameEntries(a.DrainTargets, b.DrainTargets)
}

// sameStatus reports whether two statuses are equal.
func sameStatus(a, b *v1alpha1.NodeMaintenanceStatus) bool {
	if len(a.NodeStatuses) != len(b.NodeStatuses) {
		return false
	}
	for i := range a.NodeStatuses {
		if !sameNodeStatus(&a.NodeStatuses[i], &b.NodeStatuses[i]) {
			return false
		}
	}
	x, y := *a, *b
	x.NodeStatuses, y.NodeStatuses = nil, nil
	return equality.Semantic.DeepEqual(x, y)
}
