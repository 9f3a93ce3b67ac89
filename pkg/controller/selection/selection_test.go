// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

// TestNewLeaderInherits covers a new leader that finds node one in the status, although the labels
// of the node do not match.
func TestNewLeaderInherits(t *testing.T) {
	for name, test := range map[string]struct {
		reason   v1alpha1.NodeStatusReason
		observed int64
		// registeredAgain: the node in the cache has another UID than the node in the status.
		registeredAgain bool
		want            bool
	}{
		"the node lingers":                                  {observed: 1, want: true},
		"the previous leader was releasing the node":        {observed: 1, reason: v1alpha1.NodeStatusReleasing},
		"the previous leader could not release the node":    {observed: 1, reason: v1alpha1.NodeStatusNotReleased},
		"the previous leader did not see the selector":      {observed: 0},
		"another node was registered under the same name":   {observed: 1, registeredAgain: true},
		"the previous leader could not cordon the node yet": {observed: 1, reason: v1alpha1.NodeStatusNotCordoned, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSelection(clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)))
			nm := newMaintenance()
			nm.Status.ObservedGeneration = test.observed
			nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{
				NodeRef: v1alpha1.NodeReference{Name: "one", UID: "1"}, Reason: test.reason,
			}}
			node := newNode("green", "1")
			if test.registeredAgain {
				node.UID = "another"
			}
			s.nodeChanged(nil, node)
			s.maintenanceChanged(nil, nm)
			is.Equal(t, s.Count("m") == 1, test.want, "node selected")
		})
	}
}

// TestShows changes each input of a selection.
func TestShows(t *testing.T) {
	s := newSelection(clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)))
	want := func(step string, nm *v1alpha1.NodeMaintenance, want bool) {
		t.Helper()
		if got, err := s.Shows(nm); got != want || err != nil {
			t.Errorf("%s: got %t, error %v, want %t", step, got, err, want)
		}
	}
	nm := newMaintenance()
	want("before its event", nm, false)
	s.maintenanceChanged(nil, nm)
	want("after its event", nm, true)

	newer := nm.DeepCopy()
	newer.Generation = 2
	want("a newer generation before its event", newer, false)
	lined := nm.DeepCopy()
	lined.Status.NewestNodeTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	want("the newest node before its event", lined, false)
	s.maintenanceChanged(nm, lined)
	want("the newest node after its event", lined, true)
	again := lined.DeepCopy()
	again.UID = "again"
	want("another maintenance of the same name", again, false)

	invalid := lined.DeepCopy()
	invalid.Generation = 2
	invalid.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0].Operator = "Near"
	s.nodeChanged(nil, newNode("blue", "1"))
	s.maintenanceChanged(lined, invalid)
	if got, err := s.Shows(invalid); got || err == nil {
		t.Errorf("an invalid selector: got %t, error %v, want false and an error", got, err)
	}
	if got := s.Count("m"); got != 1 {
		t.Errorf("an invalid selector: got %d nodes, want the node that was selected before", got)
	}
	valid := lined.DeepCopy()
	valid.Generation = 3
	s.maintenanceChanged(invalid, valid)
	want("a valid selector", valid, true)
}
