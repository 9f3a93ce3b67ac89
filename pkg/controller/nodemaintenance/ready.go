// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// decideReady returns the condition Ready of a maintenance that does not end: True when the stage
// is reached. A maintenance without nodes has reached nothing: most likely its selector has an
// error.
func decideReady(m *member, drained, progressing verdict) verdict {
	yes, no := metav1.ConditionTrue, metav1.ConditionFalse
	switch {
	case len(m.nodes) == 0:
		return verdict{no, v1alpha1.ReasonNoNodes, noNodes}
	case m.Spec.Stage == v1alpha1.NodeMaintenanceStageIdle:
		return verdict{yes, v1alpha1.ReasonIdle, "The maintenance is announced. Stage Idle changes nothing"}
	case m.Spec.Stage == v1alpha1.NodeMaintenanceStageCordon:
		return decideCordoned(m)
	case drained.status == yes, progressing.status == yes:
		return drained
	}
	return verdict{no, progressing.reason, progressing.message}
}

func decideCordoned(m *member) verdict {
	if reason, text := excluded(m.nodes, m.username(), "not held"); reason != "" {
		return verdict{metav1.ConditionFalse, reason, text}
	}
	if uncordoned := m.uncordoned(); len(uncordoned) > 0 {
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonCordoning, waitsForCordons(uncordoned)}
	}
	return verdict{metav1.ConditionTrue, v1alpha1.ReasonCordoned, pluralIs(len(m.nodes), "node") + " cordoned"}
}

// waitsForCordons returns a phrase about nodes that are not cordoned yet.
func waitsForCordons(nodes []string) string {
	return "Waiting for " + wording.Count(len(nodes), "node") + " to be cordoned"
}

// readyOfFailed returns the condition Ready of a maintenance whose sync fails. It stays as it is if
// a sync has decided about the present spec, and if the stage was reached then or needs no sync.
func readyOfFailed(nm *v1alpha1.NodeMaintenance, failed verdict) verdict {
	ready := conditionOf(nm, v1alpha1.ConditionReady)
	isObserved := nm.Status.ObservedGeneration == nm.Generation
	if ready == nil || !isObserved || v1alpha1.IsEnding(nm) || v1alpha1.IsDraining(nm) && !isDrained(nm) {
		return failed
	}
	return verdict{ready.Status, ready.Reason, ready.Message}
}

// setReady sets the condition Ready. It adds the condition Stalled while the reason of Ready is
// Stalled, and otherwise removes it.
func setReady(nm *v1alpha1.NodeMaintenance, status *v1alpha1.NodeMaintenanceStatus, ready verdict, now time.Time) {
	setCondition(nm, status, v1alpha1.ConditionReady, ready, now)
	if ready.reason != v1alpha1.ReasonProgressStalled {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionStalled)
		return
	}
	setCondition(nm, status, v1alpha1.ConditionStalled, verdict{metav1.ConditionTrue, ready.reason, ready.message}, now)
}

// podsGone returns how many pods have left the nodes of a maintenance since its drain began,
// without those that came back. Pods that had left a node still count when the maintenance no
// longer has the node.
func podsGone(nm *v1alpha1.NodeMaintenance, nodes []v1alpha1.NodeMaintenanceNodeStatus) int32 {
	total := nm.Status.PodsGone
	if !v1alpha1.IsDraining(nm) {
		return total
	}
	var ofNodes int32
	for i := range nodes {
		gone := glance.Gone(&nodes[i])
		ofNodes += gone
		total += gone
		if before := v1alpha1.NodeStatusOf(nm, nodes[i].NodeRef); before != nil {
			total -= glance.Gone(before)
		}
	}
	return max(total, ofNodes)
}
