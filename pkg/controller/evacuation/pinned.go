// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/host/read"
)

// The users of a namespace determine how many pods wait for a budget, and what their pods claim and
// select. These limits bound the reads and the computation that these pods cause.
const (
	// maxPinned is the maximum number of pods without a node that are read for one budget.
	maxPinned = 3
	// maxClaims is the maximum number of claims of such a pod. A pod with more claims is treated as
	// one that may run anywhere.
	maxClaims = 16
	// maxRequirements is the maximum number of terms, requirements and values of the node affinity
	// of such a pod and of its volumes together. Each of them may be compared with every node.
	maxRequirements = 500
	// pinTimeout is the time limit of all reads for one budget together.
	pinTimeout = 2 * time.Second
)

// knownPin is the result of readPin for a pod without a node, or the read that is still running. It
// is reused for a moment: the cache of pods has neither node selectors nor volumes, so each use
// would read the pod again.
type knownPin struct {
	// done is closed when the pod has been read. After that, pod is the result; it is nil if the
	// pod may start on another node.
	done chan struct{}
	pod  *downPod
	at   time.Time
}

// isUnschedulable reports whether the scheduler has found no node for a pod.
func isUnschedulable(pod *corev1.Pod) bool {
	if pod.Spec.NodeName != "" || pod.Status.Phase != corev1.PodPending || podcache.NodeOf(pod) != "" {
		return false
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// pinned returns the pods that can only run on cordoned nodes which maintenances hold, such as
// members of a StatefulSet with local volumes. The given pods have no node. It omits pods that
// cannot be read.
func (c *Controller) pinned(ctx context.Context, pods []types.NamespacedName) []downPod {
	ctx, cancel := context.WithTimeout(ctx, pinTimeout)
	defer cancel()
	var down []downPod
	for _, key := range pods[:min(maxPinned, len(pods))] {
		if pod := c.pin(ctx, key); pod != nil {
			down = append(down, *pod)
		}
	}
	return down
}

func (c *Controller) pin(ctx context.Context, key types.NamespacedName) *downPod {
	// Do not use the time at which the sync began: it may have waited for other reads since.
	now := c.clock.Now()
	c.pins.Sweep(func(known *knownPin) bool { return now.Sub(known.at) >= standoffCheck/2 })
	var known *knownPin
	isNew := false
	c.pins.Change(key, func(before *knownPin, found bool) (*knownPin, bool) {
		if known, isNew = before, !found; isNew {
			known = &knownPin{done: make(chan struct{}), at: now}
		}
		return known, true
	})
	if isNew {
		defer close(known.done)
		known.pod = c.readPin(ctx, key)
		return known.pod
	}
	select {
	case <-known.done:
		return known.pod
	case <-ctx.Done():
		return nil
	}
}

// readPin reads a pod without a node, and returns nil if it may run on a node that is not held.
func (c *Controller) readPin(ctx context.Context, key types.NamespacedName) *downPod {
	pod, err := c.host.CoreV1().Pods(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if err != nil || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
		return nil
	}
	selectors, err := c.volumeSelectors(ctx, pod)
	if err != nil || requirementsOf(append(selectors, affinityOf(pod))...) > maxRequirements {
		return nil
	}
	var volumes []*nodeaffinity.NodeSelector
	for _, required := range selectors {
		selector, err := nodeaffinity.NewNodeSelector(required)
		if err != nil {
			return nil
		}
		volumes = append(volumes, selector)
	}
	nodes, err := c.nodeLister.List(labels.Everything())
	if err != nil {
		return nil
	}
	required := nodeaffinity.GetRequiredNodeAffinity(pod)
	var found *downPod
	for _, node := range nodes {
		if fits, err := required.Match(node); err != nil || !fits || !matchesAll(volumes, node) {
			continue
		}
		holder := c.holderOf(node.Name)
		if holder == "" {
			return nil
		}
		if found == nil || node.Name < found.node {
			found = &downPod{pod: key, node: node.Name, maintenance: holder, pinned: true}
		}
	}
	return found
}

// volumeSelectors returns the node selectors of the PersistentVolumes of a pod. It returns an error
// if the pod has too many claims.
func (c *Controller) volumeSelectors(ctx context.Context, pod *corev1.Pod) ([]*corev1.NodeSelector, error) {
	claims := sets.New[string]()
	for i := range pod.Spec.Volumes {
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			claims.Insert(claim.ClaimName)
		}
	}
	if claims.Len() > maxClaims {
		return nil, fmt.Errorf("the pod has %d claims, at most %d are read", claims.Len(), maxClaims)
	}
	var selectors []*corev1.NodeSelector
	for _, name := range sets.List(claims) {
		required, err := read.ClaimSelector(ctx, c.host, types.NamespacedName{Namespace: pod.Namespace, Name: name})
		if err != nil {
			return nil, err
		}
		if required != nil {
			selectors = append(selectors, required)
		}
	}
	return selectors, nil
}

// affinityOf returns the node selector that the affinity of a pod requires, or nil.
func affinityOf(pod *corev1.Pod) *corev1.NodeSelector {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return nil
	}
	return pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// requirementsOf returns the number of terms, requirements and values of node selectors.
func requirementsOf(selectors ...*corev1.NodeSelector) int {
	n := 0
	for _, selector := range selectors {
		if selector == nil {
			continue
		}
		for i := range selector.NodeSelectorTerms {
			term := &selector.NodeSelectorTerms[i]
			n++
			for _, requirements := range [][]corev1.NodeSelectorRequirement{term.MatchExpressions, term.MatchFields} {
				for j := range requirements {
					n += 1 + len(requirements[j].Values)
				}
			}
		}
	}
	return n
}

func matchesAll(selectors []*nodeaffinity.NodeSelector, node *corev1.Node) bool {
	for _, selector := range selectors {
		if !selector.Match(node) {
			return false
		}
	}
	return true
}

// releaseAlone returns the remedy for pods that can only run on the nodes that they have left:
// release these nodes before the other nodes of their maintenance.
func releaseAlone(down []downPod) string {
	var nodes, maintenances []string
	for _, d := range down {
		if d.pinned && len(nodes) < 3 {
			nodes, maintenances = appendNew(nodes, d.node), appendNew(maintenances, d.maintenance)
		}
	}
	if len(nodes) == 0 {
		return ""
	}
	return fmt.Sprintf(" Some of them cannot run on other nodes: work on %s first, and release it by removing it from the node selector of NodeMaintenance %s.",
		strings.Join(nodes, ", "), strings.Join(maintenances, ", "))
}

func appendNew(all []string, one string) []string {
	if slices.Contains(all, one) {
		return all
	}
	return append(all, one)
}
