// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package eventref builds the object references and the notes of events.
package eventref

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// maxNote is the maximum length of a note, in bytes, that the events API accepts.
const maxNote = 1024

// Events get references instead of objects, since an object from an informer has no kind, and the
// scheme of a recorder may not have its type.

// NodeMaintenance returns a reference to a maintenance.
func NodeMaintenance(nm *v1alpha1.NodeMaintenance) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeMaintenance",
		Name: nm.Name, UID: nm.UID, ResourceVersion: nm.ResourceVersion,
	}
}

// Rollout returns a reference to a rollout.
func Rollout(r *v1alpha1.NodeMaintenanceRollout) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeMaintenanceRollout",
		Name: r.Name, UID: r.UID, ResourceVersion: r.ResourceVersion,
	}
}

// Node returns a reference to a node.
func Node(node *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

// Note formats the note of an event as one line, and truncates it to the limit of the events API.
func Note(format string, args ...any) string {
	return protocol.OneLine(fmt.Sprintf(format, args...), maxNote)
}
