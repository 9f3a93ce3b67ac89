// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deletioncost

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// Reasons of the events.
const (
	// EventBadDeletionCost: the deletion cost of a pod that has to be evicted is not a valid
	// number. About the pod.
	EventBadDeletionCost = "BadPodDeletionCost"
)

// reportBadCost sends an event that a malformed deletion cost of a pod counts as 0 in the order of
// evictions. It sends one event for each malformed value.
func (c *Controller) reportBadCost(key types.NamespacedName, pod *corev1.Pod) {
	value := pod.Annotations[corev1.PodDeletionCost]
	if _, ok := Of(pod); ok || !c.isNewBadCost(key, value) {
		return
	}
	c.Recorder.Eventf(
		&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}, nil,
		corev1.EventTypeWarning, EventBadDeletionCost, "Evacuate",
		"The annotation %s is %q, which is not a 32-bit integer in plain notation. It counts as 0 in the order of evictions.",
		corev1.PodDeletionCost, wording.Cut(value, protocol.MaxMessage/4))
}

func (c *Controller) isNewBadCost(key types.NamespacedName, value string) (isNew bool) {
	c.turns.Change(key, func(t turn, _ bool) (turn, bool) {
		isNew = t.badCost != value
		t.badCost = value
		return t, true
	})
	return isNew
}
