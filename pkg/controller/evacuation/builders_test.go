// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/build"
)

const (
	classA   = "a.example.com"
	classB   = "b.example.com"
	evict    = v1alpha1.EvacuatorClassEviction
	forbid   = v1alpha1.EvacuationCancellationPolicyForbid
	allow    = v1alpha1.EvacuationCancellationPolicyAllow
	ours     = v1alpha1.FinalizerInstigatorNodeMaintenance
	theirs   = v1alpha1.FinalizerInstigatorPrefix + "autoscaler.example.com"
	foreign  = "example.com/audit"
	podUID   = types.UID("11111111-2222-3333-4444-555555555555")
	podName  = "web-1"
	testNode = "node-7"
)

const (
	second = time.Second
	minute = time.Minute
	hour   = time.Hour
)

var start = informertest.Start

func after(d time.Duration) *metav1.Time {
	return &metav1.Time{Time: start.Add(d)}
}

// newEvacuation returns an Evacuation as the API server stores a new one.
func newEvacuation(mods ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	return build.With(&v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: protocol.CanonicalName(podName, podUID), UID: "evacuation-1", ResourceVersion: "1",
			Generation: 1, CreationTimestamp: *after(0), Finalizers: []string{ours},
		},
		Spec: v1alpha1.EvacuationSpec{
			PodRef:                  v1alpha1.PodReference{Name: podName, UID: podUID},
			ProgressDeadlineSeconds: ptr.To[int32](1800), NodeName: testNode,
		},
		Status: v1alpha1.EvacuationStatus{
			EvacuationCancellationPolicy: allow, Conditions: []metav1.Condition{v1alpha1.NotObserved(*after(0))},
		},
	}, mods...)
}

// upForEviction returns an Evacuation whose active class is eviction.
func upForEviction(mods ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	return build.With(newEvacuation(active(evict)), mods...)
}

// turnOfA returns an Evacuation whose only evacuator is active.
func turnOfA(mods ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	return build.With(newEvacuation(withEvacuators(classA), active(classA)), mods...)
}

func withEvacuators(classes ...string) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) {
		for i, class := range classes {
			e.Spec.Evacuators = append(e.Spec.Evacuators, v1alpha1.Evacuator{
				EvacuatorClass: class, Priority: int32(1000 - i),
			})
		}
	}
}

func withFinalizers(finalizers ...string) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) { e.Finalizers = finalizers }
}

func deleting(e *v1alpha1.Evacuation) { e.DeletionTimestamp = after(time.Minute) }

func withStatus(mod func(*v1alpha1.EvacuationStatus)) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) { mod(&e.Status) }
}

// active makes a class the active evacuator at the start, as the controller does.
func active(class string) func(*v1alpha1.Evacuation) {
	return withStatus(func(st *v1alpha1.EvacuationStatus) {
		st.ActiveEvacuatorClass = class
		st.ActiveEvacuatorSince = after(0)
		st.Message = turnMessage(class, "test")
	})
}

// reported adds a report of the active evacuator.
func reported(at time.Duration, message string) func(*v1alpha1.Evacuation) {
	return withStatus(func(st *v1alpha1.EvacuationStatus) {
		st.EvacuationProgressTimestamp = after(at)
		if message != "" {
			st.Message = message
		}
	})
}

func withCondition(conditionType, reason string, at time.Duration) func(*v1alpha1.Evacuation) {
	return withStatus(func(st *v1alpha1.EvacuationStatus) {
		st.Conditions = append(st.Conditions, metav1.Condition{
			Type: conditionType, Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: *after(at),
			ObservedGeneration: 1,
		})
	})
}

// newMaintenance returns a maintenance that drains all nodes. It has no targets yet, so no message
// names it.
func newMaintenance() *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "all", UID: "all", ResourceVersion: "1"},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageDrain,
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "none", Operator: corev1.NodeSelectorOpDoesNotExist},
				},
			}}},
		},
	}
}

func newPod(mods ...func(*corev1.Pod)) *corev1.Pod {
	return build.With(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: podName, UID: podUID, ResourceVersion: "1", CreationTimestamp: *after(-time.Hour),
		},
		Spec:   corev1.PodSpec{NodeName: testNode},
		Status: build.Ready(),
	}, mods...)
}

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func terminatingUntil(at time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.DeletionTimestamp = after(at) }
}

// stoppingFor makes a pod terminate since start, with a grace period.
func stoppingFor(grace time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = after(grace), ptr.To(int64(grace.Seconds()))
	}
}
