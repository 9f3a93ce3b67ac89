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

// facts has all inputs of the decision about a node.
type facts struct {
	node *corev1.Node
	// cordon and taint are the maintenances of our storage that the node's annotations name.
	// foreignCordon and foreignTaint report that the annotation is from another storage, or cannot
	// be read: then the cordon or the taints are not ours.
	cordon, taint               marks.Owners
	foreignCordon, foreignTaint bool
	// holders are the maintenances that hold the node: they are in stage Cordon or Drain, and their
	// requester may delete the node, or could when the hold began. A maintenance counts as a holder
	// until its end is certain.
	holders marks.Owners
	// undecided reports that the authorizer has not answered yet whether a maintenance may hold the
	// node.
	undecided bool
	// drainsDaemonSets reports that the stored targets of a holder include DaemonSet pods.
	drainsDaemonSets bool
	// added are the keys of the taints that the annotation records as added by us.
	added []string
	// now is the time of the decision, which new taints record.
	now time.Time
	// ownPods are the current pods of the server on the node; recordedOwn are those in the
	// annotation.
	ownPods, recordedOwn []types.UID
	// mayWork reports that the requester of a holder may delete the node now. If the right was
	// revoked, the hold stays, but no cordon or taint is added.
	mayWork bool
	// makesSchedulable is the maintenance that went from Idle to Complete, and so removes any
	// cordon of its nodes; nil if there is none.
	makesSchedulable *v1alpha1.NodeMaintenance
}

// released returns the maintenances that the annotations name and that no longer hold the node.
func (f *facts) released() marks.Owners {
	out := marks.Owners{}
	maps.Copy(out, f.cordon)
	maps.Copy(out, f.taint)
	maps.DeleteFunc(out, func(name string, _ types.UID) bool { _, holds := f.holders[name]; return holds })
	return out
}

// nodeChange is a change of a node; the zero value changes nothing.
type nodeChange struct {
	// unschedulable is the wanted value, or nil for no change.
	unschedulable *bool
	// cordon is the wanted annotation about the cordon if setCordon; an empty one is removed.
	cordon    marks.Owners
	setCordon bool
	// takesOver reports that our annotation replaces the one of the node agent, and so its cordon
	// becomes ours.
	takesOver bool
	// taints are the wanted ones if setTaints; taint is the wanted annotation about ours if
	// setTaint, an empty one is removed.
	taints              []corev1.Taint
	taint               marks.Owners
	added               []string
	ownPods             []types.UID
	setTaints, setTaint bool
	// cordonRestored and taintRestored report that another client has removed our cordon or our
	// taint.
	cordonRestored, taintRestored bool
}

func (n nodeChange) empty() bool {
	return n.unschedulable == nil && !n.setCordon && !n.setTaints && !n.setTaint
}

// decide returns the change of a node's cordon, its taints, and the annotations that record which
// of them are ours. A cordon without our annotation belongs to another client: it is enough for the
// drain and is not removed later. The cordon of the node agent is the exception: the agent set it
// because the server did not answer, so it becomes ours.
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
		// The annotation of our own cordon follows the holders. A cordon of another client gets
		// none.
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
		// The first holder determines which pods of the server have to leave: a pod of the server
		// that starts on the node later stays, also for later holders.
		if n.ownPods = f.recordedOwn; len(f.taint) == 0 {
			n.ownPods = f.ownPods
		}
	}
}

// wantedTaints returns the keys of our taints that a node should have.
func wantedTaints(f facts) []string {
	switch {
	case len(f.holders) == 0:
		return nil
	case f.drainsDaemonSets:
		return nodestate.TaintKeys
	}
	return nodestate.TaintKeys[:1]
}
