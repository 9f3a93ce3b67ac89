// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/drain/surge"
)

// quotaExceeded is a part of the error with which the API server refuses a pod because of a
// ResourceQuota.
const quotaExceeded = "exceeded quota"

// Standing is the reason why the pods of a Deployment have to stay: no replacement can start, or a
// scale-down has not ended. The zero value means that there is no such reason.
type Standing struct {
	// Reason is a reason of the condition Blocked of Evacuations. With PodWaits, the pod stays for
	// a moment and is not blocked.
	Reason string
	// Message has the cause and a remedy.
	Message string
}

// SurgeTimeout returns how long a surge for a pod may make no progress, from the annotation of its
// Deployment, otherwise the default of this controller.
func (c *Controller) SurgeTimeout(p *corev1.Pod) time.Duration {
	key, ok := c.deploymentOf(p)
	if !ok {
		return c.timeout
	}
	d := c.cached(key)
	if d == nil {
		return c.timeout
	}
	// A sync of the Deployment reports an invalid value.
	timeout, _ := surge.TimeoutFor(d.Annotations, c.timeout)
	return timeout
}

// NotReplaced returns the Deployment of a pod that is not scaled up before its pods leave, and the
// reason as a phrase that follows its name. Both are empty if it may be scaled up. Reasons that
// come from budgets are not among these: for them the remedy is an annotation of the Deployment.
func (c *Controller) NotReplaced(p *corev1.Pod) (deployment, why string) {
	key, ok := c.deploymentOf(p)
	if !ok {
		return "", ""
	}
	if why = c.known.get(key).notReplaced; why == "" {
		// A Deployment that has opted out is never synced for its pods.
		if d := c.cached(key); d != nil {
			why = surge.Refuse(d, surge.Replicas(d), nil).String()
		}
	}
	if why == "" {
		return "", ""
	}
	return key.Name, why
}

// Standing returns the reason why a pod for which this evacuator is active has to stay, according
// to the last sync of its Deployment.
func (c *Controller) Standing(p *corev1.Pod) Standing {
	key, ok := c.deploymentOf(p)
	if !ok {
		return Standing{}
	}
	return c.known.get(key).standing
}

// StandingOfEvicted returns the reason why a pod that is up for eviction has to stay: the pod is
// ready, and its Deployment was just scaled down, or this evacuator has scaled down another one
// under the same budget, or the Deployment can create no other pod and has no spare one. If the
// Deployment has the annotation surge: Disabled, or this evacuator is disabled, its pods may leave
// although it can create no other pod.
func (c *Controller) StandingOfEvicted(p *corev1.Pod) Standing {
	key, ok := c.deploymentOf(p)
	if !pdb.IsReady(p) {
		return Standing{}
	}
	if other, waits := c.removalBefore(p, key); waits {
		return Standing{
			Reason:  v1alpha1.ReasonPodWaits,
			Message: fmt.Sprintf("Deployment %s is scaled down, or is about to be: the pod waits until its ReplicaSet has deleted pods and no PodDisruptionBudget counts these.", other.Name),
		}
	}
	if !ok {
		return Standing{}
	}
	// The scale-down that ends a surge must count from the moment of its write.
	d, exists := c.latestDeployments.Get(key.String())
	if !exists {
		return Standing{}
	}
	// The events may not have been handled yet.
	c.noteShrinking(key, d)
	c.noteDeletedBy(key, d)
	lowered, _ := c.lowered.Get(key)
	if isShrinking(d) && c.clock.Now().Before(deletesUntil(latest(c.known.get(key).scaledDown, c.since(), lowered.since), d)) {
		return Standing{
			Reason: v1alpha1.ReasonPodWaits,
			Message: fmt.Sprintf("Deployment %s has %d pods and should have %d: the pod waits until its ReplicaSet has deleted those beyond that.",
				d.Name, d.Status.Replicas, surge.Replicas(d)),
		}
	}
	if budget := c.countsLowered(p, lowered); budget != "" {
		return Standing{
			Reason:  v1alpha1.ReasonPodWaits,
			Message: fmt.Sprintf("Deployment %s was scaled down: the pod waits until PodDisruptionBudget %s no longer counts pods that have left.", d.Name, budget),
		}
	}
	failing := standingOf(d)
	if failing == (Standing{}) || c.off || d.Annotations[v1alpha1.AnnotationSurge] == v1alpha1.SurgeDisabled {
		return Standing{}
	}
	wanted := surge.Replicas(d)
	if r, _ := readRecord(d, 1); r.isUp() {
		wanted = r.Keep
	}
	if d.DeletionTimestamp != nil || d.Status.AvailableReplicas > wanted {
		return Standing{}
	}
	return failing
}

// IsSurging reports whether the Deployment of a pod is scaled up, or its ReplicaSet still has to
// delete pods. In the meantime only the pods that a scale-down of this evacuator has to delete may
// have the lowest deletion cost.
func (c *Controller) IsSurging(p *corev1.Pod) bool {
	key, ok := c.deploymentOf(p)
	if !ok {
		return false
	}
	d, exists := c.latestDeployments.Get(key.String())
	if !exists {
		return false
	}
	return isSurgeUp(d) || isShrinking(d)
}

// lowering is a scale-down by any client.
type lowering struct {
	// since is the time at which this process first observed it, zero if that was before the start
	// of this leader, and deleted the time at which the
	// ReplicaSet had deleted the pods; zero if it has not.
	since, deleted time.Time
}

// noteLowered records that the replica count of a Deployment was lowered, unless an earlier
// scale-down has not ended. since is zero if that was before the start of this leader.
func (c *Controller) noteLowered(key types.NamespacedName, since time.Time) {
	c.lowered.Change(key, func(l lowering, known bool) (lowering, bool) {
		if !known || !l.deleted.IsZero() {
			l = lowering{since: since}
		}
		return l, true
	})
}

// noteShrinking does so for a Deployment whose scale-down this leader has not seen.
func (c *Controller) noteShrinking(key types.NamespacedName, d *appsv1.Deployment) {
	switch {
	case !isShrinking(d):
	case d.Status.ObservedGeneration < d.Generation:
		c.noteLowered(key, c.clock.Now())
	default:
		c.noteLowered(key, time.Time{})
	}
}

// noteDeletedBy records that the ReplicaSet of a Deployment has no pods to delete, if its status
// shows that. It drops what is no longer needed.
func (c *Controller) noteDeletedBy(key types.NamespacedName, d *appsv1.Deployment) {
	if d.Status.ObservedGeneration != d.Generation || isShrinking(d) {
		return
	}
	c.lowered.Change(key, func(l lowering, known bool) (lowering, bool) {
		now := c.clock.Now()
		if l.deleted.IsZero() {
			l.deleted = now
		}
		return l, known && now.Before(l.deleted.Add(statusTime))
	})
}

// countsLowered returns the name of a budget of the pod that still counts pods which the ReplicaSet
// has deleted a moment ago, "" if there is none.
func (c *Controller) countsLowered(p *corev1.Pod, l lowering) string {
	now := c.clock.Now()
	if l.deleted.IsZero() || !now.Before(l.deleted.Add(statusTime)) {
		return ""
	}
	for _, budget := range c.budgetsOf(p, &budgetsByLabels{}) {
		if c.countsTooMany(budget, now) {
			return budget.Name
		}
	}
	return ""
}

// isShrinking reports whether the ReplicaSet of a Deployment has to delete pods because the
// Deployment was scaled down. A budget that expects the new number of pods may still count the pods
// that the ReplicaSet deletes a moment later. It would then allow evictions which, together with
// these deletions, leave too few pods. During a rollout, the deployment controller itself keeps the
// number of available pods.
func isShrinking(d *appsv1.Deployment) bool {
	return d.DeletionTimestamp == nil && d.Status.Replicas > surge.Replicas(d) && d.Status.UpdatedReplicas == d.Status.Replicas
}

// deletesUntil returns the time until which the ReplicaSet may delete pods after a scale-down. Its
// status may not show the scale-down at first.
func deletesUntil(scaledDown time.Time, d *appsv1.Deployment) time.Time {
	if d != nil && isShrinking(d) {
		return scaledDown.Add(removeTime)
	}
	return scaledDown.Add(replaceTime)
}

// standingOf returns the reason to stay if a Deployment cannot create pods. An exceeded quota is no
// such reason, since a pod that leaves frees some of the quota.
func standingOf(d *appsv1.Deployment) Standing {
	failure := strings.TrimPrefix(createFailure(d), ": ")
	if failure == "" || strings.Contains(failure, quotaExceeded) {
		return Standing{}
	}
	return Standing{
		Reason: v1alpha1.ReasonReplicaFailure,
		Message: fmt.Sprintf("No pod of Deployment %s can be created, so this pod cannot be replaced. It stays until the error is fixed: %s "+
			"The owner of the object in the error has to fix it, or the owner of the application may delete the pod.",
			d.Name, wording.Sentence(failure)),
	}
}

// standing returns the reason why the pods that wait must not leave without a replacement.
func (s *situation) standing() Standing {
	if failing := standingOf(s.deployment); failing != (Standing{}) {
		return failing
	}
	if p := s.returned(); p != nil {
		return Standing{
			Reason: v1alpha1.ReasonRecreated,
			Message: fmt.Sprintf("Pod %s of the surge has started on node %s, which is under maintenance, and another one would start there as well: Deployment %s %s. "+
				"Remove that toleration from the Deployment; until then its pods stay.",
				p.Name, p.Spec.NodeName, s.deployment.Name, surge.CordonToleration(p.Pod)),
		}
	}
	return Standing{}
}

// returned returns a pod of the surge that was bound to a node under maintenance because it
// tolerates the cordon, nil if there is none. The next pod would start there as well. A pod that
// the scheduler bound immediately before the cordon does not count.
func (s *situation) returned() *pod {
	for _, p := range s.created() {
		if isReturned(p) {
			return p
		}
	}
	return nil
}

// settled returns the pods of the surge that tolerate the cordon and whose nodes were not under
// maintenance when this leader first observed the pods there. They count as replacements even if
// these nodes are cordoned later.
func (s *situation) settled() map[types.UID]struct{} {
	settled := map[types.UID]struct{}{}
	for _, p := range s.created() {
		if p.staysUp && p.Spec.NodeName != "" && surge.CordonToleration(p.Pod) != "" {
			settled[p.UID] = struct{}{}
		}
	}
	return settled
}

func isReturned(p *pod) bool {
	return !p.staysUp && p.Spec.NodeName != "" && surge.CordonToleration(p.Pod) != ""
}
