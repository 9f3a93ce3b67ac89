// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/marks"
)

// facts is what the decision about a node depends on.
type facts struct {
	node *corev1.Node
	// cordon and taint are the maintenances of our storage that the node's annotations name.
	// foreignCordon and foreignTaint report that the annotation is of another storage, or cannot be
	// read: then what it is about is not ours.
	cordon, taint               marks.Owners
	foreignCordon, foreignTaint bool
	// holders are the maintenances that hold the node: in stage Cordon or Drain, and their
	// requester may delete the node or could when they took it. Those whose end is not certain are
	// among them.
	holders marks.Owners
	// undecided reports that the authorizer has not answered yet whether a maintenance may hold the
	// node.
	undecided bool
	// drainsDaemonSets reports that the stored targets of a holder include DaemonSet pods.
	drainsDaemonSets bool
	// added are the keys of the taints that the annotation records as added by us.
	added []string
	// now is the time that a new taint records.
	now time.Time
	// ownPods are the pods of the server on the node now; recordedOwn are those that the annotation
	// records.
	ownPods, recordedOwn []types.UID
	// mayWork reports that a holder may still do something new on the node. A right that was
	// revoked ends no hold and begins nothing.
	mayWork bool
	// makesSchedulable is the maintenance that went from Idle to Complete, and so lifts any cordon
	// of its nodes; nil if there is none.
	makesSchedulable *v1alpha1.NodeMaintenance
}

// released returns the maintenances that the annotations name and that do not hold the node any
// more.
func (f *facts) released() marks.Owners {
	out := marks.Owners{}
	maps.Copy(out, f.cordon)
	maps.Copy(out, f.taint)
	maps.DeleteFunc(out, func(name string, _ types.UID) bool { _, holds := f.holders[name]; return holds })
	return out
}

// nodeChange is what is to be written to a node; the zero value changes nothing.
type nodeChange struct {
	// unschedulable is the wanted value, or nil to leave it.
	unschedulable *bool
	// cordon is the wanted annotation about the cordon if setCordon; an empty one is removed.
	cordon    marks.Owners
	setCordon bool
	// takesOver reports that the annotation about the cordon replaces that of the node's agent.
	takesOver bool
	// taints are the wanted ones if setTaints; taint is the wanted annotation about ours if
	// setTaint, an empty one is removed.
	taints              []corev1.Taint
	taint               marks.Owners
	added               []string
	ownPods             []types.UID
	setTaints, setTaint bool
	// cordonRestored and taintRestored report that someone else has undone our cordon, or removed
	// our taint.
	cordonRestored, taintRestored bool
}

func (n nodeChange) empty() bool {
	return n.unschedulable == nil && !n.setCordon && !n.setTaints && !n.setTaint
}

// decide returns what is to be written to a node: its cordon, its taints, and the annotations
// that record whose they are. A cordon without our annotation is someone else's: it serves as ours
// and is not lifted later. That of the node's agent is the exception: the agent stood in for a
// server that did not answer.
func decide(f facts) nodeChange {
	var n nodeChange
	n.decideCordon(f)
	n.decideTaints(f)
	return n
}

func (n *nodeChange) decideCordon(f facts) {
	yes, no := true, false
	_, byAgent := f.node.Annotations[v1alpha1.AnnotationCordonedByAgent]
	switch {
	case len(f.holders) > 0 && !f.node.Spec.Unschedulable && !f.mayWork:
	case len(f.holders) > 0 && !f.node.Spec.Unschedulable:
		n.unschedulable = &yes
		n.cordon, n.setCordon = f.holders, f.foreignCordon || !maps.Equal(f.holders, f.cordon)
		n.cordonRestored = f.cordon.HasAny(f.holders)
	case len(f.holders) > 0 && byAgent && !f.foreignCordon && f.mayWork:
		n.cordon, n.setCordon, n.takesOver = f.holders, true, true
	case len(f.holders) > 0:
		// Either ours, whose annotation follows the holders, or someone else's.
		n.cordon, n.setCordon = f.holders, len(f.cordon) > 0 && !maps.Equal(f.holders, f.cordon)
	case len(f.cordon) > 0:
		n.setCordon = true
		if f.node.Spec.Unschedulable {
			n.unschedulable = &no
		}
	case f.makesSchedulable != nil && f.node.Spec.Unschedulable:
		n.unschedulable = &no
		n.setCordon = f.foreignCordon
	}
}

func (n *nodeChange) decideTaints(f facts) {
	wanted := wantedTaints(f)
	if len(f.holders) > 0 && !f.mayWork {
		wanted = f.added
	}
	taints := slices.Clone(f.node.Spec.Taints)
	added := []string{}
	for _, key := range nodestate.TaintKeys {
		has, isOurs, wants := nodestate.HasTaint(f.node, key), slices.Contains(f.added, key), slices.Contains(wanted, key)
		switch {
		case wants && has && isOurs:
			added = append(added, key)
		case wants && !has && (f.mayWork || isOurs):
			if f.mayWork {
				taint := nodestate.Taint(key)
				taint.TimeAdded = &metav1.Time{Time: f.now}
				taints = append(taints, taint)
				n.setTaints = true
				n.taintRestored = n.taintRestored || isOurs
			}
			added = append(added, key)
		case !wants && has && isOurs:
			taints = slices.DeleteFunc(taints, func(taint corev1.Taint) bool { return nodestate.IsTaint(taint, key) })
			n.setTaints = true
		}
	}
	if n.setTaints {
		n.taints = taints
	}
	if f.foreignTaint && len(added) == 0 {
		return
	}
	if !maps.Equal(f.holders, f.taint) && (len(f.holders) > 0 || len(f.taint) > 0) || !slices.Equal(added, f.added) {
		n.taint, n.added, n.setTaint = f.holders, added, true
		// The first holder decides which pods of the server have to leave; one that comes back
		// while the node is held stays, also for later holders.
		if n.ownPods = f.recordedOwn; len(f.taint) == 0 {
			n.ownPods = f.ownPods
		}
	}
}

// wantedTaints returns the keys of the taints that a node should have.
func wantedTaints(f facts) []string {
	switch {
	case len(f.holders) == 0:
		return nil
	case f.drainsDaemonSets:
		return nodestate.TaintKeys
	}
	return nodestate.TaintKeys[:1]
}
