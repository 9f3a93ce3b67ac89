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

// Package preflight predicts what the drain of some nodes will run into, before anything is
// touched: pods that no eviction can remove, pods that nothing brings back, pods that are left
// running on purpose. Values in, values out, without client or clock.
//
// The preview of a maintenance (pkg/drain/forecast) shows its findings pod by pod. It says what
// would be true if the drain started now; a budget that is merely used up at the moment is no
// finding, for it opens again.
//
// A Check is made once from the budgets, then asked about each pod.
package preflight

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	pdb "haulout.dev/haulout/pkg/drain/budget"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/drain/surge"
)

// Kind is a kind of trouble.
type Kind string

const (
	// BudgetNeverAllows says that the pod's budget allows no eviction, even with all of its pods
	// healthy.
	BudgetNeverAllows Kind = "BudgetNeverAllows"
	// ReplacedFirst says the same of a pod that leaves all the same, since its Deployment is scaled
	// up first. Only Handling.Weigh finds it.
	ReplacedFirst Kind = "ReplacedFirst"
	// SeveralBudgets says that more than one budget selects the pod, and the eviction API refuses
	// such pods.
	SeveralBudgets Kind = "SeveralBudgets"
	// NoController says that nothing makes the pod anew when it is gone.
	NoController Kind = "NoController"
	// LeftRunning says that the drain does not ask the pod to leave.
	LeftRunning Kind = "LeftRunning"
)

// Pod is what matters of a pod that counts for a node. It is small, so that those of many nodes can
// be held at once.
type Pod struct {
	Namespace, Name, Node string
	Labels                labels.Set
	// Type and Priority decide when its turn comes.
	Type     maintenancev1alpha1.PodType
	Priority int32
	// Left says why the drain leaves the pod running; it is empty for a pod that is asked to leave.
	Left drainplan.LeftReason
	// Owner is the controller of the pod; nil if it has none.
	Owner *metav1.OwnerReference
	// Annotations are those that decide who takes the pod away: of evacuators, and the one of
	// mirror pods.
	Annotations map[string]string
	// Held: the eviction API looks at budgets for the pod. Pods that are not evicted but taken away
	// by an evacuator are not held.
	Held bool
	// Restarts: the pod's restart policy is Always, so it serves and does not run to an end.
	Restarts bool
	// Ready: the pod counts as healthy for budgets.
	Ready bool
	// GoneBy is when a pod that has been told to stop is to be gone; zero for a pod that has not.
	GoneBy time.Time
}

// Terminating says whether the pod has been told to stop.
func (p *Pod) Terminating() bool { return !p.GoneBy.IsZero() }

// PodOf returns what matters of a pod that counts for the node, given the built-in evacuators that
// are on. It returns false for a pod that is finished.
func PodOf(pod *corev1.Pod, node *corev1.Node, builtIn sets.Set[string]) (Pod, bool) {
	if !drainplan.IsLive(pod) {
		return Pod{}, false
	}
	planned := drainplan.PodOf(pod, node.UID)
	p := Pod{
		Namespace: pod.Namespace, Name: pod.Name, Node: node.Name, Labels: pod.Labels,
		Type: planned.Type, Priority: planned.Priority,
		Left:        drainplan.Left(pod, planned.Type, builtIn),
		Owner:       metav1.GetControllerOfNoCopy(pod),
		Annotations: annotationsOf(pod),
		Held:        planned.Type == maintenancev1alpha1.PodTypeDefault && pdb.Holds(pod),
		Restarts:    pod.Spec.RestartPolicy == corev1.RestartPolicyAlways,
		Ready:       pdb.IsReady(pod),
	}
	if pod.DeletionTimestamp != nil {
		p.GoneBy = pod.DeletionTimestamp.Time
	}
	return p, true
}

func annotationsOf(pod *corev1.Pod) map[string]string {
	var kept map[string]string
	for key, value := range pod.Annotations {
		if key == corev1.MirrorPodAnnotationKey || protocol.IsAnnotation(key) {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = value
		}
	}
	return kept
}

// Finding is one kind of trouble with one pod.
type Finding struct {
	Pod  Pod
	Kind Kind
	// Left is the reason of LeftRunning.
	Left drainplan.LeftReason
	// Budgets are the budgets behind BudgetNeverAllows (one) and SeveralBudgets (two or more),
	// ordered by name.
	Budgets []*policyv1.PodDisruptionBudget
	// Why says in few words what in its budget never allows an eviction, for BudgetNeverAllows.
	Why string
	// Refusal is why the pod's Deployment does not help it, for BudgetNeverAllows. Only
	// Handling.Weigh finds out.
	Refusal surge.Refusal
}

// Check looks at pods. It is not safe for concurrent use.
type Check struct {
	matcher *pdb.Matcher
	budgets map[string][]*policyv1.PodDisruptionBudget
}

// NewCheck returns a Check under the given budgets, which must contain those of the namespaces of
// all pods that it is asked about.
func NewCheck(budgets []policyv1.PodDisruptionBudget) *Check {
	c := &Check{matcher: pdb.NewMatcher(), budgets: map[string][]*policyv1.PodDisruptionBudget{}}
	for i := range budgets {
		c.budgets[budgets[i].Namespace] = append(c.budgets[budgets[i].Namespace], &budgets[i])
	}
	return c
}

// Pod returns the trouble with a pod. One that is on its way out already is in none.
func (c *Check) Pod(pod Pod) []Finding {
	found, _ := c.Look(pod)
	return found
}

// Look returns what Pod returns and, for a pod that is not in trouble with budgets, the budget that
// its eviction uses up, if any.
func (c *Check) Look(pod Pod) (found []Finding, uses *policyv1.PodDisruptionBudget) {
	switch {
	case pod.Terminating():
		return nil, nil
	case pod.Left != "":
		return []Finding{{Pod: pod, Kind: LeftRunning, Left: pod.Left}}, nil
	}
	f, uses := c.budget(pod)
	if f.Kind != "" {
		found = append(found, f)
	}
	if pod.Owner == nil {
		found = append(found, Finding{Pod: pod, Kind: NoController})
	}
	return found, uses
}

// budget says whether no eviction can remove the pod, with a Finding that has a kind, or else which
// budget has to let it go.
func (c *Check) budget(pod Pod) (Finding, *policyv1.PodDisruptionBudget) {
	if !pod.Held {
		return Finding{}, nil
	}
	matching := c.matcher.Matching(pod.Labels, c.budgets[pod.Namespace])
	switch len(matching) {
	case 0:
		return Finding{}, nil
	case 1:
		budget := matching[0]
		if !pod.Ready && pdb.LetsUnreadyGo(budget) {
			return Finding{}, nil
		}
		if why, never := pdb.NeverAllows(budget); never {
			return Finding{Pod: pod, Kind: BudgetNeverAllows, Budgets: matching, Why: why}, nil
		}
		return Finding{}, budget
	}
	return Finding{Pod: pod, Kind: SeveralBudgets, Budgets: matching}, nil
}
