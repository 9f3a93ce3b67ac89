// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/drain/marks"
)

// notReadyGrace is the time for which a node that is not Ready does not count as out: a kubelet
// that restarts is not Ready for some seconds.
const notReadyGrace = 30 * time.Second

// Node is what a decision needs to know of a node.
type Node struct {
	// Name, UID and Labels are those of the Node.
	Name   string
	UID    types.UID
	Labels map[string]string

	controlPlane bool
	// down is why the node is out of service, as the Node itself shows it. It completes a sentence
	// that begins with the name of the node, as the following texts do.
	down string
	// taken is why the node is out, as a maintenance shows it.
	taken string
	// skip is why no rollout takes the node until a user acts; wait is why none takes it yet.
	skip, wait string
	// readyBy is the time at which a node that is not Ready counts as out; zero if it is Ready, or
	// is out.
	readyBy time.Time
}

// NewNode returns what a decision needs to know of a node. holders are the maintenances that select
// it.
func NewNode(node *corev1.Node, holders []*v1alpha1.NodeMaintenance, now time.Time) Node {
	n := Node{Name: node.Name, UID: node.UID, Labels: node.Labels, controlPlane: protocol.RunsControlPlane(node)}
	hasTask := false
	for _, nm := range holders {
		switch {
		case !v1alpha1.IsHolding(nm) || holds.LeavesAlone(nm, node):
		case nm.Spec.Task == nil:
			n.taken = fmt.Sprintf("is held by NodeMaintenance %s", nm.Name)
			n.skip = n.taken + ", which has no task"
		default:
			hasTask = true
			if n.taken == "" {
				n.taken = fmt.Sprintf("is held by NodeMaintenance %s", nm.Name)
			}
			if holds.IsDone(nm, node) {
				n.wait = fmt.Sprintf("is held by NodeMaintenance %s, whose work on it is done", nm.Name)
			}
		}
	}
	unready, since := readiness(node)
	readyBy := since.Add(notReadyGrace)
	young := unready != "" && !since.IsZero() && !since.After(now) && now.Before(readyBy)
	if young {
		n.wait, n.readyBy = cmp.Or(n.wait, unready), readyBy
	} else {
		n.down = unready
	}
	if n.down == "" && node.Spec.Unschedulable {
		n.down = "is unschedulable"
	}
	if removal := protocol.RemovalOf(node); removal != "" {
		n.down, n.wait = cmp.Or(n.down, removal), removal
	}
	_, isExempt := node.Annotations[v1alpha1.AnnotationSkipRollouts]
	switch {
	case isExempt:
		n.skip = "has the annotation " + v1alpha1.AnnotationSkipRollouts
	case n.skip != "":
	case marks.IsCordonedByOthers(node):
		n.skip = "is unschedulable, and not by Haulout"
	// A node with a task may be rebooting.
	case unready != "" && !young && !hasTask:
		n.skip = unready
	}
	return n
}

// readiness returns why a node is not ready, or "". since is the time from which on it gets a grace
// period; zero if it gets none, since a taint keeps pods off the node anyway. The time comes from
// the clock of the node or of a controller; one in the future gives no grace.
func readiness(node *corev1.Node) (unready string, since time.Time) {
	ready, isTainted := protocol.NodeCondition(node, corev1.NodeReady), protocol.HasReadinessTaint(node)
	switch {
	case ready.Status == corev1.ConditionTrue && isTainted:
		return "has a taint " + v1alpha1.TaintReadinessPrefix + "…", time.Time{}
	case ready.Status == corev1.ConditionTrue:
		return "", time.Time{}
	case isTainted:
		return "is not Ready", time.Time{}
	case ready.Type == "":
		return "is not Ready", node.CreationTimestamp.Time
	}
	return "is not Ready", ready.LastTransitionTime.Time
}

// isOut reports whether the node, or a maintenance, shows that it is out.
func (n *Node) isOut() bool { return n.down != "" || n.taken != "" }
