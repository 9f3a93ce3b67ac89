// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodemaintenance"
	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/testing/is"
)

// The worlds of the goldens have the texts and the numbers that the server writes: the conditions
// come from nodemaintenance.Describe, the texts about budgets from pdb.Explain, and the counters of
// a drain from the Evacuations of its pods. TestWorldsAreWhatTheServerWrites checks all of them.

// budget returns a budget of four healthy pods that never allows an eviction.
func budget(name string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
		},
		Status: policyv1.PodDisruptionBudgetStatus{ExpectedPods: 4, CurrentHealthy: 4, DesiredHealthy: 4},
	}
}

// budgetMessage is the text about a pod of the Deployment checkout.
var budgetMessage = pdb.Explain(budget("checkout"), pdb.OwnerDeployment).Message

// evacuationsOf returns the Evacuations among objects.
func evacuationsOf(objects []runtime.Object) []*v1alpha1.Evacuation {
	var found []*v1alpha1.Evacuation
	for _, object := range objects {
		if e, ok := object.(*v1alpha1.Evacuation); ok {
			found = append(found, e)
		}
	}
	return found
}

// counted sets the counters of a drain in its first wave from the Evacuations, and then its
// conditions. The pods of later waves stay as they are.
func counted(nm *v1alpha1.NodeMaintenance, objects []runtime.Object, modify ...func(*nodemaintenance.Described)) *v1alpha1.NodeMaintenance {
	evacuations := evacuationsOf(objects)
	gone, left := int32(0), int32(0)
	for i := range nm.Status.NodeStatuses {
		n := &nm.Status.NodeStatuses[i]
		n.PodsEvacuating, n.PodsBlocked, n.PodsPeak = 0, 0, n.PodsPendingEvacuation
		for _, e := range evacuations {
			switch {
			case e.Spec.NodeName != n.NodeRef.Name:
			case protocol.IsComplete(e):
				gone++
				n.PodsPeak++
			default:
				left++
				n.PodsEvacuating++
				n.PodsPeak++
			}
		}
	}
	if len(nm.Status.Waves) > 0 {
		nm.Status.Waves[0].PodsPeak, nm.Status.Waves[0].PodsLeft = gone+left, left
	}
	nm.Status.PodsGone = gone
	return described(nm, objects, modify...)
}

// describedBy has what the conditions of each maintenance depend on.
var describedBy = map[*v1alpha1.NodeMaintenance]nodemaintenance.Described{}

// described sets the conditions of a maintenance as the server does, with plausible times.
func described(nm *v1alpha1.NodeMaintenance, objects []runtime.Object, modify ...func(*nodemaintenance.Described)) *v1alpha1.NodeMaintenance {
	if nm.Status.LastProgressTimestamp == nil && v1alpha1.IsDraining(nm) {
		nm.Status.LastProgressTimestamp = new(before(5 * time.Second))
	}
	by := nodemaintenance.Described{Evacuations: evacuationsOf(objects), Now: now, Kept: "logs"}
	for _, m := range modify {
		m(&by)
	}
	nm.Status.Conditions = slices.DeleteFunc(nm.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type != v1alpha1.ConditionNodeMessagesOmitted
	})
	nodemaintenance.Describe(nm, by)
	describedBy[nm] = by
	for i := range nm.Status.Conditions {
		c := &nm.Status.Conditions[i]
		c.LastTransitionTime = metav1.NewTime(v1alpha1.StageEntered(nm, nm.Spec.Stage))
		switch last := nm.Status.LastProgressTimestamp; {
		case nm.Status.Pause != nil && c.Reason == v1alpha1.ReasonPaused:
			c.LastTransitionTime = nm.Status.Pause.Since
		case c.Type == v1alpha1.ConditionDrained && c.Status == metav1.ConditionTrue:
			c.LastTransitionTime = *last
		case c.Reason == v1alpha1.ReasonProgressStalled:
			c.LastTransitionTime = metav1.NewTime(last.Add(nodemaintenance.DefaultStallTimeout))
		case c.Type == v1alpha1.ConditionProgressing && c.Status == metav1.ConditionFalse && last != nil:
			c.LastTransitionTime = *last
		}
	}
	return nm
}

// failing is an error of the writes to a node.
func failing(node, text string, since time.Duration) func(*nodemaintenance.Described) {
	return func(by *nodemaintenance.Described) {
		by.Failures = map[string]loop.Failure{node: {Since: now.Add(-since), Text: text}}
	}
}

// drainOf returns the maintenance that draining returns with these Evacuations, and the
// Evacuations.
func drainOf(evacuations ...runtime.Object) []runtime.Object {
	return append([]runtime.Object{counted(undescribed(), evacuations)}, evacuations...)
}

// TestWorldsAreWhatTheServerWrites checks the maintenances of all goldens that drain: their
// counters agree with each other and with the Evacuations, and their conditions have the texts of
// the server.
func TestWorldsAreWhatTheServerWrites(t *testing.T) {
	checked := 0
	for i, all := range []map[string]golden{goldens, screenGoldens, verbGoldens, waitGoldens} {
		for name, g := range all {
			objects := g.objects
			if objects == nil {
				objects = everything()
			}
			for _, object := range objects {
				if nm, ok := object.(*v1alpha1.NodeMaintenance); ok {
					checked++
					t.Run(name+" "+nm.Name, func(t *testing.T) { isOfTheServer(t, nm, objects, i < 2) })
				}
			}
		}
	}
	is.True(t, checked > 100, "only %d maintenances were checked", checked)
}

func isOfTheServer(t *testing.T, nm *v1alpha1.NodeMaintenance, objects []runtime.Object, strict bool) {
	t.Helper()
	evacuations := evacuationsOf(objects)
	left, inside, gone, ofWaves := int32(0), int32(0), int32(0), [2]int32{}
	for i := range nm.Status.NodeStatuses {
		n := &nm.Status.NodeStatuses[i]
		left += n.PodsEvacuating + n.PodsPendingEvacuation
		gone += glance.Gone(n)
		if !outside(n) {
			inside += n.PodsEvacuating + n.PodsPendingEvacuation
		}
		asked, blocked := int32(0), int32(0)
		for _, e := range evacuations {
			if e.Spec.NodeName == n.NodeRef.Name && !protocol.IsComplete(e) {
				asked++
				if meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionBlocked) {
					blocked++
				}
			}
		}
		if strict && v1alpha1.IsDraining(nm) {
			is.Equal(t, n.PodsEvacuating, asked, "pods evacuating on "+n.NodeRef.Name)
			is.Equal(t, n.PodsBlocked, blocked, "pods blocked on "+n.NodeRef.Name)
		}
		is.True(t, n.PodsBlocked <= n.PodsEvacuating, "%d of %d pods are blocked on %s", n.PodsBlocked, n.PodsEvacuating, n.NodeRef.Name)
	}
	for _, w := range nm.Status.Waves {
		ofWaves[0] += w.PodsLeft
		ofWaves[1] += w.PodsPeak - w.PodsLeft
	}
	if v1alpha1.IsDraining(nm) && len(nm.Status.Waves) > 0 && nm.Status.NodeStatuses != nil {
		is.Equal(t, ofWaves, [2]int32{inside, gone}, "pods left and gone in the waves")
	}
	for _, stage := range nm.Status.StageStatuses {
		is.True(t, !stage.StartTimestamp.Before(&nm.CreationTimestamp), "stage %s began before the object was created", stage.Name)
	}
	for _, c := range nm.Status.Conditions {
		if c.Type == v1alpha1.ConditionProgressing && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonProgressBlocked {
			is.True(t, left > 0, "it is blocked without a pod")
		}
	}
	by, ok := describedBy[nm]
	is.True(t, ok, "its conditions are not those of the server")
	if len(evacuations) > 0 {
		by.Evacuations = evacuations
	}
	again := nm.DeepCopy()
	nodemaintenance.Describe(again, by)
	is.Equal(t, cmp.Diff(again.Status, nm.Status), "", "what the server would write, -, and what the world has, +")
}

// outside reports whether the waves do not have the pods of a node.
func outside(n *v1alpha1.NodeMaintenanceNodeStatus) bool { return n.Reason != "" }
