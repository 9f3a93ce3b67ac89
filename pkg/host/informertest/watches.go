// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package informertest makes tests wait until informers on fake clusters have started their
// watches.
//
// A new watch on a fake cluster receives all objects that were created after the list, but no
// deletions. If a test deletes an object after an informer has listed it and is synced, but before
// the informer watches, the object stays in the cache of the informer forever.
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

// Cluster is an interface that every fake clientset implements.
type Cluster interface {
	// PrependWatchReactor adds a reaction to watches, which runs before all other reactions.
	PrependWatchReactor(resource string, reaction clienttesting.WatchReactionFunc)
	// Tracker returns the tracker of the objects.
	Tracker() clienttesting.ObjectTracker
}

// Watches counts the watches that informers have started, by resource.
type Watches struct {
	// begun has an *atomic.Int64 for each resource.
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

// Begin counts a watch. A reactor of the test that handles the watch has to call it, since the
// reactor of Count is then not called.
func (w *Watches) Begin(resource string) { w.of(resource).Add(1) }

func (w *Watches) of(resource string) *atomic.Int64 {
	begun, _ := w.begun.LoadOrStore(resource, new(atomic.Int64))
	return begun.(*atomic.Int64)
}

// Fewest returns the number of started watches of the resource with the smallest number.
func (w *Watches) Fewest(resources ...string) int {
	fewest := math.MaxInt
	for _, resource := range resources {
		fewest = min(fewest, int(w.of(resource).Load()))
	}
	return fewest
}

// Wait waits until each of the resources has more started watches than before.
func (w *Watches) Wait(t testing.TB, before int, resources ...string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		return w.Fewest(resources...) > before, nil
	})
	if err != nil {
		t.Fatalf("informers do not watch all of %q after 20 seconds", resources)
	}
}
