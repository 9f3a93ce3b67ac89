/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package audit

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

type modifier func(*corev1.Pod)

// newPod returns a ready pod of a Deployment's ReplicaSet on the node "blue".
func newPod(name string, modifiers ...modifier) corev1.Pod {
	app, _, _ := strings.Cut(name, "-")
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop",
			Name:      name,
			UID:       types.UID(name),
			Labels:    map[string]string{"app": app},
		},
		Spec: corev1.PodSpec{NodeName: "blue"},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	withOwner("ReplicaSet")(&p)
	for _, modify := range modifiers {
		modify(&p)
	}
	return p
}

func withOwner(kind string) modifier {
	return func(p *corev1.Pod) {
		controller := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Controller: &controller}}
	}
}

func bare(p *corev1.Pod)     { p.OwnerReferences = nil }
func asked(p *corev1.Pod)    { p.DeletionTimestamp = &metav1.Time{} }
func notReady(p *corev1.Pod) { p.Status.Conditions = nil }
func finished(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }

func onNode(name string) modifier { return func(p *corev1.Pod) { p.Spec.NodeName = name } }

func withPriority(priority int32) modifier {
	return func(p *corev1.Pod) { p.Spec.Priority = &priority }
}

func newPDB(maxUnavailable intstr.IntOrString) policyv1.PodDisruptionBudget {
	return policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &maxUnavailable,
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	}
}

var plan = []v1alpha1.DrainPlanEntry{
	{PodPriority: 1000, PodType: v1alpha1.PodTypeDefault},
	{PodPriority: v1alpha1.SystemClusterCritical, PodType: v1alpha1.PodTypeDefault},
	{PodPriority: v1alpha1.MaxPodPriority, PodType: v1alpha1.PodTypeDaemonSet},
}

type event struct {
	kind watch.EventType
	pod  corev1.Pod
}

func TestVerdict(t *testing.T) {
	for name, test := range map[string]struct {
		before []corev1.Pod
		events []event
		// broken are the indexes of the checks that are expected to fail: 0 left, 1 budgets, 2
		// order, 3 DaemonSets, 4 whole.
		broken []int
	}{
		"a pod that leaves within its budget and is replaced": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2", onNode("green"))},
			events: []event{
				{watch.Modified, newPod("web-1", asked)}, {watch.Added, newPod("web-3", onNode(""), notReady)},
				{watch.Deleted, newPod("web-1", asked)}, {watch.Modified, newPod("web-3", onNode("green"))},
			},
		},
		"two pods that leave at the same time although one may": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2")},
			events: []event{
				{watch.Modified, newPod("web-1", asked)}, {watch.Modified, newPod("web-2", asked)},
				{watch.Deleted, newPod("web-1", asked)}, {watch.Deleted, newPod("web-2", asked)},
				{watch.Added, newPod("web-3", onNode("green"))}, {watch.Added, newPod("web-4", onNode("green"))},
			},
			broken: []int{1},
		},
		"a pod that becomes unready while another is away": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2", onNode("green"))},
			events: []event{
				{watch.Deleted, newPod("web-1")}, {watch.Modified, newPod("web-2", onNode("green"), notReady)},
				{watch.Modified, newPod("web-2", onNode("green"))}, {watch.Added, newPod("web-3", onNode("green"))},
			},
			broken: []int{1},
		},
		"a pod that is replaced under its own name": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2", onNode("green"))},
			events: []event{
				{watch.Deleted, newPod("web-1")},
				{watch.Added, newPod("web-1", onNode("green"), func(p *corev1.Pod) { p.UID = "another" })},
			},
		},
		"a pod that stays": {
			before: []corev1.Pod{newPod("web-1"), newPod("other-1")},
			events: []event{{watch.Deleted, newPod("web-1")}, {watch.Added, newPod("web-2", onNode("green"))}},
			broken: []int{0},
		},
		"a pod that has finished and stays": {
			before: []corev1.Pod{newPod("job-1", withOwner("Job"))},
			events: []event{{watch.Modified, newPod("job-1", withOwner("Job"), finished)}},
			broken: []int{4},
		},
		"a critical pod that leaves before the last ordinary one is gone": {
			before: []corev1.Pod{newPod("web-1"), newPod("dns-1", withPriority(v1alpha1.SystemClusterCritical))},
			events: []event{
				{watch.Modified, newPod("web-1", asked)}, {watch.Modified, newPod("dns-1", asked)},
				{watch.Deleted, newPod("web-1")}, {watch.Deleted, newPod("dns-1")},
				{watch.Added, newPod("web-2", onNode("green"))}, {watch.Added, newPod("dns-2", onNode("green"))},
			},
			broken: []int{2},
		},
		"a critical pod that leaves on a node of no interest": {
			before: []corev1.Pod{
				newPod("web-1"), newPod("dns-1", onNode("green"), withPriority(v1alpha1.SystemClusterCritical)),
			},
			events: []event{
				{watch.Deleted, newPod("dns-1", onNode("green"))}, {watch.Deleted, newPod("web-1")},
				{watch.Added, newPod("web-2", onNode("green"))}, {watch.Added, newPod("dns-2", onNode("green"))},
			},
		},
		"a DaemonSet pod that runs on": {
			before: []corev1.Pod{newPod("logs-1", withOwner("DaemonSet"))},
		},
		"a DaemonSet pod that is removed": {
			before: []corev1.Pod{newPod("logs-1", withOwner("DaemonSet"))},
			events: []event{{watch.Deleted, newPod("logs-1", withOwner("DaemonSet"))}},
			broken: []int{3},
		},
		"a pod that nothing replaces": {
			before: []corev1.Pod{newPod("debug-1", bare)},
			events: []event{{watch.Deleted, newPod("debug-1", bare)}},
		},
		"a pod that something should have replaced": {
			before: []corev1.Pod{newPod("other-1")},
			events: []event{{watch.Deleted, newPod("other-1")}},
			broken: []int{4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ledger := New("blue")
			if err := ledger.Open(
				[]policyv1.PodDisruptionBudget{newPDB(intstr.FromInt32(1))}, test.before, plan,
			); err != nil {
				t.Fatal(err)
			}
			for _, e := range test.events {
				ledger.Observe(e.kind, &e.pod)
			}
			for i, check := range ledger.Verdict() {
				if want := !slices.Contains(test.broken, i); check.Kept != want {
					t.Errorf("check %d: kept is %t, want %t: %s", i, check.Kept, want, check.Text)
				}
			}
		})
	}
}

func TestReplacements(t *testing.T) {
	before := []corev1.Pod{newPod("web-1"), newPod("web-2"), newPod("db-1", withOwner("StatefulSet"))}
	for name, test := range map[string]struct {
		events []event
		broken bool
	}{
		"another pod was there before one left": {
			events: []event{{watch.Added, newPod("web-3", onNode("green"))}, {watch.Modified, newPod("web-1", asked)}},
		},
		"a pod left first": {
			events: []event{{watch.Modified, newPod("web-1", asked)}, {watch.Added, newPod("web-3", onNode("green"))}},
			broken: true,
		},
		"a pod left when another one was there and not ready": {
			events: []event{
				{kind: watch.Added, pod: newPod("web-3", onNode("green"), notReady)},
				{kind: watch.Deleted, pod: newPod("web-1")},
			},
			broken: true,
		},
		"a pod of a StatefulSet left": {
			events: []event{{watch.Modified, newPod("db-1", withOwner("StatefulSet"), asked)}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ledger := New("blue")
			if err := ledger.Open(nil, before, plan); err != nil {
				t.Fatal(err)
			}
			for _, e := range test.events {
				ledger.Observe(e.kind, &e.pod)
			}
			if check := ledger.Replacements(); check.Kept == test.broken {
				t.Errorf("kept is %t, want %t: %s", check.Kept, !test.broken, check.Text)
			}
		})
	}
}

func TestOpenRefusesABudgetThatIsBroken(t *testing.T) {
	err := New("blue").Open(
		[]policyv1.PodDisruptionBudget{newPDB(intstr.FromInt32(0))}, []corev1.Pod{newPod("web-1", notReady)}, plan,
	)
	if err == nil {
		t.Error("got no error")
	}
}

func TestFloor(t *testing.T) {
	max10Percent, min90Percent, min3 := intstr.FromString("10%"), intstr.FromString("90%"), intstr.FromInt32(3)
	for name, test := range map[string]struct {
		spec     policyv1.PodDisruptionBudgetSpec
		expected int
		want     int
	}{
		"a share that may be missing is rounded up": {
			spec:     policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &max10Percent},
			expected: 11,
			want:     9,
		},
		"a share that must be there is rounded up": {
			spec:     policyv1.PodDisruptionBudgetSpec{MinAvailable: &min90Percent},
			expected: 11,
			want:     10,
		},
		"a number that must be there": {
			spec:     policyv1.PodDisruptionBudgetSpec{MinAvailable: &min3},
			expected: 11,
			want:     3,
		},
		"a budget that says nothing demands nothing": {spec: policyv1.PodDisruptionBudgetSpec{}, expected: 11, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := floor(&test.spec, test.expected)
			if err != nil || got != test.want {
				t.Errorf("got %d (error %v), want %d", got, err, test.want)
			}
		})
	}
}

func TestSnapshotCountsWaves(t *testing.T) {
	ledger := New("blue")
	before := []corev1.Pod{
		newPod("web-1"), newPod("web-2"), newPod("web-3", onNode("green")),
		newPod("dns-1", withPriority(v1alpha1.SystemClusterCritical)), newPod("logs-1", withOwner("DaemonSet")),
	}
	if err := ledger.Open(nil, before, plan); err != nil {
		t.Fatal(err)
	}
	gone := newPod("web-1")
	ledger.Observe(watch.Deleted, &gone)
	s := ledger.Snapshot()
	if s.Left() != 2 || s.Gone() != 1 || s.Nodes["blue"] != (NodeCount{Pods: 3, Left: 2}) || s.Events != 1 {
		t.Errorf("got %d left, %d gone, %+v on the node, %d events, want 2, 1, 2 of 3 and 1",
			s.Left(), s.Gone(), s.Nodes["blue"], s.Events)
	}
	want := []Wave{{Entry: plan[0], Pods: 2, Asked: 1, Gone: 1}, {Entry: plan[1], Pods: 1}}
	if !slices.EqualFunc(s.Waves, want, func(a, b Wave) bool {
		return a.Entry.PodPriority == b.Entry.PodPriority && a.Pods == b.Pods && a.Asked == b.Asked && a.Gone == b.Gone
	}) {
		t.Errorf("got %+v, want %+v", s.Waves, want)
	}
}

func TestSnapshotCountsMomentsBelowABudget(t *testing.T) {
	ledger := New("blue")
	if err := ledger.Open(
		[]policyv1.PodDisruptionBudget{newPDB(intstr.FromInt32(1))},
		[]corev1.Pod{newPod("web-1"), newPod("web-2"), newPod("web-3")}, plan,
	); err != nil {
		t.Fatal(err)
	}
	for _, e := range []event{
		{watch.Modified, newPod("web-1", asked)}, {watch.Modified, newPod("web-2", asked)},
		{watch.Deleted, newPod("web-2", asked)},
		{watch.Added, newPod("web-4", onNode("green"))}, {watch.Modified, newPod("web-3", notReady)},
	} {
		ledger.Observe(e.kind, &e.pod)
	}
	if b := ledger.Snapshot().Budgets[0]; b.Below != 2 || b.Lowest != 1 || b.Floor != 2 {
		t.Errorf("got %d moments below %d healthy pods, the lowest %d, want 2 below 2 and 1",
			b.Below, b.Floor, b.Lowest)
	}
}
