// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/featuregate"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/podtopologyspread"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	testingframework "k8s.io/kubernetes/pkg/scheduler/testing/framework"
	"k8s.io/utils/ptr"
)

var (
	affinityPlugin = testingframework.RegisterPluginAsExtensions(interpodaffinity.Name,
		frameworkruntime.FactoryAdapter(feature.Features{}, interpodaffinity.New), "PreFilter", "Filter")
	spreadPlugin = testingframework.RegisterPluginAsExtensions(podtopologyspread.Name,
		frameworkruntime.FactoryAdapter(feature.Features{}, podtopologyspread.New), "PreFilter", "Filter")
	brokenPlugin = testingframework.RegisterPluginAsExtensions("broken", newBroken, "PreFilter")

	workload  = []featuregate.Feature{features.GenericWorkload}
	closedWeb = []*policyv1.PodDisruptionBudget{budgetOf("web", 0)}
)

func groupsOf(groups ...*schedulingv1beta1.PodGroup) []*schedulingv1beta1.PodGroup { return groups }

func oneByOne(group *schedulingv1beta1.PodGroup) {
	group.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{Single: &schedulingv1beta1.SingleDisruptionMode{}}
}

// broken is a filter plugin whose RemovePod fails on nodes with the label broken.
type broken struct{}

func newBroken(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return broken{}, nil }

func (broken) Name() string { return "broken" }

func (b broken) PreFilterExtensions() fwk.PreFilterExtensions { return b }

func (broken) PreFilter(context.Context, fwk.CycleState, *corev1.Pod, []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	return nil, nil
}

func (broken) AddPod(context.Context, fwk.CycleState, *corev1.Pod, fwk.PodInfo, fwk.NodeInfo) *fwk.Status {
	return nil
}

func (broken) RemovePod(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, _ fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	if _, is := node.Node().Labels["broken"]; is {
		return fwk.AsStatus(errors.New("cannot remove a pod"))
	}
	return nil
}

func brokenNode(name string, cpu int) *corev1.Node {
	n := node(name, cpu)
	n.Labels = map[string]string{"broken": ""}
	return n
}

// apartFrom adds an anti-affinity to the pods of an app in a zone or on a node.
func apartFrom(app, topology string) podOption {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, TopologyKey: topology,
			}},
		}}
	}
}

// spreadOver adds an even topology spread over the pods of an app.
func spreadOver(app string, topologies ...string) podOption {
	return func(pod *corev1.Pod) {
		for _, topology := range topologies {
			pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
				MaxSkew: 1, TopologyKey: topology, WhenUnsatisfiable: corev1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
			})
		}
	}
}

// with applies options to the first of the pods.
func with(pods []*corev1.Pod, options ...podOption) []*corev1.Pod {
	for _, option := range options {
		option(pods[0])
	}
	return pods
}

// choiceCases test the choice of a node.
var choiceCases = map[string]upstreamCase{
	"a less important pod": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 1)}, pods: place("n1: a/low/1")}, pending: wanting(high, 1),
		node: "n1", victims: "a", message: "preemption: found a potential placement for pod on node n1, preempting 1 victims",
	},
	"the node with a less important pod": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 1), node("n2", 1)}, pods: place("n1: a/high/1", "n2: b/low/1")}, pending: wanting(mid, 1),
		node: "n2", victims: "b",
	},
	"the less important of the top victims, because both exceed a budget": {
		cluster: cluster{
			nodes: []*corev1.Node{node("n1", 1), node("n2", 1)}, pods: place("n1: a/high/1#db b/low/1#web", "n2: c/mid/1#web"),
			budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0), budgetOf("db", 1000)},
		}, pending: wanting(top, 1), node: "n2", victims: "c",
	},
	"the node whose victims are all unimportant": {
		cluster: cluster{nodes: five("n1", "n2", "n3"), pods: place("n1: a/mid/2 b/mid/3", "n2: c/mid/2 d/low/2", "n3: e/low/2 f/low/2")},
		pending: wanting(high, 5), node: "n3", victims: "e f",
	},
	"the lowest sum of priorities": {
		cluster: cluster{nodes: five("n1", "n2", "n3"), pods: place("n1: a/mid/2 b/mid/3", "n2: c/mid/3 d/low/2", "n3: e/mid/2 f/mid/2")},
		pending: wanting(high, 5), node: "n2", victims: "c d",
	},
	"the fewest pods": {
		cluster: cluster{nodes: five("n1", "n2", "n3"), pods: place("n1: a/mid/1 b/neg/1 c/mid/1 d/neg/1", "n2: e/mid/3 f/neg/2", "n3: g/mid/2 h/neg/1 i/low/1")},
		pending: wanting(high, 5), node: "n2", victims: "e f",
	},
	"negative priorities": {
		cluster: cluster{nodes: five("n1", "n2", "n3"), pods: place("n1: a/mid/1 b/neg/1 c/neg/1", "n2: d/mid/3 e/neg/2", "n3: f/mid/2 g/neg/1 h/low/1")},
		pending: wanting(high, 5), node: "n2", victims: "d e",
	},
	"the most important victim, then the sum, then the number": {
		cluster: cluster{nodes: five("n1", "n2", "n3", "n4"), pods: place("n1: a/mid/1 b/low/1 c/low/1", "n2: d/high/3",
			"n3: e/mid/2 f/low/1 g/low/1 h/low/2", "n4: i/mid/2 j/mid/1 k/mid/1 l/neg/1")},
		pending: wanting(top, 5), node: "n1", victims: "a b c",
	},
	"the latest start": {
		cluster: cluster{nodes: five("n1", "n2", "n3"), pods: place("n1: a/mid/2@2 b/mid/2@2", "n2: c/mid/2@3 d/mid/2@3", "n3: e/mid/2@1 f/mid/2@1")},
		pending: wanting(high, 5), node: "n2", victims: "c d",
	},
	"the earliest start on a node counts": {
		cluster: cluster{nodes: five("n1", "n2", "n3"), pods: place("n1: a/mid/2@4 b/mid/2@2", "n2: c/mid/2@5 d/mid/2@1", "n3: e/mid/2@3 f/mid/2@6")},
		pending: wanting(high, 5), node: "n3", victims: "e f",
	},
	"the start of the most important victims counts": {
		cluster: cluster{nodes: five("n1", "n2", "n3"), pods: place("n1: a/low/2@4 b/mid/2@2", "n2: c/mid/2@6 d/low/2@1", "n3: e/low/2@3 f/mid/2@5")},
		pending: wanting(high, 5), node: "n2", victims: "c d",
	},
	"a policy that allows preemption": {
		cluster: cluster{nodes: five("n1", "n2", "n3"), pods: place("n1: a/low/1 b/low/1", "n2: c/high/3", "n3: d/mid/2")},
		pending: wanting(high, 5, func(pod *corev1.Pod) { pod.Spec.PreemptionPolicy = ptr.To(corev1.PreemptLowerPriority) }), node: "n1", victims: "a b",
	},
	"a spread over zones and nodes": {
		cluster: cluster{
			nodes: []*corev1.Node{zoned("n1", "z1"), zoned("n2", "z1"), zoned("n3", "z2")},
			pods:  place("n1: a/high/0#x b/high/0#x", "n2: c/low/0#x", "n3: d/high/0#x e/high/0#x"),
		}, pending: wanting(high, 0, ofApp("x"), spreadOver("x", "zone", "hostname")), plugins: []testingframework.RegisterPluginFunc{spreadPlugin},
		node: "n2", victims: "c",
	},
	"a filter fails on one node": {
		cluster: cluster{nodes: []*corev1.Node{brokenNode("n1", 3), node("n2", 3)}, pods: place("n1: a/low/1", "n2: b/low/2")},
		pending: wanting(high, 3), plugins: []testingframework.RegisterPluginFunc{brokenPlugin}, node: "n2", victims: "b",
	},
}

// refusedCases are cases in which no node is chosen.
var refusedCases = map[string]upstreamCase{
	"a pod of the same priority": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 1)}, pods: place("n1: a/low/1")}, pending: wanting(low, 1),
		message: "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
	},
	"a node on which preemption cannot help": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 1)}, pods: place("n1: a/low/1")}, pending: wanting(high, 1), helpless: []string{"n1"},
		message: "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
	},
	"a node without a status": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 1)}, pods: place("n1: a/low/1")}, pending: wanting(high, 1), unknown: []string{"n1"},
		message: "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
	},
	"nodes that are too small": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 2), node("n2", 2)}, pods: place("n1: a/low/1", "n2: b/low/1")}, pending: wanting(high, 3),
		message: "preemption: 0/2 nodes are available: 2 Insufficient cpu.",
	},
	"a node that is too small, and others with important pods": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 1), node("n2", 2), node("n3", 1)}, pods: place("n1: a/high/1", "n2: b/low/1", "n3: c/high/1")},
		pending: wanting(high, 3),
		message: "preemption: 0/3 nodes are available: 1 Insufficient cpu, 2 No preemption victims found for incoming pod.",
	},
	"nodes that are too small, and others on which preemption cannot help": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 2), node("n2", 2), node("n3", 2), node("n4", 2)}, pods: place("n1: a/low/1", "n2: b/low/1")},
		pending: wanting(high, 3), helpless: []string{"n4"}, unknown: []string{"n3"},
		message: "preemption: 0/4 nodes are available: 2 Insufficient cpu, 2 Preemption is not helpful for scheduling.",
	},
	"a filter fails": {
		cluster: cluster{nodes: []*corev1.Node{brokenNode("n1", 3)}, pods: place("n1: a/low/1")}, pending: wanting(high, 3),
		plugins: []testingframework.RegisterPluginFunc{brokenPlugin},
		message: `preemption: running RemovePod on PreFilter plugin "broken": cannot remove a pod`,
	},
	"a pod that never preempts": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/low/1 b/low/1")},
		pending: wanting(high, 5, func(pod *corev1.Pod) { pod.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) }),
		message: "preemption: not eligible due to preemptionPolicy=Never.",
	},
	"a filter that refuses all": {
		cluster: cluster{nodes: five("n1", "n2"), pods: place("n1: a/mid/1", "n2: b/mid/1")}, pending: wanting(high, 1),
		plugins: []testingframework.RegisterPluginFunc{testingframework.RegisterFilterPlugin("FalseFilter", testingframework.NewFalseFilterPlugin)},
		message: "preemption: 0/2 nodes are available: 2 Nodes failed the fake plugin.",
	},
	"the pod fits without victims": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/mid/1")}, pending: wanting(high, 1), message: `preemption: expected at least one victim pod on node "n1"`,
	},
	"an empty node": {
		cluster: cluster{nodes: five("n1")}, pending: wanting(mid, 6),
		message: "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
	},
}

// onN1 rejects all nodes except n1, as the filter of an extender.
func onN1(_ *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	if node.Node().Name == "n1" {
		return nil
	}
	return fwk.NewStatus(fwk.Unschedulable, "not n1")
}

// extended is a cluster in which node n3 or n2 would be chosen without extenders.
var extended = cluster{nodes: five("n1", "n2", "n3"), pods: place("n1: a/mid/1 b/low/1", "n2: x/top/5", "n3: c/mid/3")}

var extenderCases = map[string]upstreamCase{
	"no extender": {cluster: extended, pending: wanting(high, 5), node: "n3", victims: "c"},
	"an extender that allows n1": {
		cluster: extended, pending: wanting(high, 5), node: "n1", victims: "a b",
		extenders: []testingframework.FakeExtender{
			{ExtenderName: "1", Predicates: []testingframework.FitPredicate{testingframework.TruePredicateExtender}},
			{ExtenderName: "2", Predicates: []testingframework.FitPredicate{onN1}},
		},
	},
	"an extender that allows nothing": {
		cluster: extended, pending: wanting(high, 5),
		extenders: []testingframework.FakeExtender{{ExtenderName: "1", Predicates: []testingframework.FitPredicate{testingframework.FalsePredicateExtender}}},
	},
	"an extender that fails and is ignorable": {
		cluster: extended, pending: wanting(high, 5), node: "n1", victims: "a b",
		extenders: []testingframework.FakeExtender{
			{ExtenderName: "1", Predicates: []testingframework.FitPredicate{testingframework.ErrorPredicateExtender}, Ignorable: true},
			{ExtenderName: "2", Predicates: []testingframework.FitPredicate{onN1}},
		},
	},
	"an extender that does not handle the pod": {
		cluster: extended, pending: wanting(high, 5), node: "n3", victims: "c",
		extenders: []testingframework.FakeExtender{
			{ExtenderName: "1", Predicates: []testingframework.FitPredicate{onN1}, UnInterested: true},
			{ExtenderName: "2", Predicates: []testingframework.FitPredicate{testingframework.TruePredicateExtender}},
		},
	},
}

// victimCases test the victims on a node.
var victimCases = map[string]upstreamCase{
	"either node":              {cluster: cluster{nodes: five("n1", "n2"), pods: place("n1: a/mid/3", "n2: b/mid/3")}, pending: wanting(high, 3), on: map[string]string{"n1": "[a] 0", "n2": "[b] 0"}},
	"only more important pods": {cluster: cluster{nodes: five("n1", "n2"), pods: place("n1: a/mid/3", "n2: b/mid/3")}, pending: wanting(low, 3), on: map[string]string{}},
	"a small pod stays":        {cluster: cluster{nodes: five("n1", "n2"), pods: place("n1: a/low/1 b/mid/3", "n2: c/mid/3")}, pending: wanting(high, 3), on: map[string]string{"n1": "[b] 0", "n2": "[c] 0"}},
	"of several priorities":    {cluster: cluster{nodes: five("n1", "n2"), pods: place("n1: a/mid/1 b/low/1 c/mid/2 d/high/1", "n2: e/high/3")}, pending: wanting(high, 3), on: map[string]string{"n1": "[b c] 0"}},
	"the later of two":         {cluster: cluster{nodes: five("n1", "n2"), pods: place("n1: a/low/1@5 b/low/1@4 c/mid/2@3 d/high/1@2", "n2: e/high/3@1")}, pending: wanting(high, 3), on: map[string]string{"n1": "[a c] 0"}},
	"the least important":      {cluster: cluster{nodes: five("n1"), pods: place("n1: a/high/1 b/mid/1 c/low/1")}, pending: wanting(high, 3), on: map[string]string{"n1": "[c] 0"}},
	"a pod with an anti-affinity": {
		cluster: cluster{nodes: five("n1", "n2"), pods: with(place("n1: a/low/1#x b/mid/1 c/high/1", "n2: d/high/1"), apartFrom("x", "hostname"))},
		pending: wanting(high, 1, ofApp("x")), plugins: []testingframework.RegisterPluginFunc{affinityPlugin}, on: map[string]string{"n1": "[a] 0"},
	},
	"a spread that one pod of a zone exceeds": {
		cluster: cluster{
			nodes: []*corev1.Node{zoned("n1", "z1"), zoned("n2", "z1"), zoned("n3", "z2")},
			pods:  place("n1: a/mid/0#x b/low/0#x", "n2: c/low/0#x", "n3: d/high/0#x e/high/0#x"),
		}, pending: wanting(high, 0, ofApp("x"), spreadOver("x", "zone", "hostname")), plugins: []testingframework.RegisterPluginFunc{spreadPlugin},
		on: map[string]string{"n1": "[b] 0", "n2": "[c] 0"},
	},
	"a function that limits the victims": {
		cluster: cluster{nodes: five("n1", "n2"), pods: place("n1: a/mid/3#no", "n2: b/mid/3#yes")}, pending: wanting(high, 3),
		change: func(d *defaultpreemption.DefaultPreemption) {
			d.IsEligiblePod = func(_ fwk.NodeInfo, victim upstream.Victim, _ *corev1.Pod) bool {
				return victim.Pods()[0].GetPod().Labels["app"] == "yes"
			}
		}, on: map[string]string{"n2": "[b] 0"},
	},
	"a function for the order": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/low/2 b/mid/2")}, pending: wanting(high, 3),
		change: func(d *defaultpreemption.DefaultPreemption) {
			d.MoreImportantVictim = func(x, y upstream.Victim) bool {
				return strings.Compare(x.Pods()[0].GetPod().Name, y.Pods()[0].GetPod().Name) < 0
			}
		}, on: map[string]string{"n1": "[b] 0"},
	},
}

// disrupted adds a pod to disruptedPods of a budget.
func disrupted(name string) budgetOption {
	return func(b *policyv1.PodDisruptionBudget) {
		b.Status.DisruptedPods = map[string]metav1.Time{name: metav1.NewTime(time.Now())}
	}
}

// budgetCases count the victims that exceed a budget. Without thresholds, these victims are avoided
// only if other victims suffice.
var budgetCases = map[string]upstreamCase{
	"more than the budget allows": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/mid/2#web b/mid/2#web"), budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)}},
		pending: wanting(high, 5), on: map[string]string{"n1": "[a b] 1"},
	},
	"the eviction of another pod was granted": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/mid/2#web b/mid/2#web"), budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1, disrupted("z"))}},
		pending: wanting(high, 5), on: map[string]string{"n1": "[a b] 1"},
	},
	"the eviction of one of two was granted": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/mid/2#web b/mid/2#web"), budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1, disrupted("b"))}},
		pending: wanting(high, 5), on: map[string]string{"n1": "[a b] 0"},
	},
	"the eviction of one of three was granted": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/mid/2#web b/mid/2#web c/mid/2#web"), budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1, disrupted("c"))}},
		pending: wanting(high, 5), on: map[string]string{"n1": "[a b c] 1"},
	},
	"a more important pod without a budget": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/low/2#web b/mid/2"), budgets: closedWeb}, pending: wanting(high, 3), on: map[string]string{"n1": "[b] 0"},
	},
	"the less important of two whose budget allows no disruption": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/low/2#web b/mid/2#web"), budgets: closedWeb}, pending: wanting(high, 3), on: map[string]string{"n1": "[a] 1"},
	},
}

// groupVictimCases have victims that belong to groups.
var groupVictimCases = map[string]upstreamCase{
	"a group as a whole": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/low/1+g b/low/2+g"), groups: groupsOf(podGroup("g", low, wholeOnly))},
		gates:   workload, pending: wanting(high, 3), on: map[string]string{"n1": "[a b] 0"},
	},
	"a pod before a group": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/low/1 b/low/1+g c/low/1+g"), groups: groupsOf(podGroup("g", low, wholeOnly))},
		gates:   workload, pending: wanting(high, 3), on: map[string]string{"n1": "[a] 0"},
	},
	"a group that is less important than a pod": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/high/2 b/low/2+g"), groups: groupsOf(podGroup("g", low, wholeOnly))},
		gates:   workload, pending: wanting(top, 3), on: map[string]string{"n1": "[b] 0"},
	},
	"a pod that is less important than a group": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/low/2 b/high/2+g"), groups: groupsOf(podGroup("g", high, wholeOnly))},
		gates:   workload, pending: wanting(top, 3), on: map[string]string{"n1": "[a] 0"},
	},
	"a group that exceeds its budget twice": {
		cluster: cluster{nodes: five("n1"), pods: place("n1: a/low/2#web+g b/low/2#web+g"), budgets: closedWeb, groups: groupsOf(podGroup("g", low, wholeOnly))},
		gates:   workload, pending: wanting(high, 3), on: map[string]string{"n1": "[a b] 2"},
	},
	"a group without a budget, as a whole": {
		cluster: cluster{
			nodes: five("n1"), pods: place("n1: a/low/2#web+g b/mid/2+h"), budgets: closedWeb,
			groups: groupsOf(podGroup("g", low, wholeOnly), podGroup("h", mid, wholeOnly)),
		}, gates: workload, pending: wanting(high, 3), on: map[string]string{"n1": "[b] 0"},
	},
	"a group without a budget, one by one": {
		cluster: cluster{
			nodes: five("n1"), pods: place("n1: a/low/2#web+g b/mid/2+h"), budgets: closedWeb,
			groups: groupsOf(podGroup("g", low, oneByOne), podGroup("h", mid, oneByOne)),
		}, gates: workload, pending: wanting(high, 3), on: map[string]string{"n1": "[b] 0"},
	},
	"a group on two nodes": {
		cluster: cluster{nodes: five("n1", "n2"), pods: place("n1: a/low/3+g", "n2: b/low/3+g"), groups: groupsOf(podGroup("g", low, wholeOnly))},
		gates:   workload, pending: wanting(high, 3), on: map[string]string{"n1": "[a b] 0", "n2": "[a b] 0"},
	},
	"an anti-affinity to one pod of a group, on another node": {
		cluster: cluster{nodes: five("n1", "n2"), pods: place("n1: a/low/0+g", "n2: b/low/0#x+g"), groups: groupsOf(podGroup("g", low, wholeOnly))},
		gates:   workload, pending: wanting(high, 0, apartFrom("x", "zone")), plugins: []testingframework.RegisterPluginFunc{affinityPlugin},
		on: map[string]string{"n1": "[a b] 0", "n2": "[a b] 0"},
	},
	"an anti-affinity to no pod of a group": {
		cluster: cluster{nodes: five("n1", "n2"), pods: place("n1: a/low/0+g", "n2: b/low/0+g"), groups: groupsOf(podGroup("g", low, wholeOnly))},
		gates:   workload, pending: wanting(high, 0, apartFrom("x", "zone")), unknown: []string{"n2"}, plugins: []testingframework.RegisterPluginFunc{affinityPlugin},
		message: `preemption: expected at least one victim pod on node "n1"`,
	},
	"a spread that a group exceeds": {
		cluster: cluster{
			nodes:  []*corev1.Node{zoned("n1", "z1"), zoned("n2", "z1"), zoned("n3", "z2")},
			pods:   place("n1: a/low/0#x+g", "n2: b/low/0#x+g", "n3: c/top/0#x"),
			groups: groupsOf(podGroup("g", low, wholeOnly)),
		}, gates: workload, pending: wanting(high, 0, ofApp("x"), spreadOver("x", "zone")), plugins: []testingframework.RegisterPluginFunc{spreadPlugin},
		on: map[string]string{"n1": "[a b] 0", "n2": "[a b] 0"},
	},
}

// deferredResize turns the pending pod into a running pod on n1 that waits for more CPUs.
func deferredResize(pod *corev1.Pod) {
	pod.Spec.NodeName = "n1"
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
		Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonDeferred,
	})
}

// beforeResize returns the pending pod as it is in the scheduler's cache, and other pods.
func beforeResize(others ...string) []*corev1.Pod {
	return append(place("n1: pending/high/1"), place(others...)...)
}

// claimed gives the first pod two more CPUs through a claim of dynamic resource allocation.
func claimed(pod *corev1.Pod) {
	pod.Status.NodeAllocatableResourceClaimStatuses = []corev1.NodeAllocatableResourceClaimStatus{{
		ResourceClaimName: "claim",
		Mapping:           []corev1.NodeAllocatableMappedResources{{Name: corev1.ResourceCPU, Quantity: quantity(2)}},
	}}
}

// featureCases need feature gates that differ from the default.
var featureCases = map[string]upstreamCase{
	"a pod of a group, with groups disabled": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 1)}, pods: place("n1: a/low/1")}, pending: wanting(high, 1, ofGroup("g")), node: "n1", victims: "a",
	},
	"a resize makes room on its node": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 2)}, pods: beforeResize("n1: a/low/1")},
		gates:   []featuregate.Feature{features.InPlacePodVerticalScalingSchedulerPreemption}, pending: wanting(high, 2, deferredResize),
		node: "n1", victims: "a",
	},
	"a resize makes room on no other node": {
		cluster: cluster{nodes: []*corev1.Node{node("n1", 2), node("n2", 2)}, pods: beforeResize("n2: a/low/1")},
		gates:   []featuregate.Feature{features.InPlacePodVerticalScalingSchedulerPreemption}, pending: wanting(high, 2, deferredResize), unknown: []string{"n2"},
		message: "preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling.",
	},
	"a victim with CPUs of a claim": {
		cluster: cluster{nodes: five("n1"), pods: with(place("n1: a/mid/1"), claimed)},
		gates:   []featuregate.Feature{features.DynamicResourceAllocation, features.DRANodeAllocatableResources}, pending: wanting(high, 3),
		on: map[string]string{"n1": "[a] 0"},
	},
	"a victim with CPUs of a claim, with the feature disabled": {
		cluster: cluster{nodes: five("n1"), pods: with(place("n1: a/mid/1"), claimed)}, pending: wanting(high, 3), message: `preemption: expected at least one victim pod on node "n1"`,
	},
	"the victim with the claim, not the other one": {
		cluster: cluster{nodes: five("n1"), pods: with(place("n1: a/mid/1 b/mid/1"), claimed)},
		gates:   []featuregate.Feature{features.DynamicResourceAllocation, features.DRANodeAllocatableResources}, pending: wanting(high, 3),
		on: map[string]string{"n1": "[a] 0"},
	},
}
