// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestBudgetsOfPodsWithTheSameLabelsAreMatchedOnce covers budgets whose selectors require no label.
func TestBudgetsOfPodsWithTheSameLabelsAreMatchedOnce(t *testing.T) {
	const budgets = 10
	c := &Controller{budgets: pdb.NewIndex(nil)}
	for i := range budgets {
		c.budgets.Set(&policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: fmt.Sprintf("b-%d", i)},
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprintf("other-%d", i), "canary"}},
			}}},
		})
	}
	var known budgetsByLabels
	canary := newTestPod("web-2", func(p *pod) { p.Labels = map[string]string{"app": "canary"} })
	for _, p := range slices.Concat([]pod{canary}, slices.Repeat([]pod{newTestPod("web-0"), newTestPod("web-1")}, 5)) {
		want := budgets
		if p.Name == canary.Name {
			want = 0
		}
		if got := c.budgetsOf(p.Pod, &known); len(got) != want {
			t.Errorf("%s has %d budgets, want %d", p.Name, len(got), want)
		}
	}
	if got := c.budgets.Matched(); got != 2*budgets {
		t.Errorf("budgets were matched %d times, want %d", got, 2*budgets)
	}
}

// TestPodsOfOtherWorkloadsUnderABudgetAreCounted covers budgets that the Deployment alone cannot
// meet. The pods of other workloads decide whether its pods may leave by a scale-down.
func TestPodsOfOtherWorkloadsUnderABudgetAreCounted(t *testing.T) {
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	ours := newTestPod("web-0")
	finished := newTestPod("job", func(p *pod) { p.Status.Phase = corev1.PodSucceeded })
	terminating := newTestPod("old", func(p *pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(start)) })
	unselected := newTestPod("db", func(p *pod) { p.Labels = map[string]string{"app": "db"} })
	for _, p := range []pod{ours, finished, terminating, unselected, newTestPod("other-0"), newTestPod("other-1")} {
		must.Do(t, pods.Add(p.Pod))
	}
	c := &Controller{podLister: corelisters.NewPodLister(pods)}
	budgetOf := func(name string, minAvailable int32) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: name},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: ptr.To(intstr.FromInt32(minAvailable)), Selector: &metav1.LabelSelector{MatchLabels: podLabels},
			},
		}
	}
	for minAvailable, want := range map[int32]struct{ others, canBeExchanged bool }{
		1: {others: false, canBeExchanged: true},
		3: {others: true, canBeExchanged: true},
		4: {others: true, canBeExchanged: false},
	} {
		t.Run(fmt.Sprint(minAvailable), func(t *testing.T) {
			ours.budgets = []*policyv1.PodDisruptionBudget{budgetOf("shared", minAvailable)}
			s := situation{deployment: newDeployment(1), pods: []pod{ours}}
			must.Do(t, c.countOthers(&s))
			others, counted := s.others[pdb.NameOf(ours.budgets[0])]
			is.Equal(t, counted, want.others, "counted")
			if counted {
				is.Equal(t, others, int32(2), "others")
			}
			is.Equal(t, s.canBeExchanged(&s.pods[0]), want.canBeExchanged, "can be exchanged")
		})
	}
}

// TestPodsOfANodeThatIsGoneKeepTheSurge: the garbage collector deletes such a pod within minutes. A
// surge that ended before would delete its replacement.
func TestPodsOfANodeThatIsGoneKeepTheSurge(t *testing.T) {
	gone, unbound := newTestPod("web-0"), newTestPod("web-1", func(p *pod) { p.Spec.NodeName = "" })
	c := newKnowing(t, nil, []runtime.Object{newDeployment(2, recorded(1, 2, web0)), newReplicaSet(), gone.Pod, unbound.Pod})
	gathered := must.Get(c.gather(t.Context(), testKey))(t)
	must.True(t, len(gathered.pods) == 2, "got %d pods", len(gathered.pods))
	is.True(t, gathered.pods[0].isCovered, "the pod of a node that is gone is not covered")
	is.True(t, !gathered.pods[1].isCovered, "a pod without a node counts as one of a node that is gone")
	for name, pods := range map[string][]pod{
		"the replacement starts":   {newTestPod("web-0", covered), newTestPod("web-1", fresh, unready)},
		"the replacement is ready": {newTestPod("web-0", covered, unready), newTestPod("web-1", fresh)},
	} {
		is.Equal(t, summary(decide(at(10*time.Second, newDeployment(2, recorded(1, 2, web0)), pods...))), "", name)
	}
}
