// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package informertest lets tests wait until informers on fake clusters have started their watches.
//
// A fake cluster sends a watch all objects that are newer than the list, but no deletions since: an
// object that a test deletes between an informer's list, after which it is synced, and its watch
// stays in the informer's cache forever.
package informertest

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// Cluster is implemented by each fake clientset.
type Cluster interface {
	// PrependWatchReactor adds a reaction to watches before all others.
	PrependWatchReactor(resource string, reaction clienttesting.WatchReactionFunc)
	// Tracker returns the tracker of the objects.
	Tracker() clienttesting.ObjectTracker
}

// Watches counts the watches that informers have started, by resource.
type Watches struct {
	// begun has an *atomic.Int64 by resource.
	begun sync.Map
}

// Count starts to count the watches of the clusters.
func Count(clusters ...Cluster) *Watches {
	w := &Watches{}
	for _, cluster := range clusters {
		cluster.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
			var options metav1.ListOptions
			if from, ok := action.(clienttesting.WatchActionImpl); ok {
				options = from.ListOptions
			}
			answer, err := cluster.Tracker().Watch(action.GetResource(), action.GetNamespace(), options)
			w.Begin(action.GetResource().Resource)
			return true, answer, err
		})
	}
	return w
}

// Begin counts a watch that a reactor of the test handles.
func (w *Watches) Begin(resource string) { w.of(resource).Add(1) }

func (w *Watches) of(resource string) *atomic.Int64 {
	begun, _ := w.begun.LoadOrStore(resource, new(atomic.Int64))
	return begun.(*atomic.Int64)
}

// Fewest returns the lowest number of started watches of any of the resources.
func (w *Watches) Fewest(resources ...string) int {
	fewest := math.MaxInt
	for _, resource := range resources {
		fewest = min(fewest, int(w.of(resource).Load()))
	}
	return fewest
}

// Wait waits until each of the resources has more than that many watches.
func (w *Watches) Wait(t testing.TB, before int, resources ...string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		return w.Fewest(resources...) > before, nil
	})
	if err != nil {
		t.Fatalf("waited in vain until informers watch %q", resources)
	}
}
