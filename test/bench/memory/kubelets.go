// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"
)

const (
	// enders is the number of pods that are ended at the same time.
	enders = 32
	// pageSize is the page size of a list of all pods.
	pageSize = 5000
)

// whilePodsEnd does something while it ends terminating pods, as kubelets do.
func (c *cluster) whilePodsEnd(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() {
		err := c.endPods(ctx)
		cancel(err)
		ended <- err
	}()
	err := do(ctx)
	cancel(nil)
	return errors.Join(err, <-ended)
}

// endPods ends terminating pods until the context ends.
func (c *cluster) endPods(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	terminating := make(chan types.NamespacedName)
	for range enders {
		group.Go(func() error {
			for pod := range terminating {
				if err := c.end(ctx, pod); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(terminating)
		return c.findTerminating(ctx, func(pod metav1.Object) {
			select {
			case terminating <- types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetName()}:
			case <-ctx.Done():
			}
		})
	})
	return group.Wait()
}

func (c *cluster) end(ctx context.Context, pod types.NamespacedName) error {
	err := c.kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// findTerminating calls found for all terminating pods until the context ends. A pod may be found
// twice: when the watch is too slow for kube-apiserver, the pods are listed again.
func (c *cluster) findTerminating(ctx context.Context, found func(metav1.Object)) error {
	for {
		err := c.watchTerminating(ctx, found)
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			return err
		}
	}
}

// watchTerminating lists and watches the pods, until the context ends or the watch fails.
func (c *cluster) watchTerminating(ctx context.Context, found func(metav1.Object)) error {
	pods := c.metadata.Resource(corev1.SchemeGroupVersion.WithResource("pods"))
	version, err := listTerminating(ctx, pods, found)
	if err != nil {
		return err
	}
	watcher, err := toolswatch.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return pods.Watch(ctx, options)
		},
	})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		switch event.Type {
		case watch.Error:
			return apierrors.FromObject(event.Object)
		case watch.Modified:
			if pod, ok := event.Object.(metav1.Object); ok && pod.GetDeletionTimestamp() != nil {
				found(pod)
			}
		}
	}
	return nil
}

// listTerminating calls found for the pods that are terminating now, and returns the resource
// version of the list.
func listTerminating(ctx context.Context, pods metadata.Getter, found func(metav1.Object)) (string, error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := pods.List(ctx, options)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			if page.Items[i].DeletionTimestamp != nil {
				found(&page.Items[i])
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return page.ResourceVersion, nil
		}
	}
}
