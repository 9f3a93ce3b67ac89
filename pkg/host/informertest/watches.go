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
	mu    sync.Mutex
	begun map[string]int
}

// Count starts to count the watches of the clusters.
func Count(clusters ...Cluster) *Watches {
	w := &Watches{begun: map[string]int{}}
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
func (w *Watches) Begin(resource string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun[resource]++
}

// Fewest returns the lowest number of started watches of any of the resources.
func (w *Watches) Fewest(resources ...string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	fewest := math.MaxInt
	for _, resource := range resources {
		fewest = min(fewest, w.begun[resource])
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
