// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

type modifier func(*corev1.Pod)

// newPod returns a ready pod of a Deployment's ReplicaSet.
func newPod(name string, modifiers ...modifier) corev1.Pod {
	app, _, _ := strings.Cut(name, "-")
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID(name), Labels: map[string]string{"app": app},
		},
		Status: build.Ready(),
	}
	withOwner("ReplicaSet")(&p)
	return *build.With(&p, modifiers...)
}

func withOwner(kind string) modifier {
	return func(p *corev1.Pod) {
		controller := true
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Controller: &controller}}
	}
}

func asked(p *corev1.Pod)    { p.DeletionTimestamp = &metav1.Time{} }
func notReady(p *corev1.Pod) { p.Status.Conditions = nil }
func finished(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }

func newPDB(maxUnavailable intstr.IntOrString) policyv1.PodDisruptionBudget {
	return policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: &maxUnavailable,
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	}
}

type event struct {
	kind watch.EventType
	pod  corev1.Pod
}

func TestBooksFindBrokenBudgets(t *testing.T) {
	one := intstr.FromInt32(1)
	for name, test := range map[string]struct {
		before []corev1.Pod
		events []event
		want   Health
	}{
		"a pod that leaves within its budget and is replaced": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2")},
			events: []event{
				{watch.Modified, newPod("web-1", asked)}, {watch.Added, newPod("web-3", notReady)},
				{watch.Deleted, newPod("web-1", asked)}, {watch.Modified, newPod("web-3")},
			},
			want: Health{Expected: 2, Floor: 1, Healthy: 2, Lowest: 1},
		},
		"two pods that leave at the same time although one may": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2")},
			events: []event{
				{watch.Modified, newPod("web-1", asked)}, {watch.Modified, newPod("web-2", asked)},
				{watch.Deleted, newPod("web-1", asked)}, {watch.Deleted, newPod("web-2", asked)},
				{watch.Added, newPod("web-3")}, {watch.Added, newPod("web-4")},
			},
			want: Health{Expected: 2, Floor: 1, Healthy: 2, Lowest: 0, Below: 1},
		},
		"a pod that becomes unready while another is away": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2")},
			events: []event{
				{watch.Deleted, newPod("web-1")}, {watch.Modified, newPod("web-2", notReady)},
				{watch.Modified, newPod("web-2")}, {watch.Added, newPod("web-3")},
			},
			want: Health{Expected: 2, Floor: 1, Healthy: 2, Lowest: 0, Below: 1},
		},
		"a pod that is replaced under its own name": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2")},
			events: []event{
				{watch.Deleted, newPod("web-1")},
				{watch.Added, newPod("web-1", func(p *corev1.Pod) { p.UID = "another" })},
			},
			want: Health{Expected: 2, Floor: 1, Healthy: 2, Lowest: 1},
		},
		"a pod that has finished": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2")},
			events: []event{{watch.Modified, newPod("web-1", finished)}},
			want:   Health{Expected: 2, Floor: 1, Healthy: 1, Lowest: 1},
		},
		"every pod lost below the floor": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2"), newPod("web-3")},
			events: []event{
				{watch.Modified, newPod("web-1", asked)}, {watch.Modified, newPod("web-2", asked)},
				{watch.Deleted, newPod("web-2", asked)},
				{watch.Added, newPod("web-4")}, {watch.Modified, newPod("web-3", notReady)},
			},
			want: Health{Expected: 3, Floor: 2, Healthy: 1, Lowest: 1, Below: 2},
		},
		"a pod of another app": {
			before: []corev1.Pod{newPod("web-1"), newPod("other-1")},
			events: []event{{watch.Deleted, newPod("other-1")}},
			want:   Health{Expected: 1, Floor: 0, Healthy: 1, Lowest: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			books := must.Get(OpenBooks([]policyv1.PodDisruptionBudget{newPDB(one)}, test.before))(t)
			for _, e := range test.events {
				books.Observe(e.kind, &e.pod)
			}
			got := books.Budgets()[0]
			got.Name, got.namespace, got.selector = "", "", nil
			is.Equal(t, got, test.want)
			if isBroken := len(books.Broken()) > 0; isBroken != (test.want.Lowest < test.want.Floor) {
				t.Errorf("broken are %v", books.Broken())
			}
		})
	}
}

func TestBooksFindDeploymentsThatMissedPods(t *testing.T) {
	before := []corev1.Pod{newPod("web-1"), newPod("web-2"), newPod("db-1", withOwner("StatefulSet"))}
	for name, test := range map[string]struct {
		events []event
		broken bool
	}{
		"another pod was there before one left": {
			events: []event{{watch.Added, newPod("web-3")}, {watch.Modified, newPod("web-1", asked)}},
		},
		"a pod left first": {
			events: []event{{watch.Modified, newPod("web-1", asked)}, {watch.Added, newPod("web-3")}}, broken: true,
		},
		"a pod left when another one was there and not ready": {
			events: []event{
				{kind: watch.Added, pod: newPod("web-3", notReady)}, {kind: watch.Deleted, pod: newPod("web-1")},
			},
			broken: true,
		},
		"a pod of a StatefulSet left": {
			events: []event{{watch.Modified, newPod("db-1", withOwner("StatefulSet"), asked)}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			books := must.Get(OpenBooks(nil, before))(t)
			for _, e := range test.events {
				books.Observe(e.kind, &e.pod)
			}
			if missed := books.Missed(); len(missed) > 0 != test.broken {
				t.Errorf("got %v, want some: %t", missed, test.broken)
			}
		})
	}
}

func TestOpenBooksRefusesABudgetThatIsBroken(t *testing.T) {
	_, err := OpenBooks([]policyv1.PodDisruptionBudget{newPDB(intstr.FromInt32(0))},
		[]corev1.Pod{newPod("web-1", notReady)})
	is.True(t, err != nil, "got no error")
}

func TestFloor(t *testing.T) {
	max10Percent, min90Percent, min3 := intstr.FromString("10%"), intstr.FromString("90%"), intstr.FromInt32(3)
	for name, test := range map[string]struct {
		spec     policyv1.PodDisruptionBudgetSpec
		expected int
		want     int
	}{
		"a share that may be missing is rounded up": {
			spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &max10Percent}, expected: 11, want: 9,
		},
		"a share that must be there is rounded up": {
			spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &min90Percent}, expected: 11, want: 10,
		},
		"a number that must be there": {
			spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &min3}, expected: 11, want: 3,
		},
		"a budget that says nothing demands nothing": {spec: policyv1.PodDisruptionBudgetSpec{}, expected: 11, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := floor(&test.spec, test.expected)
			is.True(t, err == nil && got == test.want, "got %d (error %v), want %d", got, err, test.want)
		})
	}
}
