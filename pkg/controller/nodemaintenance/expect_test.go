// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
)

// wantCordon checks whether a node is cordoned, and which maintenances its annotation names.
func (f *fixture) wantCordon(name string, unschedulable bool, by ...string) {
	f.t.Helper()
	node := f.node(name)
	if node.Spec.Unschedulable != unschedulable {
		f.t.Errorf("node %s: got unschedulable %t, want %t", name, node.Spec.Unschedulable, unschedulable)
	}
	if got := slices.Sorted(maps.Keys(marks.CordonedBy(node))); !slices.Equal(got, by) {
		f.t.Errorf("node %s: got cordoned by %v, want %v", name, got, by)
	}
	if _, there := node.Annotations[v1alpha1.AnnotationCordonedBy]; there && len(by) == 0 {
		f.t.Errorf("node %s still has the annotation", name)
	}
}

func (f *fixture) wantDrained(name string, status metav1.ConditionStatus, reason string) {
	f.t.Helper()
	for _, c := range f.nm(name).Status.Conditions {
		if c.Type == v1alpha1.ConditionDrained {
			if c.Status != status || c.Reason != reason {
				f.t.Errorf("got Drained %s %s (%s), want %s %s", c.Status, c.Reason, c.Message, status, reason)
			}
			return
		}
	}
	f.t.Error("no condition Drained")
}

func (f *fixture) wantProgressing(name string, status metav1.ConditionStatus, reason string) {
	f.t.Helper()
	c := conditionOf(f.nm(name), v1alpha1.ConditionProgressing)
	if c == nil {
		f.t.Error("no condition Progressing")
	} else if c.Status != status || c.Reason != reason {
		f.t.Errorf("got Progressing %s %s (%s), want %s %s", c.Status, c.Reason, c.Message, status, reason)
	}
}

// wantEvent reads the recorded events, and checks that one of them has the reason.
func (f *fixture) wantEvent(reason string) string {
	f.t.Helper()
	var seen []string
	for {
		select {
		case e := <-f.recorder.Events:
			if strings.Contains(e, " "+reason+" ") {
				return e
			}
			seen = append(seen, e)
		default:
			f.t.Errorf("no event %s among %q", reason, seen)
			return ""
		}
	}
}
