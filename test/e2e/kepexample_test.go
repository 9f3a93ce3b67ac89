// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// groupLabel distinguishes the pods of a budget.
const groupLabel = "e2e.haulout.dev/group"

// group is a set of pods on one node with one priority and one budget.
type group struct {
	node     string
	priority int32
	pods     int
}

func (g group) name() string { return fmt.Sprintf("%s-%d", g.node, g.priority) }

// story has the objects of the example in KEP-4212, "Pod Selection and DrainTargets Example". All
// names end with a random suffix.
type story struct {
	suffix, pool, namespace string
}

func newStory(t *testing.T, groups ...group) *story {
	t.Helper()
	s := &story{pool: framework.Name("pool"), namespace: cluster.NewNamespace(t)}
	_, s.suffix, _ = strings.Cut(s.pool, "-")
	var nodes []string
	for _, g := range groups {
		if name := s.real(g.node); !slices.Contains(nodes, name) {
			nodes = append(nodes, name)
		}
	}
	cluster.NewNodes(t, s.pool, true, nodes...)
	classes := map[int32]string{}
	var pods []*corev1.Pod
	for _, g := range groups {
		if classes[g.priority] == "" {
			classes[g.priority] = cluster.PriorityClass(t, g.priority)
		}
		for i := range g.pods {
			pods = append(pods, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprintf("%s-%d", g.name(), i), Labels: map[string]string{groupLabel: g.name()},
				},
				Spec: corev1.PodSpec{NodeName: s.real(g.node), PriorityClassName: classes[g.priority]},
			})
		}
	}
	cluster.PodsOn(t, s.namespace, s.pool, pods...)
	for _, g := range groups {
		s.block(t, g)
	}
	return s
}

func (s *story) real(name string) string { return name + "-" + s.suffix }

// block creates a budget that allows no eviction of the group.
func (s *story) block(t *testing.T, g group) {
	t.Helper()
	budgets := cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(s.namespace)
	must.Get(budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: g.name()},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt(g.pods)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{groupLabel: g.name()}},
		},
	}, metav1.CreateOptions{}))(t)
	framework.Until(t, "budget "+g.name()+" is computed",
		budgets, g.name(), func(b *policyv1.PodDisruptionBudget) bool {
			return b.Status.ObservedGeneration == b.Generation && int(b.Status.CurrentHealthy) == g.pods
		})
}

// leave changes the budget of a group so that only the given number of its pods stays.
func (s *story) leave(t *testing.T, group string, left int) {
	t.Helper()
	must.Get(cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(s.namespace).Patch(t.Context(), group,
		types.MergePatchType, fmt.Appendf(nil, `{"spec":{"minAvailable":%d}}`, left),
		metav1.PatchOptions{}))(t)
}

// drain creates a maintenance of nodes with a drain plan.
func (s *story) drain(t *testing.T, name string, plan []v1alpha1.DrainPlanEntry, nodes ...string) {
	t.Helper()
	cluster.Create(
		t,
		framework.Maintenance(s.pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
			nm.Name = s.real(name)
			nm.Spec.DrainPlan = plan
			for i := range nodes {
				nodes[i] = s.real(nodes[i])
			}
			nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, nodes...)
		}),
	)
}

// shows waits until the statuses of the maintenances are equal to those in the KEP. It ignores the
// fields that Haulout adds.
func (s *story) shows(t *testing.T, moment string, want map[string][]v1alpha1.NodeMaintenanceNodeStatus) {
	t.Helper()
	maintenances := cluster.As(t).Maintenances()
	framework.Eventually(t, "the statuses are those of the KEP "+moment, func(ctx context.Context) (bool, error) {
		for name, nodes := range want {
			nm, err := maintenances.Get(ctx, s.real(name), metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			got := nm.DeepCopy().Status.NodeStatuses
			for i := range got {
				got[i].NodeRef.Name = strings.TrimSuffix(got[i].NodeRef.Name, "-"+s.suffix)
				got[i].DrainMessage = strings.ReplaceAll(got[i].DrainMessage, "-"+s.suffix, "")
			}
			added := []cmp.Option{
				cmpopts.IgnoreFields(v1alpha1.NodeMaintenanceNodeStatus{}, "PodsBlocked", "PodsKept", "PodsPeak",
					"PodsGonePeak", "Reason"),
				cmpopts.IgnoreFields(v1alpha1.NodeReference{}, "UID"),
				cmpopts.SortSlices(func(a, b v1alpha1.NodeMaintenanceNodeStatus) bool {
					return a.NodeRef.Name < b.NodeRef.Name
				}),
			}
			if diff := cmp.Diff(nodes, got, added...); diff != "" {
				return false, fmt.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		return true, nil
	})
}

// at returns the status of a node.
func at(node string, pending, evacuating int32, message string, target int32) v1alpha1.NodeMaintenanceNodeStatus {
	return v1alpha1.NodeMaintenanceNodeStatus{
		NodeRef: v1alpha1.NodeReference{Name: node}, PodsPendingEvacuation: pending, PodsEvacuating: evacuating,
		DrainMessage: message,
		DrainTargets: []v1alpha1.DrainPlanEntry{{PodPriority: target, PodType: v1alpha1.PodTypeDefault}},
	}
}

// TestTheExampleOfTheKEP runs the example of KEP-4212, "Pod Selection and DrainTargets Example",
// with its numbers. Budgets keep each group of pods on its node until the step in which the example
// evicts it.
func TestTheExampleOfTheKEP(t *testing.T) {
	t.Parallel()
	type nodes = []v1alpha1.NodeMaintenanceNodeStatus
	entry := func(podType v1alpha1.PodType, priority int32) v1alpha1.DrainPlanEntry {
		return v1alpha1.DrainPlanEntry{PodType: podType, PodPriority: priority}
	}
	s := newStory(t, group{"one", 5000, 10}, group{"one", 10000, 30}, group{"one", 15000, 70}, group{"two", 5000, 7},
		group{"two", 15000, 9}, group{"two", 20000, 21}, group{"three", 10000, 25}, group{"three", 15000, 45},
		group{"four", 2000, 5}, group{"four", 15000, 20})
	recorder := cluster.Judge(t, s.pool, s.namespace)
	s.drain(t, "maintenance-a", []v1alpha1.DrainPlanEntry{
		entry(v1alpha1.PodTypeDefault, 5000), entry(v1alpha1.PodTypeDefault, 15000),
		entry(v1alpha1.PodTypeDaemonSet, 3000),
	}, "one", "two")
	s.drain(t, "maintenance-b", []v1alpha1.DrainPlanEntry{
		entry(v1alpha1.PodTypeDefault, 10000), entry(v1alpha1.PodTypeDefault, 15000),
		entry(v1alpha1.PodTypeDaemonSet, 4000),
	}, "one", "three")
	s.shows(t, "at the start", map[string]nodes{
		"maintenance-a": {at("one", 100, 10, "Evacuating", 5000), at("two", 30, 7, "Evacuating", 5000)},
		"maintenance-b": {
			at("one", 100, 10, "Evacuating (limited by maintenance-a)", 5000), at("three", 45, 25, "Evacuating", 10000),
		},
	})

	s.leave(t, "three-10000", 0)
	s.leave(t, "one-5000", 5)
	s.shows(t, "after node three is drained", map[string]nodes{
		"maintenance-b": {
			at("one", 100, 5, "Evacuating (limited by maintenance-a)", 5000),
			at("three", 45, 0, "Waiting for node one.", 10000),
		},
	})

	s.leave(t, "one-5000", 0)
	s.leave(t, "two-5000", 2)
	s.shows(t, "after node one is drained", map[string]nodes{
		"maintenance-a": {at("one", 100, 0, "Waiting for node two.", 5000), at("two", 30, 2, "Evacuating", 5000)},
		"maintenance-b": {
			at("one", 100, 0, "Waiting for node two (maintenance-a).", 5000),
			at("three", 45, 0, "Waiting for node two (maintenance-a).", 10000),
		},
	})

	s.leave(t, "two-5000", 0)
	s.shows(t, "after node two is drained", map[string]nodes{
		"maintenance-a": {
			at("one", 70, 30, "Evacuating (limited by maintenance-b)", 10000), at("two", 21, 9, "Evacuating", 15000),
		},
		"maintenance-b": {at("one", 70, 30, "Evacuating", 10000), at("three", 45, 0, "Waiting for node one.", 10000)},
	})

	s.drain(t, "maintenance-c",
		[]v1alpha1.DrainPlanEntry{entry(v1alpha1.PodTypeDefault, 2000), entry(v1alpha1.PodTypeDefault, 15000)}, "one",
		"four")
	s.shows(t, "after c was created", map[string]nodes{
		"maintenance-c": {
			at("one", 70, 30, "Evacuating (fast-forwarded by older maintenance-b)", 10000),
			at("four", 20, 5, "Evacuating", 2000),
		},
	})
	framework.Eventually(t, "an event reports that c was fast-forwarded", func(ctx context.Context) (bool, error) {
		return hasEvent(ctx, t, s.real("maintenance-c"), "DrainFastForwarded", s.real("maintenance-b"))
	})

	must.Do(t, cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(s.namespace).DeleteCollection(t.Context(),
		metav1.DeleteOptions{}, metav1.ListOptions{}))
	names := []string{s.real("maintenance-a"), s.real("maintenance-b"), s.real("maintenance-c")}
	for _, name := range names {
		drained(t, name)
	}
	for _, name := range names {
		setStage(t, name, v1alpha1.NodeMaintenanceStageComplete)
	}
	waitFor(t, recorder, oracle.PutBack(nil, names...))
	found, err := recorder.Verdict(oracle.Rules{})
	framework.Accept(t, found, err)
}

// hasEvent reports whether an object has an event with a reason and words.
func hasEvent(ctx context.Context, t *testing.T, object, reason string, words ...string) (bool, error) {
	t.Helper()
	list, err := cluster.As(t).Kube.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: labels.Set{"involvedObject.name": object, "reason": reason}.String(),
	})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(e.Message, word) })
	}), nil
}
