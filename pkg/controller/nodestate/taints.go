// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// TaintKeys are the keys of the taints that the server may add, in the order in which it adds them.
var TaintKeys = []string{v1alpha1.TaintHeld, v1alpha1.TaintDrain}

// Taint returns the taint of a key.
func Taint(key string) corev1.Taint {
	if key == v1alpha1.TaintHeld {
		return corev1.Taint{Key: key, Effect: corev1.TaintEffectPreferNoSchedule}
	}
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
}

// IsTaint reports whether a taint is ours of the given key.
func IsTaint(taint corev1.Taint, key string) bool {
	want := Taint(key)
	return taint.Key == want.Key && taint.Effect == want.Effect
}

// HasTaint reports whether a node has our taint of the given key.
func HasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return IsTaint(taint, key) })
}

// SameTaints reports whether two states of a node have the same taints of ours.
func SameTaints(a, b *corev1.Node) bool {
	return !slices.ContainsFunc(TaintKeys, func(key string) bool { return HasTaint(a, key) != HasTaint(b, key) })
}
