/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodemaintenance

import (
	"math"
	"sync"

	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// watches counts the watches that informers have begun, by resource. A fake cluster tells a watch only what happens after it has begun: what happens
// between an informer's list and its watch would be lost.
type watches struct {
	mu    sync.Mutex
	begun map[string]int
}

func (w *watches) begin(resource string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun[resource]++
}

// all returns how many watches have begun of the resource with the fewest.
func (w *watches) all() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	fewest := math.MaxInt
	for _, resource := range []string{"nodes", "pods", "volumeattachments", "nodemaintenances", "evacuations"} {
		fewest = min(fewest, w.begun[resource])
	}
	return fewest
}

// counting serves watches from a fake cluster's objects and counts them.
func (w *watches) counting(tracker clienttesting.ObjectTracker) clienttesting.WatchReactionFunc {
	return func(action clienttesting.Action) (bool, watch.Interface, error) {
		answer, err := tracker.Watch(action.GetResource(), action.GetNamespace())
		w.begin(action.GetResource().Resource)
		return true, answer, err
	}
}
