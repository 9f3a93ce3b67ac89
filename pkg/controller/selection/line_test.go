// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/nodeselector"
	"haulout.dev/haulout/pkg/testing/is"
)

func nodeNamed(name string, created time.Time) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(created), Labels: map[string]string{"pool": "blue"},
	}}
}

// TestNodeThatJoinsWhileTheLineIsDrawn: after the controller has read the newest node, and before
// it stores newestNodeTimestamp, another node joins.
func TestNodeThatJoinsWhileTheLineIsDrawn(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		change func(nm *v1alpha1.NodeMaintenance)
		want   bool
	}{
		"the node is new": {change: func(*v1alpha1.NodeMaintenance) {}},
		"new nodes join": {
			change: func(nm *v1alpha1.NodeMaintenance) { nm.Spec.NewNodes = v1alpha1.NewNodesPolicyJoin }, want: true,
		},
		"the status has the node": {
			change: func(nm *v1alpha1.NodeMaintenance) {
				nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "two", UID: "uid-two"}}}
			}, want: true,
		},
		"the selector names the node": {
			change: func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.NodeSelector.NodeSelectorTerms = append(nm.Spec.NodeSelector.NodeSelectorTerms, corev1.NodeSelectorTerm{
					MatchFields: []corev1.NodeSelectorRequirement{
						{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"two"}},
					},
				})
			}, want: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(now)
			s := newSelection(clock)
			nm := newMaintenance()
			tt.change(nm)
			s.nodeChanged(nil, nodeNamed("one", now.Add(-time.Hour)))
			s.maintenanceChanged(nil, nm)
			lined := nm.DeepCopy()
			lined.Status.NewestNodeTimestamp = &metav1.Time{Time: now.Add(-time.Hour)}
			two := nodeNamed("two", now)
			s.nodeChanged(nil, two)
			s.maintenanceChanged(nm, lined)
			check := func(when string) {
				t.Helper()
				selected := map[string]bool{}
				for _, node := range s.NodesOf("m") {
					selected[node.Name] = true
				}
				if !selected["one"] || selected["two"] != tt.want {
					t.Errorf("%s: got %v, want one, and two: %t", when, selected, tt.want)
				}
				if ignored := len(s.IgnoredBy("m")) == 1; ignored == tt.want {
					t.Errorf("%s: got the node ignored %t, want %t", when, ignored, !tt.want)
				}
			}
			check("when the line is stored")
			newer := two.DeepCopy()
			newer.Labels["rack"] = "a"
			s.nodeChanged(two, newer)
			clock.SetTime(now.Add(time.Hour))
			s.ReleaseExpired("m")
			check("an hour later")
		})
	}
}

// TestSelectorsAreMatchedWithoutTheLock: a selector with the maximum number of terms is matched
// with many nodes, while nodes and the selector change. Only nodes that change at the same time are
// matched under the lock.
func TestSelectorsAreMatchedWithoutTheLock(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	s := newSelection(clocktesting.NewFakePassiveClock(now))
	locked, free := 0, 0
	var meanwhile func()
	s.match = func(selector *nodeselector.Selector, node *corev1.Node) nodeselector.Match {
		if s.mu.TryLock() {
			s.mu.Unlock()
			free++
		} else {
			locked++
		}
		if during := meanwhile; during != nil && free > 500 {
			meanwhile = nil
			during()
		}
		return selector.Match(node)
	}
	var nodes []*corev1.Node
	for i := range 1000 {
		nodes = append(nodes, nodeNamed(fmt.Sprintf("node-%d", i), now))
		s.nodeChanged(nil, nodes[i])
	}
	nm := newMaintenance()
	meanwhile = func() {
		moved, heard := nodes[0].DeepCopy(), nodes[1].DeepCopy()
		moved.Labels["pool"] = "green"
		heard.ResourceVersion = "2"
		s.nodeChanged(nodes[0], moved)
		s.nodeChanged(nodes[1], heard)
		s.nodeChanged(nil, nodeNamed("joined", now))
		s.nodeChanged(nodes[2], nil)
	}
	s.maintenanceChanged(nil, nm)
	if free != 1000 || locked != 2 {
		t.Errorf("got %d nodes matched without the lock and %d with it, want 1000, and the 2 that changed meanwhile", free, locked)
	}
	is.Equal(t, s.Count("m"), 999, "nodes")
	free, locked = 0, 0
	moved := nodes[3].DeepCopy()
	moved.Labels["pool"] = "green"
	s.nodeChanged(nodes[3], moved)
	if free != 1 || locked != 0 {
		t.Errorf("got a node matched %d times without the lock and %d times with it, want once without", free, locked)
	}
}
