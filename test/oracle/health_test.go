// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
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

// played returns a log of budgets and pods, then of pod events at intervals of one second.
func played(before []corev1.Pod, events []event, budgets ...*policyv1.PodDisruptionBudget) Log {
	var log Log
	for _, budget := range budgets {
		log.Observations = append(log.Observations, observe(dawn, watch.Added, budget))
	}
	for i := range before {
		log.Observations = append(log.Observations, observe(dawn, watch.Added, &before[i]))
	}
	log.begin()
	for i := range events {
		later(&log, time.Second, events[i].kind, &events[i].pod)
	}
	return log
}

// later adds an observation some time after the last observation.
func later(log *Log, after time.Duration, kind watch.EventType, object runtime.Object) {
	last := log.Observations[len(log.Observations)-1]
	o := observe(last.Seen.Add(after), kind, object)
	o.at = last.at + 1
	log.Observations = append(log.Observations, o)
}

func TestBudgetsThatWereBroken(t *testing.T) {
	one := newPDB(intstr.FromInt32(1))
	for name, test := range map[string]struct {
		before                           []corev1.Pod
		events                           []event
		expected, healthy, lowest, below int
	}{
		"a pod that leaves within its budget and is replaced": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2")},
			events: []event{
				{watch.Modified, newPod("web-1", asked)}, {watch.Added, newPod("web-3", notReady)},
				{watch.Deleted, newPod("web-1", asked)}, {watch.Modified, newPod("web-3")},
			},
			expected: 2, healthy: 2, lowest: 1,
		},
		"two pods that leave at the same time although one may": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2")},
			events: []event{
				{watch.Modified, newPod("web-1", asked)}, {watch.Modified, newPod("web-2", asked)},
				{watch.Deleted, newPod("web-1", asked)}, {watch.Deleted, newPod("web-2", asked)},
				{watch.Added, newPod("web-3")}, {watch.Added, newPod("web-4")},
			},
			expected: 2, healthy: 2, lowest: 0, below: 1,
		},
		"a pod that becomes unready while another is away": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2")},
			events: []event{
				{watch.Deleted, newPod("web-1")}, {watch.Modified, newPod("web-2", notReady)},
				{watch.Modified, newPod("web-2")}, {watch.Added, newPod("web-3")},
			},
			expected: 2, healthy: 2, lowest: 0, below: 1,
		},
		"a pod that is replaced under its own name": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2")},
			events: []event{
				{watch.Deleted, newPod("web-1")},
				{watch.Added, newPod("web-1", func(p *corev1.Pod) { p.UID = "another" })},
			},
			expected: 2, healthy: 2, lowest: 1,
		},
		"a pod that has finished": {
			before:   []corev1.Pod{newPod("web-1"), newPod("web-2")},
			events:   []event{{watch.Modified, newPod("web-1", finished)}},
			expected: 2, healthy: 1, lowest: 1,
		},
		"every pod lost below the floor": {
			before: []corev1.Pod{newPod("web-1"), newPod("web-2"), newPod("web-3")},
			events: []event{
				{watch.Modified, newPod("web-1", asked)}, {watch.Modified, newPod("web-2", asked)},
				{watch.Deleted, newPod("web-2", asked)},
				{watch.Added, newPod("web-4")}, {watch.Modified, newPod("web-3", notReady)},
			},
			expected: 3, healthy: 1, lowest: 1, below: 2,
		},
		"a pod of another app": {
			before:   []corev1.Pod{newPod("web-1"), newPod("other-1")},
			events:   []event{{watch.Deleted, newPod("other-1")}},
			expected: 1, healthy: 1, lowest: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := played(test.before, test.events, &one)
			got := HealthOf(log)[0]
			is.Equal(t, got.Span, Span{test.expected, test.healthy, test.lowest}, "healthy pods")
			is.Equal(t, got.Expected, test.expected, "expected pods")
			is.Equal(t, got.Floor, test.expected-1, "floor")
			is.Equal(t, len(got.Broken()), test.below, "losses below the floor")
			is.True(t, len(brokenBudgets(log)) > 0 == (test.below > 0), "broken are %v", brokenBudgets(log))
		})
	}
}

// TestBudgetsThatMove loses two of three pods one after another, while the budget changes.
func TestBudgetsThatMove(t *testing.T) {
	before := []corev1.Pod{newPod("web-1"), newPod("web-2"), newPod("web-3")}
	for name, test := range map[string]struct {
		// first and then are the values of maxUnavailable before and after the change. The change
		// comes some time before the second loss.
		first, then int32
		changed     time.Duration
		want        []string
	}{
		"it opens before the loss":      {first: 1, then: 2, changed: time.Second},
		"it closes long before":         {2, 1, time.Minute, []string{"budget shop/web had 1 healthy pods, 2 are needed"}},
		"it closes a moment before":     {first: 2, then: 1, changed: time.Second},
		"it never allowed the two":      {1, 0, time.Second, []string{"budget shop/web had 1 healthy pods, 2 are needed"}},
		"it opens too late for the two": {1, 2, -time.Second, []string{"budget shop/web had 1 healthy pods, 2 are needed"}},
	} {
		t.Run(name, func(t *testing.T) {
			budget, changed := newPDB(intstr.FromInt32(test.first)), newPDB(intstr.FromInt32(test.then))
			log := played(before, []event{{watch.Deleted, newPod("web-1")}}, &budget)
			web2 := newPod("web-2")
			if test.changed > 0 {
				later(&log, time.Minute, watch.Modified, &changed)
				later(&log, test.changed, watch.Deleted, &web2)
			} else {
				later(&log, time.Minute, watch.Deleted, &web2)
				later(&log, -test.changed, watch.Modified, &changed)
			}
			expect(t, brokenBudgets(log), test.want...)
		})
	}
}

func TestDeploymentsThatMissedPods(t *testing.T) {
	before := []corev1.Pod{newPod("web-1"), newPod("web-2"), newPod("db-1", withOwner("StatefulSet"))}
	for name, test := range map[string]struct {
		events []event
		want   []string
	}{
		"another pod was there before one left": {
			events: []event{{watch.Added, newPod("web-3")}, {watch.Modified, newPod("web-1", asked)}},
		},
		"a pod left first": {
			events: []event{{watch.Modified, newPod("web-1", asked)}, {watch.Added, newPod("web-3")}},
			want:   []string{"Deployment shop/web had 1 of 2 healthy pods"},
		},
		"a pod left when another one was there and not ready": {
			events: []event{
				{kind: watch.Added, pod: newPod("web-3", notReady)}, {kind: watch.Deleted, pod: newPod("web-1")},
			},
			want: []string{"Deployment shop/web had 1 of 2 healthy pods"},
		},
		"a pod of a StatefulSet left": {
			events: []event{{watch.Modified, newPod("db-1", withOwner("StatefulSet"), asked)}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, Missed(played(before, test.events)), test.want...)
		})
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
			is.Equal(t, floor(&test.spec, test.expected), test.want)
		})
	}
}
