// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// target is one of the two APIs that are compared.
type target struct {
	client           dynamic.ResourceInterface
	apiVersion, kind string
}

func newTarget(client dynamic.ResourceInterface, group string, of resource) *target {
	return &target{client: client, apiVersion: group + "/" + v1alpha1.SchemeGroupVersion.Version, kind: of.kind}
}

func objectName(i int) string { return fmt.Sprintf("bench-%05d", i) }

// object returns an object of the target's kind.
func (t *target) object(name string, spec map[string]any, finalizers ...string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": t.apiVersion, "kind": t.kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
	object.SetFinalizers(finalizers)
	return object
}

// create creates the objects with the numbers from up to, but not including, to.
func (t *target) create(ctx context.Context, from, to, workers int, spec map[string]any) (time.Duration, error) {
	return timed(ctx, from, to, workers, func(ctx context.Context, i int) error {
		_, err := t.client.Create(ctx, t.object(objectName(i), spec), metav1.CreateOptions{})
		return err
	})
}

// update reads each object, changes it and updates it, as controllers do.
func (t *target) update(ctx context.Context, from, to, workers int) (time.Duration, error) {
	return timed(ctx, from, to, workers, func(ctx context.Context, i int) error {
		return retry.RetryOnConflict(retry.DefaultRetry, func() error {
			object, err := t.client.Get(ctx, objectName(i), metav1.GetOptions{})
			if err != nil {
				return err
			}
			object.SetAnnotations(map[string]string{annotation: "updated"})
			_, err = t.client.Update(ctx, object, metav1.UpdateOptions{})
			return err
		})
	})
}

// list reads all objects in one response.
func (t *target) list(ctx context.Context, want int) (time.Duration, error) {
	begin := time.Now()
	list, err := t.client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	if len(list.Items) != want {
		return 0, fmt.Errorf("%s: the list has %d objects, want %d", t.apiVersion, len(list.Items), want)
	}
	return time.Since(begin), nil
}

// annotation is the annotation that updates change.
const annotation = "bench.haulout.dev/sample"

// latencies writes samples to an object and returns, for each write, the time until its event
// arrived in a watch.
func (t *target) latencies(ctx context.Context, samples int) ([]time.Duration, error) {
	now, err := t.client.Get(ctx, objectName(0), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	watcher, err := t.client.Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + objectName(0), ResourceVersion: now.GetResourceVersion(),
	})
	if err != nil {
		return nil, err
	}
	defer watcher.Stop()
	out := make([]time.Duration, 0, samples)
	for i := range samples {
		sample := fmt.Sprint(i)
		begin := time.Now()
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, annotation, sample)
		_, err := t.client.Patch(ctx, objectName(0), types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return nil, err
		}
		if err := await(ctx, watcher, sample); err != nil {
			return nil, err
		}
		out = append(out, time.Since(begin))
	}
	return out, nil
}

// await reads a watch up to the event with the sample.
func await(ctx context.Context, watcher watch.Interface, sample string) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case event, open := <-watcher.ResultChan():
			if !open {
				return errors.New("the watch ended")
			}
			object, ok := event.Object.(*unstructured.Unstructured)
			if ok && object.GetAnnotations()[annotation] == sample {
				return nil
			}
		}
	}
}

// timed calls do for each number, in parallel in that many workers, and returns the total time.
func timed(ctx context.Context, from, to, workers int, do func(context.Context, int) error) (time.Duration, error) {
	var wg sync.WaitGroup
	next, errs := make(chan int), make([]error, workers)
	begin := time.Now()
	for w := range workers {
		wg.Go(func() {
			for i := range next {
				if errs[w] == nil {
					errs[w] = do(ctx, i)
				}
			}
		})
	}
	for i := from; i < to; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
	return time.Since(begin), errors.Join(errs...)
}
