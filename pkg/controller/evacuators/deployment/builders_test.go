// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"encoding/json"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/testing/build"
)

const (
	testNamespace = "shop"
	testName      = "web"
	testUID       = types.UID("uid-web")
	ours          = v1alpha1.EvacuatorClassDeployment
	lanes         = v1alpha1.EvacuatorClassEviction
)

// start is the initial time of the tests.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var podLabels = map[string]string{"app": testName}

// newDeployment returns a Deployment that has all its pods.
func newDeployment(replicas int32, mods ...func(*appsv1.Deployment)) *appsv1.Deployment {
	return build.With(&appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: testNamespace, Name: testName, UID: testUID, ResourceVersion: "1", Generation: 1,
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: podLabels},
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{
					MaxSurge: ptr.To(intstr.FromString("25%")), MaxUnavailable: ptr.To(intstr.FromString("25%")),
				},
			},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: podLabels}},
		},
		Status: appsv1.DeploymentStatus{
			ObservedGeneration: 1, Replicas: replicas, UpdatedReplicas: replicas, AvailableReplicas: replicas,
		},
	}, mods...)
}

func surging(surge string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.Parse(surge)) }
}

// recorded adds the record of a surge that is active since the start.
func recorded(from, to int32, evacuations ...string) func(*appsv1.Deployment) {
	return annotated(record{
		UID: testUID, From: from, To: to, Keep: from, Since: &metav1.Time{Time: start}, Evacuations: evacuations,
	})
}

func annotated(r record) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		text, err := json.Marshal(r)
		if err != nil {
			panic(err)
		}
		d.Annotations = map[string]string{v1alpha1.AnnotationSurgeRecord: string(text)}
	}
}

// always adds the annotation surge: Always.
func always(d *appsv1.Deployment) {
	if d.Annotations == nil {
		d.Annotations = map[string]string{}
	}
	d.Annotations[v1alpha1.AnnotationSurge] = v1alpha1.SurgeAlways
}

// stuck adds the condition of a rollout that has exceeded its progress deadline.
func stuck(d *appsv1.Deployment) {
	d.Status.UpdatedReplicas = 0
	d.Status.Conditions = []appsv1.DeploymentCondition{
		{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: progressDeadlineExceeded},
	}
}

// podMod changes a pod or its other inputs.
type podMod func(*pod)

// newTestPod returns a pod that has been available for an hour on a node without maintenance.
func newTestPod(name string, mods ...podMod) pod {
	p := pod{staysUp: true, Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: testNamespace, Name: name, UID: types.UID("uid-" + name), Labels: podLabels,
			CreationTimestamp: metav1.NewTime(start.Add(-time.Hour)),
			OwnerReferences:   build.Owner("apps/v1", "ReplicaSet", "web-1", "uid-web-1"),
		},
		Spec: corev1.PodSpec{NodeName: "node-1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{
				Type: corev1.PodReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(start.Add(-time.Hour + 3*time.Second)),
			},
		}},
	}}
	return *build.With(&p, mods...)
}

// leaves adds an Evacuation. Its class has been active since the start, when it last reported.
func leaves(class string) podMod {
	return func(p *pod) {
		p.staysUp = false
		p.evacuation = &v1alpha1.Evacuation{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: testNamespace, Name: protocol.CanonicalName(p.Name, p.UID), ResourceVersion: "1",
				Finalizers: []string{v1alpha1.FinalizerInstigatorNodeMaintenance},
			},
			Spec: v1alpha1.EvacuationSpec{
				PodRef: v1alpha1.PodReference{Name: p.Name, UID: p.UID},
				Evacuators: []v1alpha1.Evacuator{
					{EvacuatorClass: ours, Priority: 10000, Role: v1alpha1.EvacuatorRoleController},
				},
			},
			Status: v1alpha1.EvacuationStatus{
				ActiveEvacuatorClass: class, ActiveEvacuatorSince: &metav1.Time{Time: start},
				Message: "It is the first evacuator.",
			},
		}
	}
}

// fresh makes a pod a pod of the surge. The clock of the host cluster may be years ahead of ours.
func fresh(p *pod) {
	p.CreationTimestamp = metav1.NewTime(start.Add(time.Second))
	p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(start.Add(3 * time.Second))
}

// justBefore makes a pod one second older than the surge.
func justBefore(p *pod) {
	p.CreationTimestamp = metav1.NewTime(start.Add(-time.Second))
	p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(start)
}

func unready(p *pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

// pending makes a pod unscheduled, with the message of the scheduler.
func pending(why string) podMod {
	return func(p *pod) {
		p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: why},
		}
	}
}

// readyFor sets how long a pod has been ready, or unready, at the start.
func readyFor(d time.Duration) podMod {
	return func(p *pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(start.Add(-d)) }
}

// reported adds a report some time after the start.
func reported(after time.Duration) podMod {
	return func(p *pod) { p.evacuation.Status.EvacuationProgressTimestamp = &metav1.Time{Time: start.Add(after)} }
}

// completed makes this evacuator one that has reported completion and is still active.
func completed(p *pod) { p.evacuation.Status.ActiveEvacuatorCompleted = true }

// blocked makes the Evacuation blocked since the start.
func blocked(p *pod) {
	p.evacuation.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonEvictionDenied, LastTransitionTime: metav1.NewTime(start),
	}}
}

// evictedByOthers makes the Evacuation one that only an eviction by another client requests.
func evictedByOthers(p *pod) {
	p.evacuation.Finalizers, p.evacuation.Status.Conditions = []string{v1alpha1.FinalizerInstigatorRawEviction}, nil
}

func cordoned(p *pod) { p.staysUp = false }

func cheapest(p *pod) {
	p.Annotations = map[string]string{
		corev1.PodDeletionCost: "-2147483647", v1alpha1.AnnotationOriginalPodDeletionCost: "",
	}
}

// under adds a budget with a status for the given numbers.
func under(minAvailable *intstr.IntOrString, maxUnavailable *intstr.IntOrString, expected, healthy int32) podMod {
	return func(p *pod) {
		b := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: testName, Generation: 1},
			Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: minAvailable, MaxUnavailable: maxUnavailable},
			Status: policyv1.PodDisruptionBudgetStatus{
				ObservedGeneration: 1, ExpectedPods: expected, CurrentHealthy: healthy,
			},
		}
		b.Status.DesiredHealthy = pdb.DesiredHealthy(b, expected)
		b.Status.DisruptionsAllowed = max(0, healthy-b.Status.DesiredHealthy)
		p.budgets = append(p.budgets, b)
	}
}

// minOne adds a budget with minAvailable 1.
func minOne(expected, healthy int32) podMod {
	return under(ptr.To(intstr.FromInt32(1)), nil, expected, healthy)
}

func newAutoscaler(low, high, current int32) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: testName, UID: "uid-hpa", ResourceVersion: "1"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: "apps/v1", Kind: "Deployment", Name: testName,
			},
			MinReplicas: &low, MaxReplicas: high,
		},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{
			CurrentReplicas: current, DesiredReplicas: current,
			Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{
				{Type: autoscalingv2.AbleToScale, Status: corev1.ConditionTrue},
			},
		},
	}
}

// at returns the situation some time after the start. The API server has just agreed that each of
// the pods may leave.
func at(after time.Duration, d *appsv1.Deployment, pods ...pod) situation {
	s := situation{
		now: start.Add(after), servingSince: start.Add(-time.Hour), timeout: 5 * time.Minute, deployment: d,
		activeReplicaSets: 1, pods: pods, memory: memory{highest: new(int), answers: map[types.UID]consent{}},
		healthyUnder: func(b *policyv1.PodDisruptionBudget) int32 { return b.Status.CurrentHealthy },
		unconfirmed:  func([]*pod) string { return "" },
	}
	for i := range pods {
		s.memory.answers[pods[i].UID] = consent{Consent: eviction.ConsentGiven, at: s.now}
	}
	s.target = targetOf(d, nil, state{})
	return s
}

// changed returns a situation with a further change.
func changed(s situation, change func(*situation)) situation {
	change(&s)
	return s
}

// goneAt sets the time at which a pod last left during the surge.
func goneAt(t time.Time, s situation) situation {
	s.memory.goneAt = t
	s.memory.available = len(s.pods) // none has become available since
	return s
}

// scaledBy adds autoscalers.
func (s situation) scaledBy(autoscalers ...*autoscalingv2.HorizontalPodAutoscaler) situation {
	s.autoscalers = autoscalers
	s.target = targetOf(s.deployment, autoscalers, state{})
	return s
}

// summary returns a decision as a short text: the scaling, the pods whose costs change, and the
// pods for which this evacuator reports completion.
func summary(d decision) string {
	var text string
	if d.scale != nil {
		switch {
		case d.scale.value == nil && d.scale.record == nil:
			text += "drop record;"
		case d.scale.value == nil:
			text += fmt.Sprintf("record %d resets;", d.scale.record.Resets)
		case d.scale.record == nil:
			text += fmt.Sprintf("back to %d;", *d.scale.value)
		default:
			text += fmt.Sprintf("scale to %d for %d;", *d.scale.value, len(d.scale.record.Evacuations))
		}
	}
	for _, p := range d.lower {
		text += fmt.Sprintf("lower %s;", p.Name)
	}
	for _, p := range d.restore {
		text += fmt.Sprintf("restore %s;", p.Name)
	}
	for _, r := range d.reports {
		if r.completed {
			text += fmt.Sprintf("hand over %s;", r.evacuation.Spec.PodRef.Name)
		}
	}
	if d.idle {
		text += "idle;"
	}
	return text
}

func ptrTo(n int32) *intstr.IntOrString { return ptr.To(intstr.FromInt32(n)) }

func percent(s string) *intstr.IntOrString { return ptr.To(intstr.FromString(s)) }

// syncFailed adds the condition of a budget that cannot be computed.
func syncFailed(p *pod) {
	p.budgets[0].Status.Conditions = []metav1.Condition{
		{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason},
	}
}
