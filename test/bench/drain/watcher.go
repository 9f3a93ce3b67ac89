// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"haulout.dev/haulout/test/oracle"
)

// watcher observes one drain.
type watcher struct {
	// healthy counts the healthy pods of each budget.
	healthy *oracle.Books
	// budgets has the times at which each budget was open and closed.
	budgets oracle.Budgets
	// emptied is closed when the nodes have no pods left, or when a watch fails.
	emptied chan struct{}

	mu sync.Mutex
	// pods are the pods that exist before the drain begins, nil afterwards. staying are the pods
	// that are still on the nodes to drain.
	pods    map[types.UID]*corev1.Pod
	nodes   sets.Set[string]
	staying sets.Set[types.UID]
	// created is the number of pods created since the drain began.
	created int
	at      time.Time // when the last pod had left
	failed  error
}

// startWatcher watches until the context ends. The first list is the state before the drain.
func startWatcher(
	ctx context.Context, kube kubernetes.Interface, nodes []string, budgets []policyv1.PodDisruptionBudget,
) (*watcher, error) {
	w := &watcher{
		emptied: make(chan struct{}), pods: map[types.UID]*corev1.Pod{}, nodes: sets.New(nodes...),
		staying: sets.New[types.UID](),
	}
	opening := func(event watch.Event) { w.budgets.See(event, time.Now()) }
	for _, resource := range []oracle.Resource{
		{Client: kube.CoreV1().RESTClient(), Name: "pods", See: w.see, Fail: w.fail},
		{Client: kube.PolicyV1().RESTClient(), Name: "poddisruptionbudgets", See: opening, Fail: w.fail},
	} {
		if err := oracle.Follow(ctx, resource); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	pods := make([]corev1.Pod, 0, len(w.pods))
	for _, pod := range w.pods {
		pods = append(pods, *pod)
		w.count(watch.Added, pod)
	}
	var err error
	w.pods = nil
	w.healthy, err = oracle.OpenBooks(budgets, pods)
	return w, err
}

// count updates staying for one pod.
func (w *watcher) count(event watch.EventType, pod *corev1.Pod) {
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if event == watch.Deleted || finished {
		w.staying.Delete(pod.UID)
	} else if w.nodes.Has(pod.Spec.NodeName) {
		w.staying.Insert(pod.UID)
	}
}

// left returns the number of pods that are still on the nodes.
func (w *watcher) left() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.staying)
}

func (w *watcher) see(event watch.Event) {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok || pod.Namespace != namespace {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.healthy != nil:
		if event.Type == watch.Added {
			w.created++
		}
		w.healthy.Observe(event.Type, pod)
		w.count(event.Type, pod)
		if w.at.IsZero() && w.failed == nil && len(w.staying) == 0 {
			w.at = time.Now()
			close(w.emptied)
		}
	case event.Type == watch.Deleted:
		delete(w.pods, pod.UID)
	default:
		w.pods[pod.UID] = pod
	}
}

// made returns the number of pods created since the drain began.
func (w *watcher) made() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.created
}

func (w *watcher) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == nil && w.at.IsZero() {
		close(w.emptied)
	}
	w.failed = errors.Join(w.failed, err)
}

// wait returns the time at which the last pod left.
func (w *watcher) wait(ctx context.Context) (time.Time, error) {
	select {
	case <-w.emptied:
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at, w.failed
}
