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
	// servingSince is when this leader started: before that, no report was possible.
	servingSince time.Time
	// timeout is how long a surge may make no progress.
	timeout time.Duration
	// startDeadline is the time that an evacuator has for its first report.
	startDeadline time.Duration
	// off: the evacuator is disabled.
	off bool
	// deployment is nil if it does not exist.
	deployment *appsv1.Deployment
	// autoscalers are the HorizontalPodAutoscalers of the Deployment.
	autoscalers []*autoscalingv2.HorizontalPodAutoscaler
	target      target
	// pods are the pods of the Deployment that are not terminating.
	pods []pod
	// orphans are the Evacuations that wait for this evacuator and whose pods belong to a deleted
	// Deployment of this name.
	orphans []*v1alpha1.Evacuation
	// activeReplicaSets is the number of ReplicaSets that should have pods, or have some that are
	// neither finished nor terminating: what kubelets have evicted stays behind as a failed pod.
	activeReplicaSets int
	// oneNodeClaims are the names of the template's volume claims that only one node, or only one
	// pod, can use at the same time.
	oneNodeClaims []string
	// memory is the state from the last decision of this process.
	memory memory
	// refused is why the replica count cannot be written, and since when.
	refused refusal
	// warnings describe invalid annotations of the Deployment.
	warnings []string
	// recorded is a lazily built set of the Evacuations in the record.
	recorded map[string]struct{}
}

// target is the object to scale: the Deployment or, if there is one, its autoscaler.
type target struct {
	// autoscaler is nil if the Deployment itself is scaled.
	autoscaler *autoscalingv2.HorizontalPodAutoscaler
	// value is its current spec.replicas or spec.minReplicas.
	value int32
	// record is the record of the surge; nil if there is none.
	record *record
	// garbage: there is an invalid record. origin is the user's value that it still has, nil if
	// there is none to restore.
	garbage bool
	origin  *int32
}

// isGoing reports whether the target does not exist or is being deleted.
func (t *target) isGoing(s *situation) bool {
	return t.autoscaler == nil && (s.deployment == nil || s.deployment.DeletionTimestamp != nil)
}

// pod is a pod of the Deployment.
type pod struct {
	*corev1.Pod
	// evacuation is the active Evacuation of the pod; nil if there is none.
	evacuation *v1alpha1.Evacuation
	// isEvicting: an eviction of the pod has been sent, for this Evacuation or a withdrawn one, and
	// the cache does not show yet what became of it.
	isEvicting bool
	// staysUp: its node is not under maintenance, or the pod counts in spite of that
	// (memory.settled).
	staysUp bool
	// purpose is a phrase with the NodeMaintenance that the pod leaves for; "" if none is known.
	purpose string
	// budgets are the budgets that the Eviction API would check.
	budgets []*policyv1.PodDisruptionBudget
}

// memory is state that need not survive a restart.
type memory struct {
	// highest is the highest score that was reported of this surge, or of the rollout before it;
	// nil if none was. saidAt is when progress was last reported.
	highest *int
	saidAt  time.Time
	// waiting is what surge pods waited for when it was last read, by the name of the pod, and
	// waitingAt is the time of that read.
	waiting   map[string]string
	waitingAt time.Time
	// gone is the number of pods that have left during the surge, goneAt is when that number last
	// changed, and delivered is when a pod was last handed over because of a replacement.
	gone              int
	goneAt, delivered time.Time
	// costsSince is since when a scale-down waits for deletion costs.
	costsSince time.Time
	// tried are the pods whose turns ended although a surge was possible. They rest before they are
	// taken up again. The map is replaced, never changed.
	tried map[types.UID]try
	// standing is why the pods that wait have to stay.
	standing Standing
	// holds: the turns of the pods that serve did not end, whatever the time, and stood is when
	// that was last so.
	holds bool
	stood time.Time
	// settled are the pods of the surge that tolerate the cordon, and were on their nodes before
	// these came under maintenance. They count.
	settled map[types.UID]struct{}
	// warned are the warnings that have been sent.
	warned []string
	// dropped are the intended victims of the last scale-down, of which spared had to survive, and
	// misses counts the consecutive scale-downs that deleted other pods; missedAt is when the last
	// one was noticed.
	dropped        []string
	spared, misses int
	missedAt       time.Time
}

// try is a surge that has ended for a pod, or is about to.
type try struct {
	// at is when it was last up, before is the number of tries before it.
	at     time.Time
	before int
}

// restsUntil is when a pod that was tried is taken up again.
func (t try) restsUntil(timeout time.Duration) time.Time {
	return t.at.Add(restAfter(t.before, timeout))
}

// mayGo reports whether a pod may leave at any time: another evacuator has its turn, or an eviction
// is in flight.
func (p *pod) mayGo() bool {
	return p.isEvicting || p.evacuation != nil && !isOurTurn(p.evacuation)
}

// isOurTurn reports whether an Evacuation waits for this evacuator.
func isOurTurn(evacuation *v1alpha1.Evacuation) bool {
	return evacuation.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassDeployment && !evacuation.Status.ActiveEvacuatorCompleted
}

// mayReturn reports whether the turn of this evacuator may begin again after it has ended: eviction
// follows it directly. Another evacuator in between would be asked twice.
func mayReturn(evacuation *v1alpha1.Evacuation) bool {
	return evacuation.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassEviction &&
		slices.ContainsFunc(evacuation.Spec.Evacuators, func(e v1alpha1.Evacuator) bool {
			return e.EvacuatorClass == v1alpha1.EvacuatorClassDeployment
		}) &&
		protocol.Next(evacuation.Spec.Evacuators, v1alpha1.EvacuatorClassDeployment) == v1alpha1.EvacuatorClassEviction
}

// isDeclined reports whether the turn is to begin again as soon as a surge is possible: eviction
// cannot remove the pod.
func isDeclined(evacuation *v1alpha1.Evacuation) bool {
	return mayReturn(evacuation) && meta.IsStatusConditionTrue(evacuation.Status.Conditions, v1alpha1.ConditionBlocked)
}

// isAsked reports whether a pod has its turn, or may get it again. For as long, the evacuator keeps
// what it has counted: eviction may need some time until it reports that it is blocked.
func (s *situation) isAsked() bool {
	return slices.ContainsFunc(s.pods, func(p pod) bool {
		return p.evacuation != nil && (isOurTurn(p.evacuation) || mayReturn(p.evacuation))
	})
}

// declined returns the blocked pods whose turns ended, and which do not rest after a try to replace
// them.
func (s *situation) declined() []*pod {
	var declined []*pod
	strays := s.strays()
	for i := range s.pods {
		p := &s.pods[i]
		if p.evacuation == nil || p.isEvicting || !isDeclined(p.evacuation) || s.isRecorded(p) || slices.Contains(strays, p) {
			continue
		}
		if !s.rests(p) {
			declined = append(declined, p)
		}
	}
	return declined
}

// rests reports whether it is not time yet to try again to replace a pod.
func (s *situation) rests(p *pod) bool {
	return s.now.Before(s.memory.tried[p.UID].restsUntil(s.timeout))
}

// isRecorded reports whether the record of the surge has a pod. There may be hundreds of both,
// hence the set.
func (s *situation) isRecorded(p *pod) bool {
	if s.target.record == nil {
		return false
	}
	if s.recorded == nil {
		s.recorded = make(map[string]struct{}, len(s.target.record.Evacuations))
		for _, name := range s.target.record.Evacuations {
			s.recorded[name] = struct{}{}
		}
	}
	_, ok := s.recorded[p.evacuation.Name]
	return ok
}

// leaving returns the pods that wait for this evacuator, those in the record first.
func (s *situation) leaving() []*pod {
	var recorded, others []*pod
	for i := range s.pods {
		p := &s.pods[i]
		switch {
		case p.evacuation == nil || !isOurTurn(p.evacuation):
		case s.isRecorded(p):
			recorded = append(recorded, p)
		default:
			others = append(others, p)
		}
	}
	return append(recorded, others...)
}

// handedOver returns the pods that were handed over during the surge and have not left yet.
func (s *situation) handedOver() []*pod {
	var handed []*pod
	for i := range s.pods {
		if p := &s.pods[i]; p.evacuation != nil && !isOurTurn(p.evacuation) && s.isRecorded(p) {
			handed = append(handed, p)
		}
	}
	return handed
}

// availableAt returns when a pod that is ready counts as available, and false if it is not ready.
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
	// Without minReadySeconds a ready pod is available, whatever the kubelet's clock shows.
	return ready && (s.deployment == nil || s.deployment.Spec.MinReadySeconds == 0 || !s.now.Before(at))
}

// replacements returns the pods that were created for the surge and are not asked to leave
// themselves.
func (s *situation) replacements() []*pod {
	// A pod that is asked to leave itself counts as created, but it is no replacement.
	fresh := slices.DeleteFunc(s.created(), func(p *pod) bool { return p.evacuation != nil })
	slices.SortFunc(fresh, func(a, b *pod) int { return strings.Compare(a.Name, b.Name) })
	return fresh
}

// created returns the pods that were created for the surge. Timestamps alone are not enough: a
// drain may begin in the second in which the pods of the Deployment were created. So it returns the
// youngest pods, at most as many as were added by the surge.
func (s *situation) created() []*pod {
	r := s.target.record
	if !r.isUp() {
		return nil
	}
	var fresh []*pod
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
	return fresh
}

// wasThereBefore reports whether a pod that was created in the second in which the surge started is
// not one of the surge: it runs on a node that its user has cordoned. Such a pod may be the
// youngest of the Deployment. If it counted as a misplaced replacement, the surge would wait for
// another one when a pod of the surge has left in the meantime.
func (s *situation) wasThereBefore(p *pod) bool {
	return p.CreationTimestamp.Equal(s.target.record.Since) && !p.staysUp && p.evacuation == nil && s.isAvailable(p)
}

// maturity compares pods that were created in the same second: the lower one is more likely to be a
// replacement.
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

// serving counts the pods that are available and remain available. It does not count pods that may
// leave at any time, nor pods of the surge on nodes that are under maintenance themselves, whether
// they were asked to leave already or not, unless they are replaced in this surge, or in also.
func (s *situation) serving(also ...*pod) int {
	misplaced := map[string]bool{}
	for _, p := range s.created() {
		misplaced[p.Name] = (!p.staysUp && (p.evacuation == nil || !s.isRecorded(p)) || isReturned(p)) && !slices.Contains(also, p)
	}
	n := 0
	for i := range s.pods {
		p := &s.pods[i]
		if !p.mayGo() && !misplaced[p.Name] && s.isAvailable(p) {
			n++
		}
	}
	return n
}

// passedOn counts the available pods outside of the surge that may leave at any time, because their
// turns ended without a replacement, or because they were sent away for a withdrawn Evacuation.
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

// floor is how many pods have to be available all the time, including the pods that an autoscaler
// adds because of the load.
func (s *situation) floor() int {
	r := s.target.record
	return int(max(r.Keep, surge.Replicas(s.deployment)-(r.To-r.Keep)))
}

// spare is how many available pods may leave: the number above floor or, if other pods of the
// Deployment are not healthy, the number of available replacements for which no pod has left yet.
// Waiting does not make the other pods healthy. also are strays that count nevertheless.
func (s *situation) spare(also ...*pod) int {
	r, handed := s.target.record, len(s.handedOver())
	spare := s.serving(also...) - s.floor()
	gone := s.gone()
	extra, replacements := int(r.To-r.Keep), slices.Concat(s.replacements(), also)
	if len(replacements) < extra+gone {
		return spare
	}
	for _, p := range replacements {
		if !p.staysUp && !slices.Contains(also, p) || !s.isAvailable(p) {
			return spare
		}
	}
	return max(spare, min(len(replacements)-gone, extra)-handed-s.passedOn())
}

// gone returns the number of pods that have left during the surge, which is the number of used
// replacements.
func (s *situation) gone() int {
	gone := s.target.record.Gone + len(s.target.record.Evacuations) - len(s.handedOver())
	for _, p := range s.leaving() {
		if s.isRecorded(p) {
			gone--
		}
	}
	return gone
}

// unsettled returns why the Deployment cannot be scaled now; "" if it can. During a rollout, a
// surge would be spread over its ReplicaSets, and the rollout replaces the pods anyway. The number
// of cached pods has to be right, so that the cache includes the deletions of the last scale-down.
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

// replicaFailure returns the error of the ReplicaSet, as the end of a sentence.
func replicaFailure(d *appsv1.Deployment) string {
	text, _ := replicaFailureAndReason(d)
	return text
}

// createFailure is replicaFailure of a pod that could not be created. The ReplicaSet also reports
// pods that it could not delete.
func createFailure(d *appsv1.Deployment) string {
	text, reason := replicaFailureAndReason(d)
	if reason != failedCreate {
		return ""
	}
	return text
}

func replicaFailureAndReason(d *appsv1.Deployment) (text, reason string) {
	for i := range d.Status.Conditions {
		if c := &d.Status.Conditions[i]; c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return ": " + c.Message, c.Reason
		}
	}
	return "", ""
}

// maxSurge returns how many extra replicas the Deployment's strategy allows for the given number of
// replicas, limited to the size of one surge.
func maxSurge(d *appsv1.Deployment, replicas int32) int32 {
	return min(surge.Most(d, replicas), maxRecorded)
}

// lastSign is when the surge for an Evacuation last made progress or, if that could not be
// reported, when this leader started.
func (s *situation) lastSign(evacuation *v1alpha1.Evacuation) time.Time {
	return latest(protocol.TurnOf(&evacuation.Status).Since, s.servingSince)
}

func latest(t time.Time, others ...time.Time) time.Time {
	for _, other := range others {
		if other.After(t) {
			t = other
		}
	}
	return t
}

// surplus is how many pods the end of the surge would delete.
func (s *situation) surplus() int32 {
	if r := s.target.record; r.isUp() {
		return max(0, surge.Replicas(s.deployment)-r.Keep)
	}
	return 0
}

// letsGo reports whether the Eviction API would allow the eviction of the pod after the surge is
// reverted.
func letsGo(p *pod, surplus int32) bool {
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

// goesByScaleDown reports whether the scale-down that ends the surge is the only, or the best, way
// for the pods to leave.
func (s *situation) goesByScaleDown(pods []*pod) bool {
	return !slices.ContainsFunc(pods, func(p *pod) bool { return !s.leavesByScaleDown(p) })
}

func (s *situation) leavesByScaleDown(p *pod) bool {
	return surge.LeavesByScaleDown(s.deployment, s.target.autoscaler != nil, s.original(), s.mostExtra(), p.budgets)
}

// expectedFinish estimates when the replacements are available, from how long the existing pods
// took. nil if there is no data.
func (s *situation) expectedFinish() *metav1.Time {
	var typical time.Duration
	for i := range s.pods {
		p := &s.pods[i]
		if at, ready := s.availableAt(p); ready {
			// A pod that became ready again looks slow; use the fastest one.
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
