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

// Package preflight predicts what the drain of some nodes will run into, before anything is touched: pods that no eviction can remove, pods that
// nothing brings back, pods that are left running on purpose. Values in, values out, without client or clock.
//
// Admission warns with its counts, and the preview of a maintenance shows its findings pod by pod. It says what would be true if the drain
// started now; a budget that is merely used up at the moment is no finding, for it opens again.
//
// A Check is made once from the budgets, then asked about each pod; a Tally counts what it finds.
package preflight

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/drainplan"
	"haulout.dev/haulout/pkg/eviction/pdb"
)

// Kind is a kind of trouble.
type Kind string

const (
	// BudgetNeverAllows says that the pod's budget allows no eviction, even with all of its pods healthy.
	BudgetNeverAllows Kind = "BudgetNeverAllows"
	// SeveralBudgets says that more than one budget selects the pod, and the eviction API refuses such pods.
	SeveralBudgets Kind = "SeveralBudgets"
	// NoController says that nothing makes the pod anew when it is gone.
	NoController Kind = "NoController"
	// LeftRunning says that the drain does not ask the pod to leave.
	LeftRunning Kind = "LeftRunning"
)

// Pod is what matters of a pod that runs on a node and is not about to go. It is small, so that those of many nodes can be held at once.
type Pod struct {
	Namespace, Name, Node string
	Labels                labels.Set
	// Left says why the drain leaves the pod running; it is empty for a pod that is asked to leave.
	Left drainplan.LeftReason
	// Controlled: a controller owns the pod.
	Controlled bool
	// Held: the eviction API looks at budgets for the pod.
	Held bool
	// Ready: the pod counts as healthy for budgets.
	Ready bool
}

// PodOf returns what matters of a pod on the node, given the built-in evacuators that are on. It returns false for a pod that is finished or
// already on its way out.
func PodOf(pod *corev1.Pod, node *corev1.Node, evacuators sets.Set[string]) (Pod, bool) {
	if !drainplan.IsLive(pod) || pod.DeletionTimestamp != nil {
		return Pod{}, false
	}
	return Pod{
		Namespace: pod.Namespace, Name: pod.Name, Node: node.Name, Labels: pod.Labels,
		Left:       drainplan.Left(pod, drainplan.TypeOf(pod, node.UID), evacuators),
		Controlled: metav1.GetControllerOfNoCopy(pod) != nil,
		Held:       pdb.Holds(pod),
		Ready:      pdb.IsReady(pod),
	}, true
}

// Finding is one kind of trouble with one pod.
type Finding struct {
	Pod  Pod
	Kind Kind
	// Left is the reason of LeftRunning.
	Left drainplan.LeftReason
	// Budgets are the budgets behind BudgetNeverAllows (one) and SeveralBudgets (two or more), ordered by name.
	Budgets []types.NamespacedName
	// Why says in few words what in its budget never allows an eviction, for BudgetNeverAllows.
	Why string
}

// Check looks at pods. It is not safe for concurrent use.
type Check struct {
	matcher *pdb.Matcher
	budgets map[string][]*policyv1.PodDisruptionBudget
}

// NewCheck returns a Check under the given budgets, which must contain those of the namespaces of all pods that it is asked about.
func NewCheck(budgets []policyv1.PodDisruptionBudget) *Check {
	c := &Check{matcher: pdb.NewMatcher(), budgets: map[string][]*policyv1.PodDisruptionBudget{}}
	for i := range budgets {
		c.budgets[budgets[i].Namespace] = append(c.budgets[budgets[i].Namespace], &budgets[i])
	}
	return c
}

// Pod returns the trouble with a pod.
func (c *Check) Pod(pod Pod) []Finding {
	if pod.Left != "" {
		return []Finding{{Pod: pod, Kind: LeftRunning, Left: pod.Left}}
	}
	var found []Finding
	if f, stuck := c.stuck(pod); stuck {
		found = append(found, f)
	}
	if !pod.Controlled {
		found = append(found, Finding{Pod: pod, Kind: NoController})
	}
	return found
}

// stuck says whether no eviction can remove the pod.
func (c *Check) stuck(pod Pod) (Finding, bool) {
	if !pod.Held {
		return Finding{}, false
	}
	matching := c.matcher.Matching(pod.Labels, c.budgets[pod.Namespace])
	f := Finding{Pod: pod}
	for _, budget := range matching {
		f.Budgets = append(f.Budgets, pdb.NameOf(budget))
	}
	switch len(matching) {
	case 0:
		return Finding{}, false
	case 1:
		why, never := pdb.NeverAllows(matching[0])
		f.Kind, f.Why = BudgetNeverAllows, why
		return f, never && (pod.Ready || !pdb.LetsUnreadyGo(matching[0]))
	}
	f.Kind = SeveralBudgets
	return f, true
}
