// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// starts finds the units of a rollout that start at a time at which none may.
type starts struct {
	// class is the class of the workers of the rollout.
	class string

	mu     sync.Mutex
	last   *v1alpha1.NodeMaintenanceRollout
	found  []string
	failed error
}

// see compares a version of the rollout with the previous one that was seen. Versions between them
// may be missing. What keeps units from starting in both did so between them as well.
func (s *starts) see(event watch.Event, _ bool) {
	r, ok := event.Object.(*v1alpha1.NodeMaintenanceRollout)
	if !ok || event.Type == watch.Deleted || r.Spec.Template.Task.Worker != s.class {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.last
	s.last = r
	if before == nil {
		return
	}
	why := ""
	switch {
	case isClosed(before) && isClosed(r):
		why = "its window is closed"
	case isHeld(before, r):
		why = "it is held"
	}
	for _, unit := range r.Status.Current {
		if why != "" && !slices.ContainsFunc(before.Status.Current, func(u v1alpha1.RolloutUnit) bool { return u.Maintenance == unit.Maintenance }) {
			s.found = append(s.found, fmt.Sprintf("unit %s of rollout %s started although %s", unit.Unit, r.Name, why))
		}
	}
}

func (s *starts) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = errors.Join(s.failed, err)
}

// check reports the units that were found.
func (s *starts) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	is.True(t, s.last != nil, "no version of the rollout was seen")
	framework.Accept(t, s.found, s.failed)
}

func isClosed(r *v1alpha1.NodeMaintenanceRollout) bool {
	return r.Status.Window != nil && !r.Status.Window.Open
}

// isHeld reports whether both versions have the same hold.
func isHeld(before, now *v1alpha1.NodeMaintenanceRollout) bool {
	return len(before.Spec.Holds) > 0 && len(now.Spec.Holds) > 0 && before.Spec.Holds[0].Since.Equal(now.Spec.Holds[0].Since)
}

// TestStartsAreFound checks that the judge of the rollouts finds what it looks for.
func TestStartsAreFound(t *testing.T) {
	version := func(units []string, change func(*v1alpha1.NodeMaintenanceRollout)) *v1alpha1.NodeMaintenanceRollout {
		r := &v1alpha1.NodeMaintenanceRollout{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
		r.Spec.Template.Task = &v1alpha1.NodeMaintenanceTask{Worker: "example.com/w"}
		for _, unit := range units {
			r.Status.Current = append(r.Status.Current, v1alpha1.RolloutUnit{Unit: unit, Maintenance: "r-" + unit})
		}
		change(r)
		return r
	}
	dawn := metav1.Unix(1000, 0)
	later := metav1.Unix(1001, 0)
	free := func(*v1alpha1.NodeMaintenanceRollout) {}
	closed := func(r *v1alpha1.NodeMaintenanceRollout) { r.Status.Window = &v1alpha1.RolloutWindowStatus{} }
	open := func(r *v1alpha1.NodeMaintenanceRollout) { r.Status.Window = &v1alpha1.RolloutWindowStatus{Open: true} }
	held := func(since *metav1.Time) func(*v1alpha1.NodeMaintenanceRollout) {
		return func(r *v1alpha1.NodeMaintenanceRollout) {
			r.Spec.Holds = []v1alpha1.RolloutHold{{Name: "h", Since: since}}
		}
	}
	for sentence, tc := range map[string]struct {
		before, now func(*v1alpha1.NodeMaintenanceRollout)
		want        int
	}{
		"nothing keeps it":        {before: free, now: free},
		"the window was open":     {before: open, now: closed},
		"the window is open":      {before: closed, now: open},
		"the window is closed":    {before: closed, now: closed, want: 1},
		"the hold is new":         {before: free, now: held(&dawn)},
		"the hold was removed":    {before: held(&dawn), now: free},
		"the hold was replaced":   {before: held(&dawn), now: held(&later)},
		"the hold is still there": {before: held(&dawn), now: held(&dawn), want: 1},
	} {
		t.Run(sentence, func(t *testing.T) {
			s := &starts{class: "example.com/w"}
			s.see(watch.Event{Type: watch.Added, Object: version([]string{"a"}, tc.before)}, false)
			s.see(watch.Event{Type: watch.Modified, Object: version([]string{"a", "b"}, tc.now)}, false)
			must.True(t, len(s.found) == tc.want, "found %q, want %d", s.found, tc.want)
		})
	}
}
