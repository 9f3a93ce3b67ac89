/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodemaintenance

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodemarks"
)

// wantCordon checks a node: whether it is cordoned and which maintenances are on its annotation.
func (f *fixture) wantCordon(name string, unschedulable bool, by ...string) {
	f.t.Helper()
	node := f.node(name)
	if node.Spec.Unschedulable != unschedulable {
		f.t.Errorf("node %s: got unschedulable %t, want %t", name, node.Spec.Unschedulable, unschedulable)
	}
	if got := slices.Sorted(maps.Keys(nodemarks.CordonedBy(node))); !slices.Equal(got, by) {
		f.t.Errorf("node %s: got cordoned by %v, want %v", name, got, by)
	}
	if _, there := node.Annotations[maintenancev1alpha1.AnnotationCordonedBy]; there && len(by) == 0 {
		f.t.Errorf("node %s still has the annotation", name)
	}
}

func (f *fixture) wantDrained(name string, status metav1.ConditionStatus, reason string) {
	f.t.Helper()
	for _, c := range f.nm(name).Status.Conditions {
		if c.Type == maintenancev1alpha1.ConditionDrained {
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
	c := conditionOf(f.nm(name), maintenancev1alpha1.ConditionProgressing)
	if c == nil {
		f.t.Error("no condition Progressing")
	} else if c.Status != status || c.Reason != reason {
		f.t.Errorf("got Progressing %s %s (%s), want %s %s", c.Status, c.Reason, c.Message, status, reason)
	}
}

// wantEvent reads the events that have been recorded so far, and checks that one has the reason.
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
