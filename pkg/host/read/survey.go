// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package read reads the inputs of a prediction about some nodes: their pods, and the budgets and
// owners of the pods. It reads them from caches, and what these lack from the host cluster. The
// caller gets each pod separately, so that it has to store only the fields that it needs.
package read

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"

	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host"
)

const (
	// atOnce is the maximum number of concurrent requests.
	atOnce = 16
	// listedByNamespace is the maximum number of namespaces that are listed one by one.
	listedByNamespace = 16
	// readByName is the maximum number of owners of a kind that are read one by one.
	readByName = 64
	// objectsPerPage is the page size of lists.
	objectsPerPage = 500
	// fromCache allows the API server of the host cluster to serve a list from its watch cache. The
	// result may be slightly outdated.
	fromCache = "0"
)

// Reader reads from synced caches and from the host cluster.
type Reader struct {
	// Client is the client of the host cluster.
	Client kubernetes.Interface
	// Caches are the caches of the host cluster.
	Caches *host.Caches
}

// Pods calls visit with the live pods that are bound to the nodes or nominated for them. It
// may visit a pod twice. visit must not keep the pod itself. Pods with scheduling gates count for
// no node, because the scheduler does not bind them.
func (r Reader) Pods(nodes sets.Set[string], visit func(*corev1.Pod)) {
	for node := range nodes {
		r.Caches.Pods.VisitOn(node, func(pod *corev1.Pod) {
			if drainplan.IsLive(pod) {
				visit(pod)
			}
		})
	}
}

// Budgets returns the budgets of the namespaces.
func (r Reader) Budgets(namespaces sets.Set[string]) ([]policyv1.PodDisruptionBudget, error) {
	var budgets []policyv1.PodDisruptionBudget
	for namespace := range namespaces {
		list, err := r.Caches.Budgets.Lister().PodDisruptionBudgets(namespace).List(labels.Everything())
		if err != nil {
			return nil, err
		}
		for _, budget := range list {
			budgets = append(budgets, *budget)
		}
	}
	return budgets, nil
}

// TerminatingNamespaces returns the names of the namespaces that are being deleted.
func (r Reader) TerminatingNamespaces(ctx context.Context) (sets.Set[string], error) {
	list, err := r.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{
		FieldSelector: "status.phase=" + string(corev1.NamespaceTerminating), ResourceVersion: fromCache,
	})
	if err != nil {
		return nil, err
	}
	names := sets.New[string]()
	for i := range list.Items {
		names.Insert(list.Items[i].Name)
	}
	return names, nil
}

// byNamespace returns the items of the namespaces. If there are many namespaces, it returns the
// items of the whole cluster, which it reads in pages.
func byNamespace[T any](ctx context.Context, namespaces sets.Set[string],
	list func(ctx context.Context, namespace string, options metav1.ListOptions) (items []T, next string, err error)) ([]T, error) {
	if namespaces.Len() <= listedByNamespace {
		names := sets.List(namespaces)
		return collect(ctx, len(names), func(ctx context.Context, i int) ([]T, error) {
			items, _, err := list(ctx, names[i], metav1.ListOptions{ResourceVersion: fromCache})
			return items, err
		})
	}
	var all []T
	options := metav1.ListOptions{Limit: objectsPerPage}
	for {
		items, next, err := list(ctx, metav1.NamespaceAll, options)
		all = append(all, items...)
		if err != nil || next == "" {
			return all, err
		}
		options.Continue = next
	}
}

// inParallel calls f for each index below n until one call fails, and returns the error of that
// call.
func inParallel(ctx context.Context, n int, f func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	workqueue.ParallelizeUntil(ctx, atOnce, n, func(i int) {
		if err := f(ctx, i); err != nil {
			cancel(err)
		}
	})
	return context.Cause(ctx)
}

// collect is like inParallel for calls that return items. The returned items are in the order of
// the indexes.
func collect[T any](ctx context.Context, n int, f func(context.Context, int) ([]T, error)) ([]T, error) {
	items := make([][]T, n)
	err := inParallel(ctx, n, func(ctx context.Context, i int) error {
		found, err := f(ctx, i)
		if err == nil {
			items[i] = found
		}
		return err
	})
	return slices.Concat(items...), err
}
