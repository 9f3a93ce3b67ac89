// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestEvictAll(t *testing.T) {
	pods := []string{"a", "b", "c", "d", "e"}
	closed, gone := apierrors.NewTooManyRequests("closed", 0), apierrors.NewNotFound(corev1.Resource("pods"), "a")
	conflict, forbidden := apierrors.NewConflict(corev1.Resource("pods"), "a", nil), apierrors.NewForbidden(
		corev1.Resource("pods"), "a", nil,
	)
	for name, test := range map[string]struct {
		workers int
		// answers are the errors of the first evictions of each pod; the next eviction succeeds.
		answers []error
		want    int // calls for each pod
		fail    error
	}{
		"each pod is evicted once":                      {workers: 3, want: 1},
		"one worker evicts all":                         {workers: 1, want: 1},
		"more workers than pods":                        {workers: 20, want: 1},
		"a refused pod is tried again":                  {workers: 2, answers: []error{closed, conflict, closed}, want: 4},
		"a pod that is already gone is not tried again": {workers: 2, answers: []error{gone}, want: 1},
		"a permanent error ends the loop":               {workers: 1, answers: []error{forbidden}, fail: forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			calls := map[string]int{}
			err := evictAll(t.Context(), pods, test.workers, 0, func(_ context.Context, pod string) error {
				mu.Lock()
				defer mu.Unlock()
				calls[pod]++
				if calls[pod] <= len(test.answers) {
					return test.answers[calls[pod]-1]
				}
				return nil
			})
			must.True(t, errors.Is(err, test.fail), "got error %v, want %v", err, test.fail)
			if test.fail != nil {
				return
			}
			for _, pod := range pods {
				is.True(t, calls[pod] == test.want, "pod %s: got %d calls, want %d", pod, calls[pod], test.want)
			}
		})
	}
	t.Run("no pods, no error", func(t *testing.T) {
		if err := evictAll(t.Context(), nil, 3, 0, nil); err != nil {
			t.Error(err)
		}
	})
	t.Run("the end of the context is an error", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		if err := evictAll(ctx, pods, 3, 0, func(context.Context, string) error {
			cancel()
			return closed
		}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestEach(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	failure := errors.New("no")
	err := each(t.Context(), []string{"a", "b", "c"}, 2, func(_ context.Context, item *string) error {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, *item)
		if *item == "b" {
			return failure
		}
		return nil
	})
	slices.Sort(seen)
	if diff := cmp.Diff([]string{"a", "b", "c"}, seen); diff != "" || !errors.Is(err, failure) {
		t.Errorf("got error %v; %s", err, diff)
	}
}
