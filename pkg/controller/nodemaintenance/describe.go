// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// Described is what the texts of a status depend on, beside the maintenance itself.
type Described struct {
	// Evacuations are those of the pods on the nodes of the maintenance.
	Evacuations []*v1alpha1.Evacuation
	// Failures are the errors of writes to nodes, by the name of the node.
	Failures map[string]loop.Failure
	// Ignored are the nodes that match the selector but are too new.
	Ignored []string
	// Kept is the name of the workload of the kept pods.
	Kept string
	// Completing is the namespace and name of a pod that the plan lets complete.
	Completing string
	// Now is the time at which the controller reconciles the maintenance.
	Now time.Time
}

// Describe sets the conditions of a maintenance, the messages of its nodes and its totals as the
// controller does when it counts the pods that the status has. The tests of the plugin build their
// worlds with it, so that they and the samples of the documentation have the texts of the server.
func Describe(nm *v1alpha1.NodeMaintenance, by Described) {
	f := &facts{
		now: by.Now, subject: &member{NodeMaintenance: nm}, ignored: by.Ignored, troubles: by.Failures, held: sets.New[string](),
		stallTimeout: DefaultStallTimeout, live: new(""),
	}
	d := &decision{status: *nm.Status.DeepCopy()}
	if v1alpha1.IsEnding(nm) {
		for i := range nm.Status.NodeStatuses {
			if _, failing := by.Failures[nm.Status.NodeStatuses[i].NodeRef.Name]; failing || len(by.Failures) == 0 && !v1alpha1.IsDone(nm) {
				f.held.Insert(nm.Status.NodeStatuses[i].NodeRef.Name)
			}
		}
		d.decideRelease(f)
		nm.Status = d.status
		return
	}
	left := newRemainder()
	for i := range d.status.NodeStatuses {
		entry := &d.status.NodeStatuses[i]
		node := nodeOfStatus(f, entry)
		f.subject.nodes = append(f.subject.nodes, node)
		switch {
		case node.outside != nil:
			entry.Reason, entry.DrainMessage = node.outside.reason, drainplan.Fit(drainplan.NotDrained+node.outside.why, drainplan.MaxMessageBytes)
			continue
		case v1alpha1.IsPaused(nm):
			entry.DrainMessage = "Paused"
		case v1alpha1.IsDraining(nm) && entry.DrainMessage == "":
			entry.DrainMessage = drainplan.MessageEvacuating
		}
		n := &nodeCount{
			covered: int(entry.PodsPendingEvacuation + entry.PodsEvacuating), targeted: int(entry.PodsEvacuating), evacuating: entry.PodsEvacuating,
		}
		for _, e := range by.Evacuations {
			if e.Spec.NodeName == node.Name && !protocol.IsComplete(e) && nodestate.TrueReason(e, v1alpha1.ConditionBlocked) != "" {
				n.blocked = append(n.blocked, e)
			}
		}
		for range entry.PodsKept {
			n.leftOnPurpose = append(n.leftOnPurpose, by.Kept)
		}
		if entry.PodsWaiting != nil {
			n.completing = drainplan.Completing{Pods: int(*entry.PodsWaiting), Name: by.Completing}
			entry.DrainMessage = n.completing.MessageOf(entry.DrainMessage, n.targeted)
		}
		n.stuck, n.leaving = int32(len(n.blocked)), n.targeted-len(n.blocked)
		entry.PodsBlocked = n.stuck
		left.add(n, time.Time{})
	}
	d.status.ObservedGeneration = nm.Generation
	d.status.Nodes, d.status.PodsGone = int32(len(f.subject.nodes)), podsGone(nm, d.status.NodeStatuses)
	d.plan.Finished = map[string]bool{nm.Name: left.covered == 0}
	d.decideConditions(f, left)
	nm.Status = d.status
}

// nodeOfStatus returns a selected node as an entry of the status describes it.
func nodeOfStatus(f *facts, entry *v1alpha1.NodeMaintenanceNodeStatus) memberNode {
	name := entry.NodeRef.Name
	node := memberNode{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: true}}}
	switch failure, failing := f.troubles[name]; {
	case entry.Reason == v1alpha1.NodeStatusNotAuthorized:
		why := drainplan.NotAuthorizedMessage(f.subject.username())[len(drainplan.NotDrained):]
		node.outside = &exclusion{reason: entry.Reason, why: why}
	case entry.Reason == v1alpha1.NodeStatusNodeTaskInProgress:
		node.outside = &exclusion{reason: entry.Reason, why: strings.TrimPrefix(entry.DrainMessage, drainplan.NotDrained)}
	case entry.Reason == v1alpha1.NodeStatusTooManyMaintenances:
		node.outside = &exclusion{entry.Reason, noPlace, v1alpha1.StageEntered(f.subject.NodeMaintenance, v1alpha1.NodeMaintenanceStageCordon)}
	case entry.Reason == v1alpha1.NodeStatusNotCordoned && failing:
		node.outside = &exclusion{entry.Reason, failure.Text, failure.Since}
	case entry.Reason == v1alpha1.NodeStatusNotCordoned:
		node.Spec.Unschedulable = false
	}
	return node
}
