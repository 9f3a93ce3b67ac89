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

package deployment

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/controller/deletioncost"
)

const (
	// maxCostAttempts is how often a write of a deletion cost is tried, costBackoff is the pause
	// after the first one that fails, and the next ones are twice as long. A policy may refuse all
	// changes of a pod.
	maxCostAttempts = 5
	costBackoff     = 5 * time.Second
	// restoreTimeout bounds how long deletion costs are restored before the surge is taken back all
	// the same.
	restoreTimeout = 5 * time.Second
	// lowerAfter is how long a surge makes no progress before the pods that wait get the lowest
	// deletion cost, so that a scale-down by its user takes them first (KEP-2255), and lowerEvery
	// is the time between two such writes.
	lowerAfter = 10 * time.Second
	lowerEvery = 200 * time.Millisecond
)

// attempts are the writes of a pod's deletion cost that have failed in a row.
type attempts struct {
	failed int
	// next is when the next one may be made.
	next time.Time
}

func (a attempts) areOver() bool { return a.failed >= maxCostAttempts }

// mayWriteCost reports whether the deletion cost of a pod may be written now, and wakes up when it
// may be later.
func (d *decision) mayWriteCost(s situation, p *pod) bool {
	tried := s.attempts[p.UID]
	if tried.areOver() {
		return false
	}
	if s.now.Before(tried.next) {
		d.wakeAt(tried.next)
		d.retries = true
		return false
	}
	return true
}

// restoreCosts gives the deletion cost back to pods that may stay.
func (d *decision) restoreCosts(s situation) {
	for i := range s.pods {
		if p := &s.pods[i]; p.evacuation == nil {
			d.restoreCost(s, p)
		}
	}
}

func (d *decision) restoreCost(s situation, p *pod) {
	if !deletioncost.IsLowered(p.Pod) || !d.mayWriteCost(s, p) {
		return
	}
	d.restore = append(d.restore, p.Pod)
	// One that has failed is not waited for: it must not keep the Deployment scaled up.
	d.awaitsRestore = d.awaitsRestore || s.attempts[p.UID].failed == 0
}

// lowerWaiting lowers the deletion cost of the pods that wait while the surge makes no progress,
// one at a time.
func (d *decision) lowerWaiting(s situation, leaving []*pod) {
	for _, p := range leaving {
		if !deletioncost.CanLower(p.Pod) || !d.mayWriteCost(s, p) {
			continue
		}
		at := latest(s.lastSign(p.evacuation).Add(lowerAfter), s.memory.lowered.Add(lowerEvery))
		if s.now.Before(at) {
			d.wakeAt(at)
			continue
		}
		d.lower = append(d.lower, p.Pod)
		d.memory.lowered = s.now
		d.wakeAt(s.now.Add(lowerEvery))
		return
	}
}

// writeCosts restores and lowers deletion costs. It is best effort: what fails is noted, and the
// others go on.
func (c *Controller) writeCosts(ctx context.Context, key types.NamespacedName, s situation, d decision) {
	restoring, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	restored := 0
	for _, p := range d.restore {
		if restoring.Err() != nil && restored > 0 {
			// They are many, and the next look goes on with them.
			c.queue.AddAfter(item{NamespacedName: key}, 0)
			break
		}
		err := deletioncost.Restore(restoring, c.host, p)
		if err == nil {
			restored++
		}
		c.noteCost(ctx, key, s.now, p, err)
	}
	for _, p := range d.lower {
		c.noteCost(ctx, key, s.now, p, deletioncost.Lower(ctx, c.host, p))
	}
}

// noteCost notes what has become of a write of a pod's deletion cost. The Deployment is enqueued if
// it has failed.
func (c *Controller) noteCost(ctx context.Context, key types.NamespacedName, now time.Time, p *corev1.Pod, err error) {
	if err == nil {
		c.known.costWritten(key, p.UID)
		return
	}
	if ctx.Err() != nil {
		return
	}
	tried := c.known.costFailed(key, p.UID, now)
	klog.FromContext(ctx).Info("The deletion cost of a pod cannot be written", "pod", klog.KObj(p), "attempts", tried.failed,
		"isLastAttempt", tried.areOver(), "reason", err.Error())
	c.queue.AddAfter(item{NamespacedName: key}, 0)
}
