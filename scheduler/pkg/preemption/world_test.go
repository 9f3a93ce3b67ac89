// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/testing/must"
)

// started is the start time of the first pods. A pod with a higher number started later.
var started = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// clockTime is the current time of the rules.
var clockTime = started.Add(time.Hour)

type podOption func(*corev1.Pod)

// runningPod returns a ready pod of 1 CPU on node n1.
func runningPod(name string, priority int32, options ...podOption) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			NodeName:   "n1",
			Priority:   ptr.To(priority),
			Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}},
		},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			StartTime:  ptr.To(metav1.NewTime(started)),
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, option := range options {
		option(pod)
	}
	return pod
}

func ofClass(name string) podOption {
	return func(pod *corev1.Pod) { pod.Spec.PriorityClassName = name }
}

func ofApp(name string) podOption {
	return func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": name} }
}

func startedAfter(seconds int) podOption {
	return func(pod *corev1.Pod) {
		pod.Status.StartTime = ptr.To(metav1.NewTime(started.Add(time.Duration(seconds) * time.Second)))
	}
}

func onNode(name string) podOption {
	return func(pod *corev1.Pod) { pod.Spec.NodeName = name }
}

func notReady(pod *corev1.Pod) { pod.Status.Conditions = nil }

func terminating(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(metav1.NewTime(started)) }

type budgetOption func(*policyv1.PodDisruptionBudget)

// budgetOf returns the budget of an app that allows n disruptions, with a current status.
func budgetOf(app string, n int32, options ...budgetOption) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: app, UID: types.UID("uid-" + app), Generation: 1},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status:     policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: n, DesiredHealthy: 1, CurrentHealthy: 1 + n, ExpectedPods: 1 + n},
	}
	for _, option := range options {
		option(b)
	}
	return b
}

func stale(b *policyv1.PodDisruptionBudget) { b.Generation++ }

func class(name, threshold string) *schedulingv1.PriorityClass {
	c := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if threshold != "" {
		c.Annotations = map[string]string{ThresholdAnnotation: threshold}
	}
	return c
}

// rulesFor returns the rules for a pending pod of the given priority. The class guarded has the
// threshold 1000.
func rulesFor(priority int32, budgets []*policyv1.PodDisruptionBudget, refused ...string) *rules {
	classes := []*schedulingv1.PriorityClass{class("guarded", "1000"), class("higher", "2000"), class("plain", "")}
	return &rules{
		priority: priority,
		thresholds: newThresholds(classes, noThreshold, func(*corev1.Pod) []string { return nil },
			func(c *schedulingv1.PriorityClass, err error) { panic(fmt.Sprint(c.Name, err)) }),
		budgets: pdb.NewIndex(budgets),
		now:     clockTime,
		refused: func(uid types.UID) bool {
			for _, name := range refused {
				if uid == types.UID("uid-"+name) {
					return true
				}
			}
			return false
		},
	}
}

// victim returns a victim of one pod, or of a group that is disrupted as a whole.
func victim(t testing.TB, pods ...*corev1.Pod) upstream.Victim {
	t.Helper()
	infos := make([]fwk.PodInfo, 0, len(pods))
	for _, pod := range pods {
		info := must.Get(framework.NewPodInfo(pod))(t)
		infos = append(infos, info)
	}
	kind := fwk.PodKeyType
	if len(pods) > 1 {
		kind = fwk.PodGroupKeyType
	}
	v := must.Get(upstream.NewVictim(infos, *pods[0].Spec.Priority, kind))(t)
	return v
}
