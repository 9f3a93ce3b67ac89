// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/drain/surge"
)

// progressDeadlineExceeded is the reason of a Deployment's condition Progressing when its rollout
// is stuck.
const progressDeadlineExceeded = "ProgressDeadlineExceeded"

// failedCreate is the reason of a Deployment's condition ReplicaFailure when a pod could not be
// created.
const failedCreate = "FailedCreate"

// situation has all inputs of the decision about a Deployment.
type situation struct {
	now time.Time
	// servingSince is the time at which this leader started. Before that time no evacuator could
	// report.
	servingSince time.Time
	// timeout is how long a surge may make no progress.
	timeout time.Duration
	// tracked is the number of Deployments that have pods to leave.
	tracked int
	// startDeadline is the time within which an evacuator has to send its first report.
	startDeadline time.Duration
	// off is set if the evacuator is disabled.
	off bool
	// deployment is nil if it does not exist.
	deployment  *appsv1.Deployment
	autoscalers []*autoscalingv2.HorizontalPodAutoscaler
	target      target
	// pods are the pods of the Deployment that are not terminating.
	pods []pod
	// others has the number of pods of other workloads, which are neither finished nor terminating,
	// by budget. It has only budgets that require more pods than the Deployment has without a
	// surge.
	others map[types.NamespacedName]int32
	// healthyUnder counts the healthy pods under a budget in the cache.
	healthyUnder func(*policyv1.PodDisruptionBudget) int32
	// unconfirmed describes a scale-down that has to be confirmed before one that deletes the given
	// pods, as a phrase that follows "until"; "" if there is none.
	unconfirmed func([]*pod) string
	// orphans are the Evacuations for which this evacuator is active and whose pods belong to a
	// deleted Deployment of this name.
	orphans []*v1alpha1.Evacuation
	// activeReplicaSets is the number of ReplicaSets that should have pods, or have pods that are
	// neither finished nor terminating. Failed pods, which remain after the kubelet has evicted
	// pods, do not count.
	activeReplicaSets int
	// oneNodeClaims are the names of the template's volume claims that only one node, or only one
	// pod, can use at the same time.
	oneNodeClaims []string
	// memory is the state that the last decision of this process returned.
	memory memory
	// refused has the error with which the replica count cannot be written, and the time of the
	// first failure.
	refused refusal
	// warnings describe invalid annotations of the Deployment.
	warnings []string
	// recorded caches the result of recordedPods, fresh that of created, and replacing that of
	// replacements.
	recorded         map[types.UID]struct{}
	fresh, replacing []*pod
}

// target is the object to scale: the Deployment or, if there is one, its autoscaler.
type target struct {
	// autoscaler is nil if the Deployment itself is scaled.
	autoscaler *autoscalingv2.HorizontalPodAutoscaler
	// value is the current spec.replicas or spec.minReplicas of the target.
	value int32
	// record is the record of the surge; nil if there is none.
	record *record
	// garbage is set if the record is invalid. origin is the replica count before the surge if the
	// invalid record has a count to restore, otherwise nil.
	garbage bool
	origin  *int32
}

// isGoing reports whether the target does not exist or is being deleted.
func (t *target) isGoing(s *situation) bool {
	return t.autoscaler == nil && (s.deployment == nil || s.deployment.DeletionTimestamp != nil)
}

type pod struct {
	*corev1.Pod
	// evacuation is the active Evacuation of the pod; nil if there is none.
	evacuation *v1alpha1.Evacuation
	// isEvicting is set if an eviction of the pod has been sent, for this Evacuation or a withdrawn
	// one, and its result is not in the cache yet.
	isEvicting bool
	// staysUp is set if the node of the pod is not under maintenance, or if the pod counts although
	// its node is (memory.settled).
	staysUp bool
	// isPaused is set if the maintenances for which the pod leaves, or would leave without their
	// pause, are paused. It is also set if they were paused a moment ago and the deadlines of the
	// Evacuation are not restarted yet.
	isPaused bool
	// isCovered is set if the pod has no Evacuation although a maintenance that drains its node
	// covers the pod. The maintenance is paused, or requests the Evacuation in a moment. It is also
	// set if the node of the pod is gone: the pod is about to be deleted, and needs its
	// replacement.
	isCovered bool
	// purpose is a phrase that names the NodeMaintenance for which the pod leaves, "" if none is
	// known.
	purpose string
	// budgets are the budgets that the Eviction API would check.
	budgets []*policyv1.PodDisruptionBudget
}

// memory is state that need not survive a restart.
type memory struct {
	// highest is the highest reported score of this surge, or of the rollout before it; nil if
	// there is none. saidAt is the time at which progress was last reported.
	highest *int
	saidAt  time.Time
	// waiting has, by pod name, what the pods of the surge waited for when they were last read.
	// waitingAt is the time of that read.
	waiting   map[string]string
	waitingAt time.Time
	// gone is the number of pods that have left during the surge, and goneAt the time at which that
	// number last changed. delivered is the time at which the next evacuator was last made active
	// because a replacement was available.
	gone              int
	goneAt, delivered time.Time
	// costsSince is the time at which a scale-down began to wait for writes of deletion costs.
	costsSince time.Time
	// tried has the pods whose surge ended without a replacement, although a surge was possible.
	// They wait before they are tried again. The map is not changed after it is stored.
	tried map[types.UID]try
	// standing is the reason why the pods that wait have to stay.
	standing Standing
	// holds is set while this evacuator stays active for pods that are available, regardless of the
	// surge timeout. stood is the last time at which holds was set.
	holds bool
	stood time.Time
	// settled are the pods of the surge that tolerate the cordon, and were on their nodes before a
	// maintenance held these nodes. They count as replacements.
	settled map[types.UID]struct{}
	warned  []string
	// dropped has the pods that the last scale-down was to delete. misses counts the consecutive
	// scale-downs that deleted other pods, and missedAt is the time at which the last one was
	// noticed.
	dropped  []types.UID
	missedAt time.Time
	misses   int
	// answers has the last answers of the API server to the question whether pods may leave. The
	// map is not changed after it is stored.
	answers map[types.UID]consent
	// available is the highest number of replacements of this surge that were available at the same
	// time, and availableAt the time at which it last rose.
	available   int
	availableAt time.Time
	// askedSince is when an exchange first asked the API server since the last time at which all
	// answers had come; zero if it does not ask.
	askedSince time.Time
	// recoverySince is when an exchange first waited for pods to recover since the last progress.
	recoverySince time.Time
}

// try is a surge for a pod that has ended or is about to end.
type try struct {
	// at is the last time at which the surge was active, and before is the number of previous
	// tries.
	at     time.Time
	before int
}

// restsUntil returns the time from which a surge for the pod may be tried again.
func (t try) restsUntil(timeout time.Duration) time.Time {
	return t.at.Add(restAfter(t.before, timeout))
}

// evacuationName returns the name that the Evacuation of the pod has, or would have.
func (p *pod) evacuationName() string {
	if p.evacuation != nil {
		return p.evacuation.Name
	}
	return protocol.CanonicalName(p.Name, p.UID)
}

// mayGo reports whether a pod may leave at any time because another evacuator is active, or an
// eviction is in flight.
func (p *pod) mayGo() bool {
	return p.isEvicting || p.evacuation != nil && !isOurTurn(p.evacuation)
}

// isOurTurn reports whether this evacuator is active for an Evacuation and has not reported
// completion.
func isOurTurn(evacuation *v1alpha1.Evacuation) bool {
	return evacuation.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassDeployment && !evacuation.Status.ActiveEvacuatorCompleted
}

// mayReturn reports whether this evacuator may become active again for an Evacuation after it has
// reported completion. Eviction must be the next class. Otherwise an evacuator between the two
// would become active twice.
func mayReturn(evacuation *v1alpha1.Evacuation) bool {
	return evacuation.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassEviction &&
		slices.ContainsFunc(evacuation.Spec.Evacuators, func(e v1alpha1.Evacuator) bool {
			return e.EvacuatorClass == v1alpha1.EvacuatorClassDeployment
		}) &&
		protocol.Next(evacuation.Spec.Evacuators, v1alpha1.EvacuatorClassDeployment) == v1alpha1.EvacuatorClassEviction
}

// isDeclined reports whether this evacuator becomes active again as soon as a surge is possible, if
// eviction cannot remove the pod. The condition Blocked does not report a budget on which only
// another client has to wait.
func isDeclined(evacuation *v1alpha1.Evacuation) bool {
	return mayReturn(evacuation) &&
		(protocol.OnlyEvictionAsks(evacuation) || meta.IsStatusConditionTrue(evacuation.Status.Conditions, v1alpha1.ConditionBlocked))
}

// isAsked reports whether this evacuator is active for a pod, also if it has reported completion,
// or may become active again. Then the evacuator keeps its counters, since it may take some time
// until the eviction is active, and until it is reported as blocked.
func (s *situation) isAsked() bool {
	return slices.ContainsFunc(s.pods, func(p pod) bool {
		return p.evacuation != nil && (p.evacuation.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassDeployment || mayReturn(p.evacuation))
	})
}

// declined returns the blocked pods for which this evacuator may become active again now.
func (s *situation) declined() []*pod {
	var declined []*pod
	strays := s.strays()
	for i := range s.pods {
		p := &s.pods[i]
		if p.evacuation == nil || p.isEvicting || p.isPaused || !isDeclined(p.evacuation) || s.isRecorded(p) || slices.Contains(strays, p) {
			continue
		}
		if _, reason := p.blockedSince(); reason != "" && !s.rests(p) {
			declined = append(declined, p)
		}
	}
	return declined
}

// rests reports whether a surge for a pod was tried and is not due to be tried again yet.
func (s *situation) rests(p *pod) bool {
	return s.now.Before(s.memory.tried[p.UID].restsUntil(s.timeout))
}

// leaving returns the pods for which this evacuator is active, and those in the record first.
// During a pause no surge begins for a pod, so it is only among them if it is in the record.
func (s *situation) leaving() []*pod {
	var recorded, others []*pod
	for i := range s.pods {
		p := &s.pods[i]
		switch {
		case p.evacuation == nil || !isOurTurn(p.evacuation) || p.isPaused && !s.isRecorded(p):
		case s.isRecorded(p):
			recorded = append(recorded, p)
		default:
			others = append(others, p)
		}
	}
	return append(recorded, others...)
}

// hasPaused reports whether a pod of the Deployment is paused.
func (s *situation) hasPaused() bool {
	return slices.ContainsFunc(s.pods, func(p pod) bool { return p.isPaused })
}

// splitPaused returns the pods that are paused, and the others.
func splitPaused(pods []*pod) (paused, others []*pod) {
	for _, p := range pods {
		if p.isPaused {
			paused = append(paused, p)
		} else {
			others = append(others, p)
		}
	}
	return paused, others
}

// handedOver returns the pods in the record for which the next evacuator is active and that have
// not left yet.
func (s *situation) handedOver() []*pod {
	var handed []*pod
	for i := range s.pods {
		if p := &s.pods[i]; p.evacuation != nil && !isOurTurn(p.evacuation) && s.isRecorded(p) {
			handed = append(handed, p)
		}
	}
	return handed
}

// availableAt returns the time at which a ready pod counts as available. It returns false if the
// pod is not ready.
func (s *situation) availableAt(p *pod) (time.Time, bool) {
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			if s.deployment == nil || s.deployment.Spec.MinReadySeconds == 0 {
				return c.LastTransitionTime.Time, true
			}
			// Add a second: the timestamp of the condition is rounded down.
			return c.LastTransitionTime.Add(time.Duration(s.deployment.Spec.MinReadySeconds)*time.Second + time.Second), true
		}
	}
	return time.Time{}, false
}

func (s *situation) isAvailable(p *pod) bool {
	at, ready := s.availableAt(p)
	// Without minReadySeconds a ready pod is available, whatever the clock of the kubelet is.
	return ready && (s.deployment == nil || s.deployment.Spec.MinReadySeconds == 0 || !s.now.Before(at))
}

// replacements returns the pods that were created for the surge and are not asked to leave. The
// caller must not change the slice.
func (s *situation) replacements() []*pod {
	if s.replacing == nil {
		// A pod of the surge that is asked to leave is no replacement.
		s.replacing = slices.DeleteFunc(s.created(), func(p *pod) bool { return p.evacuation != nil })
		slices.SortFunc(s.replacing, func(a, b *pod) int { return strings.Compare(a.Name, b.Name) })
	}
	return s.replacing
}

// created returns the pods that were created for the surge. Timestamps alone are not sufficient: a
// drain may begin in the second in which the pods of the Deployment were created. So it returns the
// youngest pods, at most as many as the surge has added.
func (s *situation) created() []*pod {
	r := s.target.record
	if !r.isUp() || s.fresh != nil {
		return slices.Clone(s.fresh)
	}
	fresh := []*pod{}
	for i := range s.pods {
		if p := &s.pods[i]; !p.CreationTimestamp.Time.Before(r.Since.Time) && !s.wasThereBefore(p) {
			fresh = append(fresh, p)
		}
	}
	if came := max(0, len(s.pods)-max(0, int(r.Keep)-s.gone())); len(fresh) > came {
		slices.SortStableFunc(fresh, func(a, b *pod) int {
			return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(s.maturity(a), s.maturity(b)))
		})
		fresh = fresh[:came]
	}
	s.fresh = fresh
	return slices.Clone(fresh)
}

// wasThereBefore reports whether a pod that was created in the second in which the surge started is
// older than the surge. This is assumed if it is available on a node under maintenance. Such a pod
// may be the youngest of the Deployment. If it counted as a misplaced replacement, the surge would
// wait for one replacement too many.
func (s *situation) wasThereBefore(p *pod) bool {
	return p.CreationTimestamp.Equal(s.target.record.Since) && !p.staysUp && p.evacuation == nil && s.isAvailable(p)
}

// maturity orders pods that were created in the same second. A pod with a lower value is more
// likely a replacement.
func (s *situation) maturity(p *pod) int {
	switch {
	case p.evacuation != nil:
		return 3
	case !s.isAvailable(p):
		return 0
	case p.staysUp:
		return 1
	}
	return 2
}

// serving counts the pods that are available and remain available.
func (s *situation) serving(also ...*pod) int {
	n := 0
	for _, p := range s.remaining(also...) {
		if s.isAvailable(p) {
			n++
		}
	}
	return n
}

// remaining returns the pods that remain, whether they are available or not. It omits pods that may
// leave at any time. It also omits pods of the surge on nodes under maintenance, unless they are in
// the record or in also.
func (s *situation) remaining(also ...*pod) (remaining []*pod) {
	misplaced := map[string]bool{}
	for _, p := range s.created() {
		misplaced[p.Name] = (!p.staysUp && (p.evacuation == nil || !s.isRecorded(p)) || isReturned(p)) && !slices.Contains(also, p)
	}
	for i := range s.pods {
		if p := &s.pods[i]; !p.mayGo() && !misplaced[p.Name] {
			remaining = append(remaining, p)
		}
	}
	return remaining
}

// passedOn counts the available pods outside of the record that may leave at any time: this
// evacuator has reported completion for them without a replacement, or an eviction for a withdrawn
// Evacuation is in flight.
func (s *situation) passedOn() int {
	n := 0
	for i := range s.pods {
		p := &s.pods[i]
		isOutside := p.evacuation == nil || !s.isRecorded(p)
		if p.mayGo() && isOutside && s.isAvailable(p) {
			n++
		}
	}
	return n
}

// floor returns the number of pods that must always be available. It includes the pods that an
// autoscaler adds because of the load.
func (s *situation) floor() int {
	r := s.target.record
	return int(max(r.Keep, surge.Replicas(s.deployment)-(r.To-r.Keep)))
}

// gone returns the number of pods that have left during the surge, which is the number of used
// replacements.
func (s *situation) gone() int {
	gone := s.target.record.Gone + len(s.target.record.Evacuations)
	for i := range s.pods {
		if s.isRecorded(&s.pods[i]) {
			gone--
		}
	}
	return gone
}

// unsettled returns the reason why the Deployment cannot be scaled now, "" if it can. During a
// rollout, a surge would be spread over the ReplicaSets of the Deployment, and the rollout replaces
// the pods anyway. The number of cached pods must equal the replica count, which shows that the
// cache has the deletions of the last scale-down.
func (s *situation) unsettled() string {
	d, want := s.deployment, surge.Replicas(s.deployment)
	switch {
	case d.Status.ObservedGeneration < d.Generation:
		return "the deployment controller has not observed its latest change"
	case s.isRolloutIncomplete():
		if d.Status.UpdatedReplicas >= want && d.Status.Replicas == d.Status.UpdatedReplicas {
			return fmt.Sprintf("its rollout is not complete: %d of its ReplicaSets have pods%s", s.activeReplicaSets, replicaFailure(d))
		}
		return fmt.Sprintf("its rollout is not complete: %d of %d replicas are updated, %d exist%s", d.Status.UpdatedReplicas, want, d.Status.Replicas,
			replicaFailure(d))
	case d.Status.Replicas != want || len(s.pods) != int(want):
		return fmt.Sprintf("it has %d pods and should have %d%s", len(s.pods), want, replicaFailure(d))
	}
	return ""
}

// hasTooMany reports whether the ReplicaSet controller still has to delete pods after a scale-down.
func (s *situation) hasTooMany() bool {
	return len(s.pods) > int(surge.Replicas(s.deployment))
}

func (s *situation) isRolloutIncomplete() bool {
	status := &s.deployment.Status
	return status.UpdatedReplicas < surge.Replicas(s.deployment) || status.Replicas != status.UpdatedReplicas ||
		s.activeReplicaSets > 1
}

// isRolloutStuck reports whether the current rollout has made no progress within the Deployment's
// own progressDeadlineSeconds.
func (s *situation) isRolloutStuck() bool {
	waits := s.isRolloutIncomplete()
	if s.target.record.isUp() {
		waits = s.isRollingOut()
	}
	return waits && s.deployment.Status.ObservedGeneration >= s.deployment.Generation &&
		slices.ContainsFunc(s.deployment.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse &&
				c.Reason == progressDeadlineExceeded
		})
}

// isRollingOut reports whether a rollout has started since the surge started.
func (s *situation) isRollingOut() bool {
	return s.activeReplicaSets > 1 || s.deployment.Status.ObservedGeneration >= s.deployment.Generation &&
		s.deployment.Status.Replicas != s.deployment.Status.UpdatedReplicas
}

// replicaFailure returns the error in the condition ReplicaFailure, as the end of a sentence. The
// ReplicaSet controller also reports pods that it could not delete.
func replicaFailure(d *appsv1.Deployment) string { return failureWith(d, "") }

// createFailure returns the same if a pod could not be created, otherwise "".
func createFailure(d *appsv1.Deployment) string { return failureWith(d, failedCreate) }

func failureWith(d *appsv1.Deployment, reason string) string {
	for i := range d.Status.Conditions {
		c := &d.Status.Conditions[i]
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue && (reason == "" || c.Reason == reason) {
			return ": " + c.Message
		}
	}
	return ""
}

// maxSurge returns how many extra replicas the Deployment's strategy allows for the given number of
// replicas, limited to the size of one surge.
func maxSurge(d *appsv1.Deployment, replicas int32) int32 {
	return min(surge.Most(d, replicas), maxRecorded)
}

// lastSign returns the time at which the surge for an Evacuation last made progress, but not a time
// before the start of this leader.
func (s *situation) lastSign(evacuation *v1alpha1.Evacuation) time.Time {
	return latest(protocol.TurnOf(&evacuation.Status).Since, s.servingSince)
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// surplus returns how many pods the scale-down at the end of the surge would delete.
func (s *situation) surplus() int32 {
	if r := s.target.record; r.isUp() {
		return max(0, surge.Replicas(s.deployment)-r.Keep)
	}
	return 0
}

// allowsEviction reports whether the Eviction API would allow the eviction of the pod after the
// surge is reverted.
func allowsEviction(p *pod, surplus int32) bool {
	switch len(p.budgets) {
	case 0:
		return true
	case 1:
		budget := p.budgets[0]
		if _, failed := pdb.SyncFailure(budget); failed || !pdb.IsCurrent(budget) {
			return false
		}
		if !pdb.IsReady(p.Pod) && pdb.LetsUnreadyGo(budget) || pdb.Allowed(budget) > 0 {
			return true
		}
		expected := max(0, budget.Status.ExpectedPods-surplus)
		return min(budget.Status.CurrentHealthy, expected) > pdb.DesiredHealthy(budget, expected)
	}
	return false
}

// leavesByScaleDown reports whether a pod leaves by a scale-down even if there are fewer extra
// replicas than pods to leave. A pod that keeps its deletion cost is evicted instead, unless its
// budget never allows that.
func (s *situation) leavesByScaleDown(p *pod) bool {
	if len(p.budgets) == 0 && deletioncost.Keeps(p.Pod) {
		return false
	}
	return surge.LeavesByScaleDown(s.deployment, s.target.autoscaler != nil, s.original(), s.mostExtra(), s.surplus(), p.budgets)
}

// expectedFinish estimates the time at which the replacements are available, from the time that the
// existing pods needed; nil if there is no data.
func (s *situation) expectedFinish() *metav1.Time {
	var typical time.Duration
	for i := range s.pods {
		p := &s.pods[i]
		if at, ready := s.availableAt(p); ready {
			// A pod that became ready again seems slow, so use the fastest pod.
			if took := at.Sub(p.CreationTimestamp.Time); took >= 0 && (typical == 0 || took < typical) {
				typical = max(took, time.Second)
			}
		}
	}
	if typical == 0 {
		return nil
	}
	at := metav1.NewTime(s.now.Add(typical))
	at = at.Rfc3339Copy()
	return &at
}
