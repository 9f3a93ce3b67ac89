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
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/drain/marks"
)

// facts has all inputs of the decision about a node.
type facts struct {
	node *corev1.Node
	// cordon and taint are the maintenances of our storage that the node's annotations name.
	// foreignCordon and foreignTaint are set if the annotation is from another storage, or cannot
	// be read. Then the cordon or the taints are not ours.
	cordon, taint               marks.Owners
	foreignCordon, foreignTaint bool
	// holders are the maintenances that hold the node: they are in stage Cordon or Drain, and their
	// requester may maintain the node, or could when the hold began. A maintenance stays a holder
	// until it has certainly ended, and until no worker has the node for it.
	holders marks.Owners
	// task is the NodeTask of the node, nil if there is none, and hands are the worker that has the
	// node.
	task  *v1alpha1.NodeTask
	hands holds.Hands
	// undecided is set while the access review for a maintenance that may hold the node is pending.
	undecided bool
	// drainsDaemonSets is set if the stored targets of a holder include DaemonSet pods, unless a
	// worker has ended its work: then the DaemonSet pods return, since the node may not become
	// Ready without them.
	drainsDaemonSets bool
	// added are the keys of the taints that the annotation records as added by us.
	added []string
	// protect is set if autoscalers must not delete held nodes. protections are the keys of the
	// annotations that are recorded as added by us for that purpose. foreignProtection is set if
	// the server of another storage has recorded them.
	protect, foreignProtection bool
	protections                []string
	// now is the time of the decision. It is written into new taints.
	now time.Time
	// ownPods are the current pods of the server on the node. recordedOwn are the pods of the
	// server that the annotation records.
	ownPods, recordedOwn []types.UID
	// mayWork is set if the requester of a holder may maintain the node now. If the right was
	// revoked, the node stays held, but no cordon or taint is added.
	mayWork bool
	// makesSchedulable is the maintenance that went from Idle to Complete, and therefore removes
	// the cordon of its nodes, even if another client set it; nil if there is none.
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

// isNewMark reports whether an annotation about our taints with the given keys differs from that of
// the node.
func (f *facts) isNewMark(added []string) bool {
	return !maps.Equal(f.holders, f.taint) && (len(f.holders) > 0 || len(f.taint) > 0) || !slices.Equal(added, f.added)
}

// nodeChange is a change of a node. The zero value changes nothing.
type nodeChange struct {
	// unschedulable is the desired value, or nil for no change.
	unschedulable *bool
	// cordon is the desired annotation about the cordon if setCordon is true. An empty value
	// removes the annotation.
	cordon    marks.Owners
	setCordon bool
	// takesOver is set if our annotation replaces the annotation of the node agent, so that its
	// cordon becomes ours.
	takesOver bool
	// taints are the desired taints if setTaints is true. taint is the desired annotation about our
	// taints if setTaint is true; an empty value removes the annotation.
	taints              []corev1.Taint
	taint               marks.Owners
	added               []string
	ownPods             []types.UID
	setTaints, setTaint bool
	// protect and unprotect are the keys of the annotations for autoscalers that are added and
	// removed. protections are those that are recorded if setProtections is true.
	protect, unprotect, protections []string
	setProtections                  bool
	// cordonRestored and taintRestored are set if the change restores our cordon or our taint after
	// another client removed it.
	cordonRestored, taintRestored bool
}

func (n nodeChange) empty() bool {
	return n.unschedulable == nil && !n.setCordon && !n.setTaints && !n.setTaint && !n.setProtections
}

// decide returns the change of a node's cordon, its taints, and the annotations that record which
// of them are ours. A cordon without our annotation belongs to another client: it is sufficient for
// the drain, and this controller does not remove it later. The cordon of the node agent is the
// exception: the agent set it because the server did not respond, so it becomes ours.
func decide(f facts) nodeChange {
	var n nodeChange
	n.decideCordon(f)
	n.decideTaints(f)
	n.decideProtection(f)
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
		// If Haulout cordoned the node, update the annotation to the current holders. If another
		// client did, add no annotation.
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
	if f.isNewMark(added) {
		n.taint, n.added, n.setTaint = f.holders, added, true
		// When the first holder begins to hold the node, record the pods of the server that have to
		// leave. A pod of the server that starts on the node later stays, even if further
		// maintenances hold the node.
		if n.ownPods = f.recordedOwn; len(f.taint) == 0 {
			n.ownPods = f.ownPods
		}
	}
}

// wantedTaints returns the keys of the taints of Haulout that a node should have.
func wantedTaints(f facts) []string {
	switch {
	case len(f.holders) == 0:
		return nil
	case f.drainsDaemonSets:
		return nodestate.TaintKeys
	}
	return nodestate.TaintKeys[:1]
}
