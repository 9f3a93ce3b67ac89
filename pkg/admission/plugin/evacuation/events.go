// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

// Reasons of the events of this plugin.
const (
	// EventEvacuatorIgnored: the annotation of a pod that names an evacuator is invalid and
	// ignored. About the pod.
	EventEvacuatorIgnored = "EvacuatorAnnotationIgnored"
)

// actionResolve is the action of that event.
const actionResolve = "ResolveEvacuators"
