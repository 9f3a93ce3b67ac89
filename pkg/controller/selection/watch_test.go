// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
)

func newNode(pool, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "one", UID: "1", ResourceVersion: version, Labels: map[string]string{"pool": pool},
	}}
}

func newMaintenance() *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{
			Name: "m", UID: "m", Generation: 1, Finalizers: []string{v1alpha1.FinalizerMaintenanceCompletion},
		},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageDrain, NodeSelector: build.Labelled("pool", "blue"),
		},
	}
}

// TestSubscribers follows a node and a maintenance from their creation to their deletion.
func TestSubscribers(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	s := newSelection(clock)
	var change NodeChange
	var selected, released []string
	s.Subscribe(Subscriber{
		Node: func(c NodeChange) { change = c },
		Maintenance: func(_, _ *v1alpha1.NodeMaintenance) {
			selected = nil
			for _, node := range s.NodesOf("m") {
				selected = append(selected, node.Name)
			}
		},
		Released: func(node string) { released = append(released, node) },
	})
	s.Subscribe(Subscriber{}) // its functions are nil
	want := func(step string, concerned, lingering []string) {
		t.Helper()
		if !slices.Equal(change.Concerned, concerned) || !slices.Equal(change.Lingering, lingering) {
			t.Errorf("%s: got concerned %q, lingering %q, want %q, %q",
				step, change.Concerned, change.Lingering, concerned, lingering)
		}
	}
	blue, heartbeat, green := newNode("blue", "1"), newNode("blue", "2"), newNode("green", "3")
	s.nodeChanged(nil, blue)
	want("a node without a maintenance", nil, nil)
	nm := newMaintenance()
	s.maintenanceChanged(nil, nm)
	if !slices.Equal(selected, []string{"one"}) {
		t.Errorf("a subscriber was called with %q selected, want the selection to be updated before the call", selected)
	}
	s.nodeChanged(blue, heartbeat)
	want("a heartbeat", []string{"m"}, nil)
	if got := s.NodesOf("m")[0].ResourceVersion; got != "2" {
		t.Errorf("got resourceVersion %s of the node, want 2", got)
	}
	s.nodeChanged(heartbeat, green)
	want("a label that stops matching", []string{"m"}, []string{"m"})
	if next := s.ReleaseExpired("m"); next != Lingering || len(released) > 0 {
		t.Errorf("released %q, the next node in %s, want none, the next node in %s", released, next, Lingering)
	}
	clock.SetTime(clock.Now().Add(Lingering))
	if next := s.ReleaseExpired("m"); next != 0 || !slices.Equal(released, []string{"one"}) {
		t.Errorf("released %q, the next node in %s, want node one and no next node", released, next)
	}
	s.nodeChanged(green, newNode("blue", "4"))
	s.maintenanceChanged(nm, nil)
	if !slices.Equal(selected, []string{"one"}) || len(s.MaintenancesOn("one")) > 0 {
		t.Errorf("deletion: got nodes %q during the call and maintenances %q after it, want node one and none",
			selected, s.MaintenancesOn("one"))
	}
	s.nodeChanged(newNode("blue", "4"), nil)
	want("a node that is deleted", nil, nil)
}
