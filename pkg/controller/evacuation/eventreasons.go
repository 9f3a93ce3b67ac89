// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// Reasons of the events of this controller. A pod that leaves without problems gets one event, with
// the reason why it left.
const (
	// EventCancelled: no instigator requests the evacuation any more.
	EventCancelled = "EvacuationCancelled"
	// EventHandedOver: the next evacuator became active, although the previous one did not report
	// completion.
	EventHandedOver = "EvacuatorHandedOver"
	// EventBlocked: the pod cannot leave. The event is sent when the reason changes.
	EventBlocked = "EvacuationBlocked"
	// EventRawEvictionExpired: the Evacuation was made for an eviction, and no client has tried to
	// evict the pod since. If no other instigator requests it, it is cancelled.
	EventRawEvictionExpired = "RawEvictionExpired"
	// EventEvicted: the API server accepted the eviction of a pod. The event names the maintenance
	// that drains the pod. About the pod.
	EventEvicted = "Evicted"
)

const (
	actionCancel   = "Cancel"
	actionHandOver = "HandOver"
	actionEvacuate = "Evacuate"
)

// event is an unsent event about the pod of an Evacuation. It is not about the Evacuation, because
// the owners of the pod look for events of the pod.
type event struct {
	eventType, reason, action, note string
}

func (c *Controller) send(evacuation *v1alpha1.Evacuation, events []event) {
	pod := evacuation.Spec.PodRef
	for _, e := range events {
		// Use references instead of objects: a reference has a kind even if the scheme of the
		// recorder does not have the type.
		c.recorder.Eventf(
			&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: evacuation.Namespace, Name: pod.Name, UID: pod.UID},
			&corev1.ObjectReference{
				APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Evacuation",
				Namespace: evacuation.Namespace, Name: evacuation.Name, UID: evacuation.UID, ResourceVersion: evacuation.ResourceVersion,
			},
			e.eventType, e.reason, e.action, "%s", wording.Cut(e.note, protocol.MaxMessage))
	}
}

// sendEvicted sends the event that a pod is evicted, and for which maintenance. It does not depend
// on a status write. protected is set if a budget selects the pod.
func (c *Controller) sendEvicted(pod *corev1.Pod, protected bool) {
	note := "The pod is evicted. No disruption budget selects it."
	if protected {
		note = "The pod is evicted, as its disruption budget allows."
	}
	// The event is also correct without the maintenance.
	if nm, err := c.askedBy(pod); err == nil && nm != nil {
		note = protocol.AddLeavesFor(note, nm)
	}
	about := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name,
		UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
	c.recorder.Eventf(about, nil, corev1.EventTypeNormal, EventEvicted, actionEvacuate, "%s", note)
}
