// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/testing/is"
)

// TestNodeIsUncordonedForEachMaintenance uncordons a node for two maintenances that only uncordon.
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

// TestAListOfAnEarlierCordonConfirmsNothing: while the pods of the node are listed, a user
// uncordons the node and cordons it again.
func TestAListOfAnEarlierCordonConfirmsNothing(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	c := newCordons(clock)
	schedulable := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "1"}}
	cordoned := schedulable.DeepCopy()
	cordoned.Spec.Unschedulable = true
	c.observe(cordoned)
	before := c.Since(cordoned)
	clock.SetTime(clock.Now().Add(2 * SettleTime))
	c.observe(schedulable)
	c.observe(cordoned)
	is.True(t, !c.noteDrained(cordoned, "m", true, before) && !c.IsDrained(cordoned, "m", false),
		"the list before the second cordon confirms that the node is drained")
	is.True(t, c.noteDrained(cordoned, "m", true, c.Since(cordoned)) && c.IsDrained(cordoned, "m", false),
		"a list after the second cordon confirms nothing")
}
