// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"haulout.dev/haulout/pkg/host/evict"
)

// loopCommand is the argument with which this program runs the bare loop. The loop runs in a
// separate process, like the other contenders, so that its processor time does not include the time
// of the watcher.
const loopCommand = "loop"

// loop evicts pods with many workers that do not read budgets.
func loop(ctx context.Context, args []string, _ io.Writer) error {
	var kubeconfig, namespace, nodes string
	var workers int
	var retry time.Duration
	flags := flag.NewFlagSet(loopCommand, flag.ContinueOnError)
	flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster")
	flags.StringVar(&namespace, "namespace", "", "namespace of the pods")
	flags.StringVar(&nodes, "nodes", "", "label selector of the nodes to empty")
	flags.IntVar(&workers, "workers", 1, "number of evictions at the same time")
	flags.DurationVar(&retry, "retry", 0, "how long a worker waits after a refused eviction")
	if err := flags.Parse(args); err != nil {
		return err
	}
	kube, _, err := connect(kubeconfig)
	if err != nil {
		return err
	}
	list, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: nodes})
	if err != nil {
		return err
	}
	closed := map[string]bool{}
	for i := range list.Items {
		closed[list.Items[i].Name] = true
	}
	if err := each(ctx, list.Items, workers, func(ctx context.Context, node *corev1.Node) error {
		return setUnschedulable(ctx, kube, node.Name, true)
	}); err != nil {
		return err
	}
	pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var names []string
	for i := range pods.Items {
		if closed[pods.Items[i].Spec.NodeName] {
			names = append(names, pods.Items[i].Name)
		}
	}
	return evictAll(ctx, names, workers, retry, func(ctx context.Context, name string) error {
		return evict.Client{Host: kube}.Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	})
}

// evictAll evicts all pods. A refused pod goes to the end of the queue, and its worker waits.
func evictAll(
	ctx context.Context, pods []string, workers int, retry time.Duration, evict func(context.Context, string) error,
) error {
	queue := make(chan string, len(pods))
	for _, pod := range pods {
		queue <- pod
	}
	if len(pods) == 0 {
		return nil
	}
	var running sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(len(pods)))
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	for range workers {
		running.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case pod := <-queue:
					switch err := evict(ctx, pod); {
					case err == nil || apierrors.IsNotFound(err):
						if left.Add(-1) == 0 {
							stop(errDone)
						}
						continue
					case !again(err):
						stop(fmt.Errorf("evict %s: %w", pod, err))
						return
					}
					queue <- pod
					select {
					case <-ctx.Done():
					case <-time.After(retry):
					}
				}
			}
		})
	}
	running.Wait()
	if err := context.Cause(ctx); !errors.Is(err, errDone) {
		return err
	}
	return nil
}

var errDone = errors.New("all pods are evicted")

// again reports whether a later eviction may succeed after this error: the budget allows no
// disruption, the server is overloaded, or another eviction changed the budget at the same time.
func again(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsConflict(err) || apierrors.IsInternalError(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsServiceUnavailable(err)
}

// setUnschedulable cordons or uncordons a node.
func setUnschedulable(ctx context.Context, kube kubernetes.Interface, node string, closed bool) error {
	_, err := kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, closed), metav1.PatchOptions{})
	return err
}

// each calls do for each item, with a number of workers, and returns the errors.
func each[T any](ctx context.Context, items []T, workers int, do func(context.Context, *T) error) error {
	var wg sync.WaitGroup
	next, errs := make(chan *T), make([]error, workers)
	for i := range workers {
		wg.Go(func() {
			for item := range next {
				errs[i] = errors.Join(errs[i], do(ctx, item))
			}
		})
	}
	for i := range items {
		next <- &items[i]
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}
