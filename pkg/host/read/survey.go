// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package read reads, from the host cluster, the inputs of a prediction about some of its nodes:
// their pods, and the budgets and owners of the pods. It has no cache: there are only a few
// requests a day, so a cache of all pods in every replica would cost much more. Large lists are
// read in pages. The caller gets each page separately, so that it has to store only the fields that
// it needs.
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

	"haulout.dev/haulout/pkg/host/podcache"
)

const (
	// AtOnce is the maximum number of concurrent lists.
	AtOnce = 16
	// Unfinished is the field selector that excludes finished pods. There may be many of them, and
	// a prediction does not need them.
	Unfinished = "status.phase!=Succeeded,status.phase!=Failed"

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
}

// Nodes returns all nodes with the fields that selection, cordons and reachability depend on.
func (r Reader) Nodes(ctx context.Context) ([]*corev1.Node, error) {
	var nodes []*corev1.Node
	err := pages(ctx, objectsPerPage, "", r.Client.CoreV1().Nodes().List, func(list *corev1.NodeList) error {
		for i := range list.Items {
			// Copy the node, so that the page can be freed.
			node := list.Items[i]
			if _, err := podcache.Strip(&node); err != nil {
				return err
			}
			nodes = append(nodes, &node)
		}
		return nil
	}, always)
	return nodes, err
}

// Pods calls visit with the unfinished pods on the nodes, list by list. The lists may include pods
// of other nodes. Several goroutines call visit and more concurrently. Pods calls more before each
// further list, and stops if more returns false.
func (r Reader) Pods(ctx context.Context, nodes sets.Set[string], visit func([]corev1.Pod), more func() bool) error {
	if nodes.Len() > listedByNode {
		// Do not set a resource version on pages: the watch cache would return the whole list in
		// one response.
		return pages(ctx, podsPerPage, Unfinished, r.Client.CoreV1().Pods(metav1.NamespaceAll).List, func(list *corev1.PodList) error {
			visit(list.Items)
			return nil
		}, more)
	}
	names := sets.List(nodes)
	return inParallel(ctx, len(names), func(ctx context.Context, i int) error {
		if !more() {
			return nil
		}
		list, err := r.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: "spec.nodeName=" + names[i] + "," + Unfinished, ResourceVersion: fromCache,
		})
		if err == nil {
			visit(list.Items)
		}
		return err
	})
}

// NominatedPods calls visit with the pods that are nominated for a node but not bound to one. It
// omits pods with scheduling gates, because the scheduler does not bind them. The method Pods does
// not return nominated pods if it lists node by node.
func (r Reader) NominatedPods(ctx context.Context, visit func([]corev1.Pod)) error {
	list, err := r.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: "spec.nodeName=,status.nominatedNodeName!=,status.phase=Pending", ResourceVersion: fromCache,
	})
	if err == nil {
		visit(slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return len(pod.Spec.SchedulingGates) > 0 }))
	}
	return err
}

// Budgets returns the budgets of the namespaces, and possibly budgets of other namespaces.
func (r Reader) Budgets(ctx context.Context, namespaces sets.Set[string]) ([]policyv1.PodDisruptionBudget, error) {
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

func always() bool { return true }

// pages reads all pages of a list, as long as more returns true.
func pages[L metav1.ListInterface](ctx context.Context, size int64, fieldSelector string,
	list func(context.Context, metav1.ListOptions) (L, error), visit func(L) error, more func() bool) error {
	options := metav1.ListOptions{FieldSelector: fieldSelector, Limit: size}
	for {
		page, err := list(ctx, options)
		if err != nil {
			return err
		}
		if err := visit(page); err != nil {
			return err
		}
		if options.Continue = page.GetContinue(); options.Continue == "" || !more() {
			return nil
		}
	}
}

// inParallel calls f for each index below n until one call fails, and returns the error of that
// call.
func inParallel(ctx context.Context, n int, f func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	workqueue.ParallelizeUntil(ctx, AtOnce, n, func(i int) {
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
