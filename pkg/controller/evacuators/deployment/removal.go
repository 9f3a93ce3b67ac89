// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/drain/pdb"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/drain/surge"
)

// maxAsking is the maximum number of workers that ask at the same time. A webhook may hang, and
// half of the workers, by default, must remain for the other Deployments.
const maxAsking = 4

// askFirst asks the API server whether the pods may leave, and returns its answers together with
// the earlier ones. If the time is over, the next decision asks for the remaining pods. asked is
// false if too many other workers ask.
func (c *Controller) askFirst(ctx context.Context, s situation, pods []*pod) (answers map[types.UID]consent, asked bool) {
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	default:
		return s.memory.answers, false
	}
	answers = map[types.UID]consent{}
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
		sent := c.clock.Now()
		answer, text := eviction.AskFirst(ctx, c.evictions, p.Pod, s.isNeverEvicted(p))
		now := c.clock.Now()
		answers[p.UID] = consent{Consent: answer, at: now, text: text, took: now.Sub(sent)}
	}
	return answers, true
}

const (
	// claimTime is how long evictions wait for a scale-down that is about to be written.
	claimTime = 10 * time.Second
	// removeTime is how long a removal counts at most after its write. The ReplicaSet controller
	// deletes pods of all ReplicaSets with a common rate limit.
	removeTime = 5 * time.Minute
	// statusTime is how long a removal counts at most after its pods are deleted, if the status of
	// a budget has not changed: another pod under the budget may have become ready or unready, so
	// that the number of healthy pods is the same.
	statusTime = 5 * time.Second
	// removeRetry is the time after which a scale-down or a question is tried again that waits for
	// those of other Deployments.
	removeRetry = time.Second
)

// removal is a scale-down that has to delete certain pods. As long as budgets count them as
// healthy, they would allow evictions that leave too few pods.
type removal struct {
	// budgets has, by name, the resourceVersion of each budget of the pods before the scale-down.
	budgets map[types.NamespacedName]string
	pods    []*corev1.Pod
	// generation and resourceVersion are those of the Deployment before the scale-down.
	generation      int64
	resourceVersion string
	// writes counts the attempts to write the scale-down for this resourceVersion. At most one of
	// them can be applied.
	writes int
	// quiet is set if, since the claim, no eviction under these budgets or of the Deployment is in
	// flight.
	quiet bool
	// until is the time from which the removal no longer counts, since it is not written, the pods
	// are not deleted, or budgets still count them.
	until time.Time
	// deletedAt is the time at which the cache first showed that the pods are deleted.
	deletedAt time.Time
}

// removals has the scale-downs that are about to be written or not confirmed, by Deployment.
type removals struct {
	sync.Mutex
	byDeployment map[types.NamespacedName]removal
}

// drop removes a removal, unless it was written more often than the given number of times: then an
// earlier write may still be applied.
func (r *removals) drop(deployment types.NamespacedName, writes int) {
	r.Lock()
	defer r.Unlock()
	if r.byDeployment[deployment].writes <= writes {
		delete(r.byDeployment, deployment)
	}
}

// change changes a removal.
func (r *removals) change(deployment types.NamespacedName, change func(*removal)) {
	r.Lock()
	defer r.Unlock()
	own := r.byDeployment[deployment]
	change(&own)
	r.byDeployment[deployment] = own
}

// claim claims the scale-down that deletes the given pods. Otherwise it returns the time after
// which to decide again: another scale-down of the Deployment or under the same budgets is
// unconfirmed, or evictions of these pods may have been in flight at the time of the decision.
//
// From the claim on, no eviction begins: the queue of evictions registers an eviction as in flight
// before it calls StandingOfEvicted. So an eviction that is not found here either is not sent, or
// has ended before the next decision.
func (c *Controller) claim(deployment types.NamespacedName, s situation, pods []*pod) (retry time.Duration) {
	own := removal{budgets: map[types.NamespacedName]string{}, generation: s.deployment.Generation, resourceVersion: s.deployment.ResourceVersion}
	for _, p := range pods {
		own.pods = append(own.pods, p.Pod)
		for _, budget := range p.budgets {
			own.budgets[pdb.NameOf(budget)] = budget.ResourceVersion
		}
	}
	quiet, ok := c.register(deployment, own)
	if !ok {
		return removeRetry
	}
	if !quiet {
		quiet = !c.evicts(deployment, s, own)
		c.removals.change(deployment, func(r *removal) { r.quiet = quiet })
		return answerRetry
	}
	c.removals.change(deployment, func(r *removal) {
		if r.writes++; r.writes == 1 {
			r.until = c.clock.Now().Add(removeTime)
		}
	})
	return 0
}

// evicts reports whether an eviction of a pod of the Deployment or under the budgets of a removal
// is in flight.
func (c *Controller) evicts(deployment types.NamespacedName, s situation, own removal) bool {
	if slices.ContainsFunc(s.pods, func(p pod) bool { return c.InFlight.Has(p.UID) }) {
		return true
	}
	for _, sent := range c.InFlight.List() {
		p, err := c.podLister.Pods(deployment.Namespace).Get(sent.Pod)
		if err == nil && p.UID == sent.UID && own.isUnder(c.namesOfBudgets(p)) {
			return true
		}
	}
	return false
}

// register adds a removal, unless another one of the Deployment or under the same budgets is not
// confirmed. quiet is set if the same removal was registered before, also if it was written and the
// outcome is not known, and was quiet.
func (c *Controller) register(deployment types.NamespacedName, own removal) (quiet, ok bool) {
	c.removals.Lock()
	defer c.removals.Unlock()
	now, budgets := c.clock.Now(), slices.Collect(maps.Keys(own.budgets))
	own.until = now.Add(claimTime)
	for key, other := range c.removals.byDeployment {
		switch {
		case key == deployment && now.Before(other.until) && (other.writes == 0 || other.resourceVersion == own.resourceVersion):
			own.quiet = other.quiet && !slices.ContainsFunc(budgets, func(name types.NamespacedName) bool { return !other.has(name) })
			own.writes, own.until = other.writes, latest(own.until, other.until)
		case key != deployment && !other.isUnder(budgets) && now.Before(other.until):
		case c.isConfirmed(key, other):
			delete(c.removals.byDeployment, key)
		default:
			return false, false
		}
	}
	c.removals.byDeployment[deployment] = own
	return own.quiet, true
}

func (r *removal) isUnder(budgets []types.NamespacedName) bool {
	return slices.ContainsFunc(budgets, r.has)
}

func (r *removal) has(budget types.NamespacedName) bool {
	_, has := r.budgets[budget]
	return has
}

// isConfirmed reports whether the cache shows that the pods of a removal are deleted, or that the
// Deployment has no pods to delete any more, and that the budgets no longer count these pods. It
// also returns true if the scale-down cannot be applied any more, or if none of that has happened
// for too long.
func (c *Controller) isConfirmed(deployment types.NamespacedName, r removal) bool {
	now := c.clock.Now()
	if !now.Before(r.until) {
		return true
	}
	if slices.ContainsFunc(r.pods, func(was *corev1.Pod) bool {
		p, err := c.podLister.Pods(was.Namespace).Get(was.Name)
		return err == nil && p.UID == was.UID && p.DeletionTimestamp == nil
	}) {
		d, exists := c.latestDeployments.Get(deployment.String())
		switch {
		case !exists || r.writes == 0:
			// The ReplicaSet may still exist, and still have to delete the pods.
			return false
		case d.Generation == r.generation:
			// The number has not changed, but the write required the resourceVersion.
			return d.ResourceVersion != r.resourceVersion
		case c.hasTooMany(deployment, d):
			return false
		}
	}
	if r.deletedAt.IsZero() {
		r.deletedAt = now
		c.removals.byDeployment[deployment] = r
	}
	for name, version := range r.budgets {
		if c.countsDeleted(name, version, r.deletedAt, now) {
			return false
		}
	}
	return true
}

// countsDeleted reports whether a budget may count pods as healthy that were deleted at the given
// time: its status has more healthy pods than the cache, or has not changed since the given
// resourceVersion.
func (c *Controller) countsDeleted(name types.NamespacedName, version string, deletedAt, now time.Time) bool {
	c.matching.RLock()
	budget := c.budgets.Get(name.Namespace, name.Name)
	c.matching.RUnlock()
	if budget == nil {
		return false
	}
	if pdb.IsCurrent(budget) && budget.ResourceVersion == version && now.Before(deletedAt.Add(statusTime)) {
		return true
	}
	return c.countsTooMany(budget, now)
}

// countsTooMany reports whether the status of a budget has more healthy pods than the cache. The
// API server does not use a status that is older than the spec.
func (c *Controller) countsTooMany(budget *policyv1.PodDisruptionBudget, now time.Time) bool {
	healthy, err := c.healthyUnder(budget, now)
	return err == nil && pdb.IsCurrent(budget) && budget.Status.CurrentHealthy > healthy
}

// healthyUnder counts the healthy pods under a budget in the cache. The status of the budget may be
// older.
func (c *Controller) healthyUnder(budget *policyv1.PodDisruptionBudget, now time.Time) (healthy int32, err error) {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return 0, err
	}
	pods, err := c.podLister.Pods(budget.Namespace).List(selector)
	if err != nil {
		return 0, err
	}
	for _, p := range pods {
		if pdb.IsReady(p) && pdb.UsesUp(budget, p, now) {
			healthy++
		}
	}
	return healthy, nil
}

// closedBudget returns the name of a budget that allows the deletion of none of these pods, "" if
// there is none.
func (s *situation) closedBudget(pods []*pod) string {
	replicas := surge.Replicas(s.deployment)
	for _, p := range pods {
		for _, b := range p.budgets {
			if pdb.IsReady(p.Pod) && !s.isNeverEvicted(p) && surge.Removable(b, replicas, 1) < 1 {
				return b.Name
			}
		}
	}
	return ""
}

// outdatedBudget returns the name of a budget that would not allow the deletion of these pods if
// its status were as new as the pods in the cache, "" if there is none. A pod of another workload
// may have left a moment ago.
func (s *situation) outdatedBudget(pods []*pod) string {
	budgets, under := map[types.NamespacedName]*policyv1.PodDisruptionBudget{}, map[types.NamespacedName]int32{}
	for _, p := range pods {
		if !pdb.IsReady(p.Pod) || s.isNeverEvicted(p) {
			continue
		}
		for _, b := range p.budgets {
			budgets[pdb.NameOf(b)] = b
			under[pdb.NameOf(b)]++
		}
	}
	for name, b := range budgets {
		current := *b
		current.Status.CurrentHealthy = min(b.Status.CurrentHealthy, s.healthyUnder(b))
		if surge.Removable(&current, surge.Replicas(s.deployment), under[name]) < under[name] {
			return b.Name
		}
	}
	return ""
}

// hasTooMany reports whether a Deployment has more pods than it should have.
func (c *Controller) hasTooMany(deployment types.NamespacedName, d *appsv1.Deployment) bool {
	pods := int32(0)
	for _, set := range c.Owners.ReplicaSets(deployment) {
		for _, p := range c.Owners.Pods(set.Namespace, set.UID) {
			if p.DeletionTimestamp == nil && drainplan.IsLive(p) {
				pods++
			}
		}
	}
	return pods > surge.Replicas(d)
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
	return c.unconfirmed(func(key types.NamespacedName, r *removal) bool { return key == of || r.isUnder(budgets) })
}

// removalBeside describes a scale-down that has to be confirmed before one of the given Deployment
// deletes the given pods, as a phrase that follows "until"; "" if there is none. It is an earlier
// one of the Deployment, or one of another Deployment under a common budget.
func (c *Controller) removalBeside(of types.NamespacedName, d *appsv1.Deployment, pods []*pod) string {
	var budgets []types.NamespacedName
	for _, p := range pods {
		for _, b := range p.budgets {
			if name := pdb.NameOf(b); !slices.Contains(budgets, name) {
				budgets = append(budgets, name)
			}
		}
	}
	c.removals.Lock()
	defer c.removals.Unlock()
	by, found := c.unconfirmed(func(key types.NamespacedName, r *removal) bool {
		if key == of {
			return r.writes > 0 && r.resourceVersion != d.ResourceVersion
		}
		return r.isUnder(budgets)
	})
	switch {
	case !found:
		return ""
	case by == of:
		return "the pods of the last scale-down are deleted, and no PodDisruptionBudget counts them"
	}
	return fmt.Sprintf("the scale-down of Deployment %s, which has a PodDisruptionBudget in common, is over: its extra pods are deleted, and no budget counts them", by.Name)
}

// unconfirmed returns the Deployment of a removal that is not confirmed. The caller holds the lock.
func (c *Controller) unconfirmed(concerns func(types.NamespacedName, *removal) bool) (deployment types.NamespacedName, found bool) {
	for key, r := range c.removals.byDeployment {
		switch {
		case !concerns(key, &r):
		case c.isConfirmed(key, r):
			delete(c.removals.byDeployment, key)
		default:
			return key, true
		}
	}
	return deployment, false
}

// isRemoved reports whether a scale-down of the Deployment still has to delete a pod.
func (c *Controller) isRemoved(p *corev1.Pod, of types.NamespacedName) bool {
	c.removals.Lock()
	defer c.removals.Unlock()
	r := c.removals.byDeployment[of]
	return slices.ContainsFunc(r.pods, func(other *corev1.Pod) bool { return other.UID == p.UID }) && !c.isConfirmed(of, r)
}

func (c *Controller) namesOfBudgets(p *corev1.Pod) (names []types.NamespacedName) {
	for _, budget := range c.budgetsOf(p, &budgetsByLabels{}) {
		names = append(names, pdb.NameOf(budget))
	}
	return names
}

// mayShrink reports whether a scale-down has been written, or may have been although the write has
// failed.
func (c *Controller) mayShrink(key types.NamespacedName, to int32, scaled bool, err error) bool {
	if scaled {
		// If a user has set the number, it stays.
		d, exists := c.latestDeployments.Get(key.String())
		return exists && surge.Replicas(d) <= to
	}
	var unsent unsentError
	if errors.As(err, &unsent) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	switch code := status.Status().Code; {
	case eviction.IsDenial(status.Status().Message):
		return false
	case code == http.StatusConflict:
		// An earlier write may be the cause. The cache is about to show it.
		return true
	default:
		return code < http.StatusBadRequest || code >= http.StatusInternalServerError || code == http.StatusRequestTimeout
	}
}
