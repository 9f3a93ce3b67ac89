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
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	// settle is how long after the last cordon was seen the scheduler may still bind a pod that it
	// had placed before.
	settle = 5 * time.Second
	// fightWindow and fightLimit say how often a cordon may be undone before it is called a fight.
	fightWindow = 10 * time.Minute
	fightLimit  = 3
	// fightPause is how long a cordon that is fought over stays undone before it is set again.
	fightPause = time.Minute
)

// cordonWatch remembers since when nodes have been seen cordoned, and how often somebody undid our
// cordon. A restart forgets it: then the scheduler is waited for once more, and a fight is noticed
// a little later.
type cordonWatch struct {
	clock clock.PassiveClock

	mu       sync.Mutex
	since    map[types.UID]time.Time
	restores map[types.UID][]time.Time
}

func newCordonWatch(clock clock.PassiveClock) *cordonWatch {
	return &cordonWatch{clock: clock, since: map[types.UID]time.Time{}, restores: map[types.UID][]time.Time{}}
}

// observe takes in what the cache says of a node.
func (w *cordonWatch) observe(node *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !node.Spec.Unschedulable {
		delete(w.since, node.UID)
		return
	}
	if _, known := w.since[node.UID]; !known {
		w.since[node.UID] = w.clock.Now()
	}
}

// unsettled returns how long it takes until the last of the nodes has been seen cordoned for long
// enough.
func (w *cordonWatch) unsettled(nodes []*corev1.Node) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, longest := w.clock.Now(), time.Duration(0)
	for _, node := range nodes {
		since, known := w.since[node.UID]
		if !known {
			return settle
		}
		longest = max(longest, settle-now.Sub(since))
	}
	return longest
}

// latest returns when the last of the nodes was first seen cordoned; now, if one of them is not.
func (w *cordonWatch) latest(nodes []*corev1.Node) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	var latest time.Time
	for _, node := range nodes {
		since, known := w.since[node.UID]
		if !known {
			return w.clock.Now()
		}
		if since.After(latest) {
			latest = since
		}
	}
	return latest
}

// isFight says whether it has become a fight if our cordon is put back now.
func (w *cordonWatch) isFight(node *corev1.Node) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.recent(node.UID)) >= fightLimit
}

// fought reports whether a cordon was undone so often that its node is left out of the waves, and
// since when.
func (w *cordonWatch) fought(node *corev1.Node) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	recent := w.recent(node.UID)
	if len(recent) <= fightLimit {
		return time.Time{}, false
	}
	return recent[0], true
}

// restored notes that our cordon was put back.
func (w *cordonWatch) restored(node *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.restores[node.UID] = append(w.recent(node.UID), w.clock.Now())
}

// backOff returns how long to leave an undone cordon alone.
func (w *cordonWatch) backOff(node *corev1.Node) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	recent := w.recent(node.UID)
	if len(recent) <= fightLimit {
		return 0
	}
	return fightPause - w.clock.Since(recent[len(recent)-1])
}

// recent returns the restores that still count.
func (w *cordonWatch) recent(uid types.UID) []time.Time {
	now := w.clock.Now()
	recent := slices.DeleteFunc(w.restores[uid], func(t time.Time) bool { return now.Sub(t) > fightWindow })
	if len(recent) == 0 {
		delete(w.restores, uid)
		return nil
	}
	w.restores[uid] = recent
	return recent
}

// forget drops what is remembered of a node that is gone.
func (w *cordonWatch) forget(node *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.since, node.UID)
	delete(w.restores, node.UID)
}
