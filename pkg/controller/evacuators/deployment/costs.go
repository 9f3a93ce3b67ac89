// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/drain/pdb"
)

// The deletion-cost controller lowers and restores the costs of all pods. This evacuator writes
// costs only before its own scale-downs, which have to delete the right pods. That controller
// restores them afterwards.

const (
	// costTimeout is the deadline of one write of a deletion cost. It is also how long one sync may
	// start these writes, and the time after which failed writes are retried.
	costTimeout = 5 * time.Second
	// costPatience is how long a scale-down waits for writes of deletion costs, since an admission
	// policy may refuse all changes of a pod.
	costPatience = 30 * time.Second
	// writeRetry is the time until the next decision if this one only writes what the next one
	// needs.
	writeRetry = time.Second
)

// restoreCosts restores the deletion cost of the pods that stay: the pods in remaining, paused
// pods, and all pods without an Evacuation that are not in surplus. It reports whether the
// scale-down has to wait for these writes.
func (d *decision) restoreCosts(s situation, remaining []*pod) bool {
	for i := range s.pods {
		p := &s.pods[i]
		if _, leaves := d.surplus[p.UID]; leaves {
			continue
		}
		if deletioncost.IsLowered(p.Pod) && (p.evacuation == nil || p.isPaused || slices.Contains(remaining, p)) {
			d.restore = append(d.restore, p.Pod)
		}
	}
	return len(d.restore) > 0 && d.awaitsCosts(s)
}

// canBeLowest reports whether a pod has the lowest deletion cost or can get it. It cannot if
// another client has changed the cost after it was lowered.
func canBeLowest(p *pod) bool {
	return deletioncost.CanLower(p.Pod) || deletioncost.IsLowest(p.Pod)
}

// otherLowest returns a pod that is not among these and has the lowest deletion cost on its own,
// nil if there is none. A scale-down would delete that pod first.
func (s *situation) otherLowest(pods []*pod) *pod {
	known := uidsOf(pods)
	for i := range s.pods {
		if _, is := known[s.pods[i].UID]; !is && isOwnLowest(&s.pods[i]) {
			return &s.pods[i]
		}
	}
	return nil
}

// isOwnLowest reports whether a pod has the lowest deletion cost although this process has not
// lowered it.
func isOwnLowest(p *pod) bool {
	return deletioncost.IsLowest(p.Pod) && !deletioncost.IsLowered(p.Pod)
}

// awaitsLowest makes the chosen pods and the hopeless replacements, which may become ready in the
// last moment, the only ones with the lowest deletion cost. It reports whether a scale-down has to
// wait for these writes. The cache must have them, since the cache of the ReplicaSet controller
// then probably has them, too. failed is set if they have failed for too long.
func (d *decision) awaitsLowest(s situation, chosen, hopeless []*pod) (awaits, failed bool) {
	leaves := map[types.UID]struct{}{}
	for _, p := range slices.Concat(chosen, hopeless) {
		leaves[p.UID] = struct{}{}
		if deletioncost.CanLower(p.Pod) && (p.evacuation != nil || !deletioncost.Keeps(p.Pod)) {
			d.lower = append(d.lower, p.Pod)
		}
	}
	for i := range s.pods {
		p := &s.pods[i]
		if _, is := leaves[p.UID]; !is && deletioncost.IsLowered(p.Pod) {
			d.restore = append(d.restore, p.Pod)
		}
	}
	if len(d.lower)+len(d.restore) == 0 {
		return false, false
	}
	if d.awaitsCosts(s) {
		return true, false
	}
	// The other pods are evicted.
	d.lower = nil
	for _, p := range chosen {
		if s.leavesByScaleDown(p) && deletioncost.CanLower(p.Pod) {
			d.lower = append(d.lower, p.Pod)
			d.wakeAt(s.now.Add(costTimeout))
		}
	}
	return false, true
}

// lowerReplacements lowers the deletion cost of the replacements, and of strays before these, if
// pods stay that the surge was for. With equal costs, the scale-down that takes the surge back
// could delete these pods, whatever their budgets allow: the ReplicaSet controller prefers pods on
// a node with several ready ones of the ReplicaSet to younger pods. It prefers pods that are not
// ready to all others. lowerReplacements reports whether the scale-down has to wait for these
// writes.
func (d *decision) lowerReplacements(s situation) bool {
	if !slices.ContainsFunc(s.pods, func(p pod) bool { return p.evacuation != nil || s.isRecorded(&p) }) {
		return false
	}
	pods := s.replacements()
	strays := slices.DeleteFunc(s.strays(), func(p *pod) bool {
		return !deletioncost.IsLowest(p.Pod) && (deletioncost.Keeps(p.Pod) || !deletioncost.CanLower(p.Pod))
	})
	if len(strays) > 0 {
		// These leave anyway. If others were deleted instead, too few pods would be left then. Pods
		// that are not ready are deleted before all of them.
		number := int(s.surplus()) - len(s.unreadyOthers(strays))
		pods = append(strays, pods...)
		pods = pods[:min(len(pods), max(0, number))]
	}
	d.surplus = map[types.UID]struct{}{}
	for _, p := range pods {
		// A pod from the second in which the surge started may be older than the surge.
		if !pdb.IsReady(p.Pod) || s.isRecorded(p) && p.CreationTimestamp.Equal(s.target.record.Since) {
			continue
		}
		d.surplus[p.UID] = struct{}{}
		if deletioncost.CanLower(p.Pod) && !deletioncost.Keeps(p.Pod) {
			d.lower = append(d.lower, p.Pod)
		}
	}
	return len(d.lower) > 0 && d.awaitsCosts(s)
}

// awaitsAvailable reports whether the scale-down could leave fewer available pods than the
// Deployment should have, and another pod is expected to become available, which takes
// minReadySeconds. The ReplicaSet controller deletes pods that are not ready first, then those with
// the lowest deletion cost, and does not distinguish between pods that are available and pods that
// are only ready. A pod that is unready again and again does not keep the surge for longer than the
// surge timeout.
func (d *decision) awaitsAvailable(s situation) bool {
	if s.deployment == nil || s.deployment.Spec.MinReadySeconds == 0 || s.isRollingOut() ||
		!s.now.Before(latest(d.memory.goneAt, d.memory.delivered, s.servingSince).Add(s.timeout)) {
		return false
	}
	var pods []*pod
	// lowest counts the ready pods with the lowest cost, and lowestAvailable the available ones
	// among them.
	available, sick, lowest, lowestAvailable := 0, 0, 0, 0
	for i := range s.pods {
		p := &s.pods[i]
		pods = append(pods, p)
		isAvailable, isLowest := s.isAvailable(p), deletioncost.IsLowest(p.Pod)
		switch sickAt, isReady := s.sickAt(p); {
		case !isReady && !s.now.Before(sickAt):
			sick++
		case isReady && isLowest && isAvailable:
			lowestAvailable++
			fallthrough
		case isReady && isLowest:
			lowest++
		}
		if isAvailable {
			available++
		}
	}
	deleted := max(0, int(s.surplus())-sick)
	lost := min(deleted, lowestAvailable)
	if deleted > lowest {
		lost = lowestAvailable + deleted - lowest
	}
	return available-lost < s.floor() && d.awaitsRecovery(s, pods)
}

// IsSurplus reports whether a pod has the lowest deletion cost because the scale-down that takes a
// surge back, or one that has been written, has to delete it.
func (c *Controller) IsSurplus(p *corev1.Pod) bool {
	key, ok := c.deploymentOf(p)
	if !ok {
		return false
	}
	_, is := c.known.get(key).surplus[p.UID]
	return is || c.isRemoved(p, key)
}

// awaitsCosts reports whether a scale-down still has to wait for writes of deletion costs.
func (d *decision) awaitsCosts(s situation) bool {
	since, retry := s.memory.costsSince, costTimeout
	if since.IsZero() {
		// The caches, that of the ReplicaSet controller as well, have the costs soon.
		since, retry = s.now, writeRetry
	}
	d.memory.costsSince = since
	if !s.now.Before(since.Add(costPatience)) {
		return false
	}
	d.wakeAt(s.now.Add(retry))
	return true
}

// writeCosts restores and lowers deletion costs. The next decision repeats the writes that fail or
// are not started in time.
func (c *Controller) writeCosts(ctx context.Context, d decision) {
	starting, cancel := context.WithTimeout(ctx, costTimeout)
	defer cancel()
	write := func(pods []*corev1.Pod, write func(context.Context, kubernetes.Interface, *corev1.Pod) error) {
		for _, p := range pods {
			if starting.Err() != nil {
				return
			}
			call, cancel := context.WithTimeout(ctx, costTimeout)
			if err := write(call, c.Client, p); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Info("Cannot write the deletion cost of a pod", "pod", klog.KObj(p), "reason", err.Error())
			}
			cancel()
		}
	}
	write(d.restore, deletioncost.Restore)
	write(d.lower, deletioncost.Lower)
}
