// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	corev1 "k8s.io/api/core/v1"
)

// Reasons of the events.
const (
	// EventSurgeStarted: the Deployment is scaled up before pods leave.
	EventSurgeStarted = "SurgeStarted"
	// EventSurgeEnded: the Deployment is scaled back after a surge.
	EventSurgeEnded = "SurgeEnded"
	// EventSurgeDissolved: a user or another controller has scaled the Deployment during a surge,
	// and its value is kept.
	EventSurgeDissolved = "SurgeDissolved"
	// EventSurgeDeclined: pods leave without a replacement.
	EventSurgeDeclined = "SurgeDeclined"
	// EventSurgeInVain: replacements are available, but the pods still cannot leave.
	EventSurgeInVain = "SurgeInVain"
	// EventInvalidAnnotation: a Haulout annotation on the Deployment has an invalid value.
	EventInvalidAnnotation = "InvalidAnnotation"
	// EventScaleFailed: the replica count cannot be written. The evacuator retries until the surge
	// timeout has passed. About the Deployment.
	EventScaleFailed = "ScaleFailed"
	// EventReplaced: a pod leaves with a scale-down of the additional replicas of a surge. About
	// the pod.
	EventReplaced = "Replaced"
)

// Actions of the events.
const (
	actionSurge   = "Surge"
	actionRelease = "Release"
	actionRead    = "Read"
)

type event struct {
	eventType, reason, action, message string
	// pod is the pod that the event is about; nil if it is about the Deployment.
	pod *corev1.Pod
}

func (c *Controller) send(s situation, events []event) {
	if s.deployment == nil {
		return
	}
	// Objects in the cache have no kind.
	regarding := &corev1.ObjectReference{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: s.deployment.Namespace, Name: s.deployment.Name,
		UID: s.deployment.UID, ResourceVersion: s.deployment.ResourceVersion,
	}
	for _, e := range events {
		about := regarding
		if e.pod != nil {
			about = &corev1.ObjectReference{
				APIVersion: "v1", Kind: "Pod", Namespace: e.pod.Namespace, Name: e.pod.Name,
				UID: e.pod.UID, ResourceVersion: e.pod.ResourceVersion,
			}
		}
		if isStep(e.reason) {
			surges.WithLabelValues(e.reason).Inc()
		}
		c.Recorder.Eventf(about, nil, e.eventType, e.reason, e.action, "%s", e.message)
	}
}

// isStep reports whether the metric counts events with this reason as steps of a surge.
func isStep(reason string) bool {
	return reason != EventInvalidAnnotation && reason != EventReplaced && reason != EventScaleFailed
}
