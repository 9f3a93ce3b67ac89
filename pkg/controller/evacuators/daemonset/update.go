// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons and actions of the events of this evacuator.
const (
	// EventUpdatedByDrain: a DaemonSet with the strategy OnDelete loses a pod to a drain. About the
	// DaemonSet.
	EventUpdatedByDrain = "UpdatedByDrain"

	actionEvacuate = "Evacuate"
)

// warnOfUpdate tells the owner of a DaemonSet with the update strategy OnDelete that pods which are
// recreated after the maintenance have the newest template. Only the deletion of pods updates such
// DaemonSets.
func (c *Controller) warnOfUpdate(s *situation) {
	owner := metav1.GetControllerOfNoCopy(s.pod)
	if c.recorder == nil || owner == nil {
		return
	}
	ds, err := c.daemonSetLister.DaemonSets(s.pod.Namespace).Get(owner.Name)
	if err != nil || ds.UID != owner.UID || ds.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		return
	}
	first := false
	c.warned.Change(ds.UID, func(_ struct{}, known bool) (struct{}, bool) {
		first = !known
		return struct{}{}, true
	})
	if !first {
		return
	}
	c.recorder.Eventf(
		&corev1.ObjectReference{
			APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet", Namespace: ds.Namespace, Name: ds.Name, UID: ds.UID,
		},
		nil, corev1.EventTypeWarning, EventUpdatedByDrain, actionEvacuate,
		"NodeMaintenance %s evicts pods of this DaemonSet, whose update strategy is OnDelete: on node %s and others "+
			"that are drained they are recreated from its newest template when the maintenance is complete.",
		s.askedBy.Name, s.node.Name)
}
