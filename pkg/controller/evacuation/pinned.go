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

package evacuation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	controllercache "haulout.dev/haulout/pkg/host/cache"
)

// maxPinned is the maximum number of pods without a node that are read for one budget.
const maxPinned = 3

// pins is a short-lived cache of the nodes that pods without a node are limited to: the cache of
// pods has neither their node selectors nor their volumes. It may be dropped at any time.
type pins struct {
	mu    sync.Mutex
	known map[types.NamespacedName]knownPin
}

type knownPin struct {
	// pod is nil if the pod may start on another node.
	pod *downPod
	at  time.Time
}

// isUnschedulable reports whether the scheduler has found no node for a pod.
func isUnschedulable(pod *corev1.Pod) bool {
	if pod.Spec.NodeName != "" || pod.Status.Phase != corev1.PodPending || controllercache.NodeOf(pod) != "" {
		return false
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}

// pinned returns the pods among those without a node that can only run on cordoned nodes that
// maintenances hold, such as the members of a StatefulSet with local volumes. A pod that cannot be
// read is not among them.
func (c *Controller) pinned(ctx context.Context, pods []types.NamespacedName, now time.Time) []downPod {
	var down []downPod
	for _, key := range pods[:min(maxPinned, len(pods))] {
		if pod := c.pin(ctx, key, now); pod != nil {
			down = append(down, *pod)
		}
	}
	return down
}

func (c *Controller) pin(ctx context.Context, key types.NamespacedName, now time.Time) *downPod {
	c.pins.mu.Lock()
	known, ok := c.pins.known[key]
	c.pins.mu.Unlock()
	if ok && now.Sub(known.at) < standoffCheck/2 {
		return known.pod
	}
	pod := c.readPin(ctx, key)
	c.pins.mu.Lock()
	defer c.pins.mu.Unlock()
	for other, k := range c.pins.known {
		if now.Sub(k.at) >= standoffCheck {
			delete(c.pins.known, other)
		}
	}
	c.pins.known[key] = knownPin{pod, now}
	return pod
}

// readPin reads a pod without a node, and returns nil if it may run on a node that is not held.
func (c *Controller) readPin(ctx context.Context, key types.NamespacedName) *downPod {
	pod, err := c.host.CoreV1().Pods(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if err != nil || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
		return nil
	}
	volumes, err := c.volumeSelectors(ctx, pod)
	if err != nil {
		return nil
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
		holders := c.holdersOf(node.Name)
		if len(holders) == 0 {
			return nil
		}
		if found == nil || node.Name < found.node {
			found = &downPod{pod: key, node: node.Name, holders: holders, pinned: true}
		}
	}
	return found
}

// volumeSelectors returns the node selectors of the PersistentVolumes of a pod.
func (c *Controller) volumeSelectors(ctx context.Context, pod *corev1.Pod) ([]*nodeaffinity.NodeSelector, error) {
	var selectors []*nodeaffinity.NodeSelector
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim == nil {
			continue
		}
		claim, err := c.host.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, v.PersistentVolumeClaim.ClaimName, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if claim.Spec.VolumeName == "" {
			continue
		}
		volume, err := c.host.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
			continue
		}
		selector, err := nodeaffinity.NewNodeSelector(volume.Spec.NodeAffinity.Required)
		if err != nil {
			return nil, err
		}
		selectors = append(selectors, selector)
	}
	return selectors, nil
}

func matchesAll(selectors []*nodeaffinity.NodeSelector, node *corev1.Node) bool {
	for _, selector := range selectors {
		if !selector.Match(node) {
			return false
		}
	}
	return true
}

// releaseAlone is the remedy for pods that can only run on the nodes that they have left: their
// nodes need not wait for the rest of their maintenance.
func releaseAlone(down []downPod) string {
	var nodes, maintenances []string
	for _, d := range down {
		if d.pinned && len(nodes) < 3 {
			nodes, maintenances = appendNew(nodes, d.node), appendNew(maintenances, d.holders[0])
		}
	}
	if len(nodes) == 0 {
		return ""
	}
	return fmt.Sprintf(" Some can run nowhere else: work on %s now and release it alone, by taking it out of the node selector of NodeMaintenance %s.",
		strings.Join(nodes, ", "), strings.Join(maintenances, ", "))
}

func appendNew(all []string, one string) []string {
	if slices.Contains(all, one) {
		return all
	}
	return append(all, one)
}
