// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// TestNodeIsUncordonedForEachMaintenance uncordons a node for two maintenances that exist to do so.
func TestNodeIsUncordonedForEachMaintenance(t *testing.T) {
	c := newCordons(clock.RealClock{})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}}
	c.noteLifted(node, "a")
	c.noteLifted(node, "b")
	want := func(when string, want map[types.UID]bool) {
		t.Helper()
		for uid, want := range want {
			if got := c.IsLifted(node, uid); got != want {
				t.Errorf("%s, maintenance %s: got lifted %t, want %t", when, uid, got, want)
			}
		}
	}
	want("after both", map[types.UID]bool{"a": true, "b": true, "c": false})
	c.forget(node)
	want("after the node was deleted", map[types.UID]bool{"a": false, "b": false, "c": false})
}
