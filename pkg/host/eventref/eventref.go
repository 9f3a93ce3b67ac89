// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package eventref makes what events are about: references to objects, and notes that fit.
package eventref

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// maxNote is how many bytes of a note the events API takes.
const maxNote = 1024

// References instead of objects: they say what they are whatever scheme the recorder has, and
// although informers leave the kind out.

// NodeMaintenance returns a reference to a maintenance.
func NodeMaintenance(nm *v1alpha1.NodeMaintenance) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeMaintenance",
		Name: nm.Name, UID: nm.UID, ResourceVersion: nm.ResourceVersion,
	}
}

// Node returns a reference to a node.
func Node(node *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

// Note formats the note of an event and cuts it to what the events API takes.
func Note(format string, args ...any) string {
	s := fmt.Sprintf(format, args...)
	if len(s) > maxNote {
		s = strings.ToValidUTF8(s[:maxNote], "")
	}
	return s
}
