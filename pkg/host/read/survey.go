// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package read reads, from the host cluster, the inputs of a prediction about some of its nodes:
// their pods, and the budgets and owners of the pods. In the replica that leads it uses the caches
// of the controllers. Other replicas have no cache of all pods, since there are only a few requests
// a day: they read large lists in pages. The caller gets each pod separately, so that it has to
// store only the fields that it needs.
package read

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
)

const (
	// atOnce is the maximum number of concurrent lists.
	atOnce = 16
	// unfinished is the field selector that excludes finished pods. There may be many of them, and
	// a prediction does not need them.
	unfinished = "status.phase!=Succeeded,status.phase!=Failed"

	// listedByNode is the maximum number of nodes whose pods are listed node by node. For more
	// nodes, listing all pods in pages costs the host cluster less.
	listedByNode = 64
	// listedByNamespace is the maximum number of namespaces that are listed one by one.
	listedByNamespace = 16
	// readByName is the maximum number of owners of a kind that are read one by one.
	readByName = 64
	// podsPerPage is the page size of lists of all pods; objectsPerPage is the page size of all
	// other lists.
	podsPerPage    = 1000
	objectsPerPage = 500
	// fromCache allows the API server of the host cluster to serve a list from its watch cache,
	// where pods are indexed by node. The result may be slightly outdated.
	fromCache = "0"
)

// Reader reads from the host cluster.
type Reader struct {
	// Client is the client of the host cluster.
	Client kubernetes.Interface
	// Caches are the caches of the controllers; nil if this replica does not lead.
	Caches *Caches
}

// Pods calls visit with the unfinished pods that are bound to the nodes or nominated for them, and
// possibly with pods of other nodes. It may visit a pod twice. Several goroutines call visit
// concurrently, and visit must not keep the pod itself. Pods with scheduling gates count for no
// node, because the scheduler does not bind them.
func (r Reader) Pods(ctx context.Context, nodes sets.Set[string], visit func(*corev1.Pod)) error {
	if r.Caches != nil {
		r.Caches.pods(nodes, visit)
		return nil
	}
	if nodes.Len() > listedByNode {
		return r.allPods(ctx, visit)
	}
	names := sets.List(nodes)
	if err := inParallel(ctx, len(names), func(ctx context.Context, i int) error {
		return r.listPods(ctx, "spec.nodeName="+names[i]+","+unfinished, visit)
	}); err != nil {
		return err
	}
	return r.listPods(ctx, "spec.nodeName=,status.nominatedNodeName!=,status.phase=Pending", visit)
}

// allPods visits all unfinished pods.
func (r Reader) allPods(ctx context.Context, visit func(*corev1.Pod)) error {
	// Do not set a resource version on pages: the watch cache would return the whole list in one
	// response.
	options := metav1.ListOptions{FieldSelector: unfinished, Limit: podsPerPage}
	for {
		page, err := r.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return err
		}
		for i := range page.Items {
			visit(&page.Items[i])
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

// listPods visits the pods of a list that has one page.
func (r Reader) listPods(ctx context.Context, fieldSelector string, visit func(*corev1.Pod)) error {
	list, err := r.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fieldSelector, ResourceVersion: fromCache})
	if err != nil {
		return err
	}
	for i := range list.Items {
		visit(&list.Items[i])
	}
	return nil
}

// Budgets returns the budgets of the namespaces, and possibly budgets of other namespaces.
func (r Reader) Budgets(ctx context.Context, namespaces sets.Set[string]) ([]policyv1.PodDisruptionBudget, error) {
	if r.Caches != nil {
		return r.Caches.budgets(namespaces)
	}
	return byNamespace(ctx, namespaces, func(ctx context.Context, namespace string, options metav1.ListOptions) ([]policyv1.PodDisruptionBudget, string, error) {
		list, err := r.Client.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, options)
		if err != nil {
			return nil, "", err
		}
		for i := range list.Items {
			list.Items[i].ManagedFields, list.Items[i].Annotations = nil, nil
		}
		return list.Items, list.Continue, nil
	})
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
