// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package preflight predicts the problems of a drain of some nodes, before anything is changed:
// pods that no eviction can remove, pods that no controller recreates, pods that are kept running
// on purpose. Values in, values out, without client or clock.
//
// The preview of a maintenance (pkg/drain/forecast) shows its findings pod by pod. They describe a
// drain that starts now; a budget that is only used up at the moment is not a finding, since it
// will allow disruptions again.
//
// A Check is created once from the budgets, and then used for each pod.
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

// Kind is a kind of problem.
type Kind string

const (
	// BudgetNeverAllows means that the pod's budget allows no eviction, even with all of its pods
	// healthy.
	BudgetNeverAllows Kind = "BudgetNeverAllows"
	// ReplacedFirst means the same for a pod that can still leave, since its Deployment is scaled
	// up first. Only Handling.Weigh sets it.
	ReplacedFirst Kind = "ReplacedFirst"
	// SeveralBudgets means that more than one budget selects the pod, and the Eviction API refuses
	// to evict such pods.
	SeveralBudgets Kind = "SeveralBudgets"
	// NoController means that no controller recreates the pod.
	NoController Kind = "NoController"
	// LeftRunning means that the drain does not ask the pod to leave.
	LeftRunning Kind = "LeftRunning"
)

// Pod has the relevant fields of a pod on a node. It is small, so that the pods of many nodes fit
// into memory.
type Pod struct {
	Namespace, Name, Node string
	Labels                labels.Set
	// Type and Priority determine its wave.
	Type     maintenancev1alpha1.PodType
	Priority int32
	// Left is why the drain keeps the pod running; it is empty for a pod that is asked to leave.
	Left drainplan.LeftReason
	// Owner is the controller of the pod; nil if it has none.
	Owner *metav1.OwnerReference
	// Annotations are the annotations that determine the evacuators, and the one of mirror pods.
	Annotations map[string]string
	// Held: the Eviction API checks budgets for the pod. False for pods that an evacuator removes
	// without an eviction.
	Held bool
	// Restarts: the pod's restart policy is Always, so it is a service and does not run to
	// completion.
	Restarts bool
	// Claims are the names of its volume claims.
	Claims []string
	// Tied: its node selector names the node, so it cannot start on another one.
	Tied bool
	// Nominated: the pod is not bound to the node, and only nominated for it. A drain does not
	// evict it, and waits until the scheduler drops the nomination or binds the pod elsewhere.
	Nominated bool
	// Ready: the pod counts as healthy for budgets.
	Ready bool
	// GoneBy is when a terminating pod should be gone; zero for other pods.
	GoneBy time.Time
}

// Terminating reports whether the pod is terminating.
func (p *Pod) Terminating() bool { return !p.GoneBy.IsZero() }

// PodOf returns the relevant fields of a pod on the node, given the enabled built-in evacuators. It
// returns false for a finished pod.
func PodOf(pod *corev1.Pod, node *corev1.Node, builtIn sets.Set[string]) (Pod, bool) {
	if !drainplan.IsLive(pod) {
		return Pod{}, false
	}
	planned := drainplan.PodOf(pod, node.UID)
	p := Pod{
		Namespace: pod.Namespace, Name: pod.Name, Node: node.Name, Labels: pod.Labels,
		Type: planned.Type, Priority: planned.Priority,
		Left:        drainplan.Left(pod, planned.Type, node, builtIn),
		Owner:       metav1.GetControllerOfNoCopy(pod),
		Annotations: annotationsOf(pod),
		Held:        planned.Type == maintenancev1alpha1.PodTypeDefault && pdb.Holds(pod),
		Restarts:    pod.Spec.RestartPolicy == corev1.RestartPolicyAlways,
		Claims:      claimsOf(pod),
		Tied:        isTied(pod, node),
		Nominated:   pod.Spec.NodeName == "",
		Ready:       pdb.IsReady(pod),
	}
	if pod.DeletionTimestamp != nil {
		p.GoneBy = pod.DeletionTimestamp.Time
	}
	return p, true
}

func isTied(pod *corev1.Pod, node *corev1.Node) bool {
	host := pod.Spec.NodeSelector[corev1.LabelHostname]
	return host != "" && host == node.Labels[corev1.LabelHostname]
}

func claimsOf(pod *corev1.Pod) []string {
	var claims []string
	for i := range pod.Spec.Volumes {
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			claims = append(claims, claim.ClaimName)
		}
	}
	return claims
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

// Finding is one problem with one pod.
type Finding struct {
	Pod  Pod
	Kind Kind
	// Left is the reason of LeftRunning.
	Left drainplan.LeftReason
	// Budgets are the budgets that cause BudgetNeverAllows (one) and SeveralBudgets (two or more),
	// sorted by name.
	Budgets []*policyv1.PodDisruptionBudget
	// Why is a short reason for BudgetNeverAllows.
	Why string
	// Refusal is why the pod's Deployment is not scaled up, for BudgetNeverAllows. Only
	// Handling.Weigh sets it.
	Refusal surge.Refusal
}

// Check checks pods. It is not safe for concurrent use.
type Check struct {
	budgets *pdb.Index
}

// NewCheck returns a Check with the given budgets, which must include those of the namespaces of
// all checked pods.
func NewCheck(budgets []policyv1.PodDisruptionBudget) *Check {
	c := &Check{budgets: pdb.NewIndex(nil)}
	for i := range budgets {
		c.budgets.Set(&budgets[i])
	}
	return c
}

// Pod returns the findings about a pod. A terminating pod has none.
func (c *Check) Pod(pod Pod) []Finding {
	found, _ := c.Look(pod)
	return found
}

// Look returns what Pod returns and, for a pod without a finding about budgets, the budget that its
// eviction uses, if any.
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

// budget returns a Finding with a kind if no eviction can remove the pod, or else the budget that
// has to allow its eviction.
func (c *Check) budget(pod Pod) (Finding, *policyv1.PodDisruptionBudget) {
	if !pod.Held {
		return Finding{}, nil
	}
	matching := c.budgets.Matching(pod.Namespace, pod.Labels)
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
