// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evictionreview

import (
	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Reasons of the events about evictions that become Evacuations.
const (
	// EventBecameEvacuation: a user asked for the eviction of a pod with evacuators, and the pod
	// got an Evacuation instead. The event names the user. About the pod.
	EventBecameEvacuation = "EvictionBecameEvacuation"
)

// actionReview is the action in this event.
const actionReview = "ReviewEviction"

// sendBecame sends the event about a new Evacuation. by describes the eviction.
func (h *Handler) sendBecame(evacuation *v1alpha1.Evacuation, by string) {
	pod := evacuation.Spec.PodRef
	h.Recorder.Eventf(
		&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: evacuation.Namespace, Name: pod.Name, UID: pod.UID},
		&corev1.ObjectReference{
			APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Evacuation",
			Namespace: evacuation.Namespace, Name: evacuation.Name, UID: evacuation.UID, ResourceVersion: evacuation.ResourceVersion,
		},
		corev1.EventTypeNormal, EventBecameEvacuation, actionReview,
		"The pod is evacuated because of %s. Evictions of the pod are refused until its evacuators are done.", by)
}
