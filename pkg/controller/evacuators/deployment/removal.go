// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/drain/pdb"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/drain/surge"
)

// askTimeout is the deadline of one question whether a pod may leave.
const askTimeout = 15 * time.Second

// askFirst asks the API server whether the pods may leave, and returns its answers together with
// the earlier ones. If the time is over, the next decision asks for the remaining pods.
func (c *Controller) askFirst(ctx context.Context, s situation, pods []*pod) map[types.UID]consent {
	answers := map[types.UID]consent{}
	for i := range s.pods {
		if answer, known := s.memory.answers[s.pods[i].UID]; known {
			answers[s.pods[i].UID] = answer
		}
	}
	end := c.clock.Now().Add(askFor)
	for _, p := range pods {
		if !c.clock.Now().Before(end) {
			break
		}
		call, cancel := context.WithTimeout(ctx, askTimeout)
		answer, text := eviction.AskFirst(call, c.evictions, p.Pod, s.isNeverEvicted(p))
		cancel()
		answers[p.UID] = consent{answer, c.clock.Now(), text}
	}
	return answers
}

const (
	// removeTime is how long a removal counts at most. The ReplicaSet controller deletes pods of all
	// ReplicaSets with a common rate limit.
	removeTime = 5 * time.Minute
	// removeRetry is the time after which a scale-down that waits for another one is tried again.
	removeRetry = time.Second
)

// removal is a scale-down that has to delete certain pods. Until the cache shows that they are
// deleted, budgets may count them as healthy, and would allow evictions that leave too few pods.
type removal struct {
	budgets []types.NamespacedName
	pods    []*corev1.Pod
	// generation is that of the Deployment before the scale-down.
	generation int64
	// until is the time from which the removal no longer counts, since the pods are not deleted.
	until time.Time
}

// removals has the scale-downs that are about to be written or not confirmed, by Deployment.
type removals struct {
	sync.Mutex
	byDeployment map[types.NamespacedName]removal
}

func (r *removals) drop(deployment types.NamespacedName) {
	r.Lock()
	defer r.Unlock()
	delete(r.byDeployment, deployment)
}

// claim registers the scale-down that deletes the given pods. It may be written if no eviction of a
// pod of the Deployment or under the same budgets is in flight, and no other scale-down of the
// Deployment or under these budgets is unconfirmed. Otherwise claim returns the time after which to
// try again. The queue of evictions registers an eviction as in
// flight before it calls StandingOfEvicted. So an eviction that is not found here is not sent.
func (c *Controller) claim(deployment types.NamespacedName, s situation, pods []*pod) (retry time.Duration) {
	if len(pods) == 0 {
		return 0
	}
	own := removal{generation: s.deployment.Generation, until: c.clock.Now().Add(removeTime)}
	for _, p := range pods {
		own.pods = append(own.pods, p.Pod)
		for _, budget := range p.budgets {
			if name := pdb.NameOf(budget); !slices.Contains(own.budgets, name) {
				own.budgets = append(own.budgets, name)
			}
		}
	}
	if !c.register(deployment, own) {
		return removeRetry
	}
	for i := range s.pods {
		if c.InFlight.Has(s.pods[i].UID) {
			c.removals.drop(deployment)
			return answerRetry
		}
	}
	if len(own.budgets) == 0 {
		return 0
	}
	for _, sent := range c.InFlight.List() {
		if sent.Evacuation.Namespace != deployment.Namespace {
			continue
		}
		p, err := c.podLister.Pods(deployment.Namespace).Get(sent.Pod)
		if err == nil && p.UID == sent.UID && own.isUnder(c.namesOfBudgets(p)) {
			c.removals.drop(deployment)
			return answerRetry
		}
	}
	return 0
}

// register adds a removal, unless another one of the Deployment or under the same budgets is not
// confirmed.
func (c *Controller) register(deployment types.NamespacedName, own removal) bool {
	c.removals.Lock()
	defer c.removals.Unlock()
	for key, other := range c.removals.byDeployment {
		if c.isConfirmed(key, other) {
			delete(c.removals.byDeployment, key)
		} else if key == deployment || other.isUnder(own.budgets) {
			return false
		}
	}
	c.removals.byDeployment[deployment] = own
	return true
}

func (r *removal) isUnder(budgets []types.NamespacedName) bool {
	return slices.ContainsFunc(budgets, func(name types.NamespacedName) bool { return slices.Contains(r.budgets, name) })
}

// isConfirmed reports whether the cache shows that the pods of a removal are deleted or that the
// Deployment has no pods to delete any more, or they have not been deleted for too long.
func (c *Controller) isConfirmed(deployment types.NamespacedName, r removal) bool {
	return !c.clock.Now().Before(r.until) || !slices.ContainsFunc(r.pods, func(was *corev1.Pod) bool {
		p, err := c.podLister.Pods(was.Namespace).Get(was.Name)
		return err == nil && p.UID == was.UID && p.DeletionTimestamp == nil
	}) || c.hasShrunk(deployment, r)
}

// hasShrunk reports whether the Deployment of a removal was changed since, and has no more pods than
// it should have.
func (c *Controller) hasShrunk(deployment types.NamespacedName, r removal) bool {
	d, exists, err := c.latestDeployments.Get(deployment.String())
	if err != nil || !exists || d.Generation == r.generation {
		return false
	}
	pods := int32(0)
	for _, set := range c.Owners.ReplicaSets(deployment) {
		for _, p := range c.Owners.Pods(set.Namespace, set.UID) {
			if p.DeletionTimestamp == nil && drainplan.IsLive(p) {
				pods++
			}
		}
	}
	return pods <= surge.Replicas(d)
}

// removalBefore returns the Deployment whose scale-down has to be confirmed before a pod of the
// given Deployment, or under the same budget, may be evicted.
func (c *Controller) removalBefore(p *corev1.Pod, of types.NamespacedName) (deployment types.NamespacedName, waits bool) {
	c.removals.Lock()
	defer c.removals.Unlock()
	if len(c.removals.byDeployment) == 0 {
		return deployment, false
	}
	budgets := c.namesOfBudgets(p)
	for key, r := range c.removals.byDeployment {
		if (key == of || r.isUnder(budgets)) && !c.isConfirmed(key, r) {
			return key, true
		}
	}
	return deployment, false
}

func (c *Controller) namesOfBudgets(p *corev1.Pod) (names []types.NamespacedName) {
	for _, budget := range c.budgetsOf(p, &budgetsByLabels{}) {
		names = append(names, pdb.NameOf(budget))
	}
	return names
}
