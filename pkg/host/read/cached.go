// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"context"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/owners"
)

// Caches are the caches of the controllers for one term of leadership. They must be synced.
type Caches struct {
	cluster *host.Cluster
}

// NewCaches returns the caches of a cluster whose caches are synced.
func NewCaches(cluster *host.Cluster) *Caches { return &Caches{cluster: cluster} }

// pods visits the same pods as the lists of Reader.
func (c *Caches) pods(nodes sets.Set[string], visit func(*corev1.Pod)) {
	for node := range nodes {
		c.cluster.Pods.VisitOn(node, func(pod *corev1.Pod) {
			if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
				visit(pod)
			}
		})
	}
}

func (c *Caches) budgets(namespaces sets.Set[string]) ([]policyv1.PodDisruptionBudget, error) {
	var budgets []policyv1.PodDisruptionBudget
	for namespace := range namespaces {
		list, err := c.cluster.Budgets.Lister().PodDisruptionBudgets(namespace).List(labels.Everything())
		if err != nil {
			return nil, err
		}
		for _, budget := range list {
			budgets = append(budgets, *budget)
		}
	}
	return budgets, nil
}

func (c *Caches) autoscalers(namespaces sets.Set[string]) ([]*autoscalingv2.HorizontalPodAutoscaler, error) {
	var autoscalers []*autoscalingv2.HorizontalPodAutoscaler
	for namespace := range namespaces {
		list, err := c.cluster.Autoscalers.Lister().HorizontalPodAutoscalers(namespace).List(labels.Everything())
		if err != nil {
			return nil, err
		}
		autoscalers = append(autoscalers, list...)
	}
	return autoscalers, nil
}

// cachedOwners returns the owners of a kind that the caches have.
func cachedOwners[T any](ctx context.Context, names sets.Set[types.NamespacedName], get func(ctx context.Context, namespace, name string) (*T, error)) (map[types.NamespacedName]*T, error) {
	found := make(map[types.NamespacedName]*T, names.Len())
	for name := range names {
		object, err := get(ctx, name.Namespace, name.Name)
		if err != nil {
			return nil, err
		}
		if object != nil {
			found[name] = object
		}
	}
	return found, nil
}

func (r Reader) replicaSets(ctx context.Context, names sets.Set[types.NamespacedName]) (map[types.NamespacedName]*appsv1.ReplicaSet, error) {
	if r.Caches == nil {
		return readOwners(ctx, names, owners.ReplicaSets(r.Client))
	}
	found, err := cachedOwners(ctx, names, r.Caches.cluster.Owners.ReplicaSet)
	if err != nil {
		return nil, err
	}
	// The cache has no selector of a ReplicaSet without replicas, which may have terminating pods.
	unselective := sets.New[types.NamespacedName]()
	for name, set := range found {
		if set.Spec.Selector == nil {
			unselective.Insert(name)
			delete(found, name)
		}
	}
	live, err := readOwners(ctx, unselective, owners.ReplicaSets(r.Client))
	maps.Copy(found, live)
	return found, err
}

func (r Reader) deployments(ctx context.Context, names sets.Set[types.NamespacedName]) (map[types.NamespacedName]*appsv1.Deployment, error) {
	if r.Caches == nil {
		return readOwners(ctx, names, owners.Deployments(r.Client))
	}
	return cachedOwners(ctx, names, r.Caches.cluster.Owners.Deployment)
}

func (r Reader) daemonSets(ctx context.Context, names sets.Set[types.NamespacedName]) (map[types.NamespacedName]*appsv1.DaemonSet, error) {
	if r.Caches == nil {
		return readOwners(ctx, names, owners.DaemonSets(r.Client))
	}
	return cachedOwners(ctx, names, r.Caches.cluster.Owners.DaemonSet)
}
