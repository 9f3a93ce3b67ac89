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
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	pdb "haulout.dev/haulout/pkg/drain/budget"
	"haulout.dev/haulout/pkg/drain/surge"
)

// progressDeadlineExceeded is the reason of a Deployment's condition Progressing that a rollout
// which is stuck has.
const progressDeadlineExceeded = "ProgressDeadlineExceeded"

// situation is all that a decision about a Deployment depends on.
type situation struct {
	now time.Time
	// servingSince is since when this leader serves: what happened before, nobody could report.
	servingSince time.Time
	// timeout is how long a surge may make no progress.
	timeout time.Duration
	// startDeadline is how long an evacuator has for the first report of its turn.
	startDeadline time.Duration
	// off: no surge is wanted.
	off bool
	// deployment is nil if there is none of this name.
	deployment *appsv1.Deployment
	// autoscalers are those that scale the Deployment.
	autoscalers []*autoscalingv2.HorizontalPodAutoscaler
	target      target
	// pods are those of the Deployment that nobody has asked to stop.
	pods []pod
	// orphans are the Evacuations in our turn whose pods belong to a Deployment of this name that
	// is gone.
	orphans []*maintenancev1alpha1.Evacuation
	// activeReplicaSets counts those that have pods or should have some.
	activeReplicaSets int
	// oneNodeClaims are the names of the template's volume claims that only one node, or only one
	// pod, can use at a time.
	oneNodeClaims []string
	// waiting says what a surge pod waits for, by the name of the pod.
	waiting map[string]string
	// memory is what this process knows from its last decision.
	memory memory
	// attempts are those writes of deletion costs that have failed, by the UID of the pod.
	attempts map[types.UID]attempts
	// refused is why the number cannot be written, and since when.
	refused refusal
	// warnings say which annotations of the Deployment mean nothing.
	warnings []string
	// recorded are the Evacuations of the record, once they have been asked for.
	recorded map[string]struct{}
}

// target is what is scaled: the Deployment or, if there is one, its autoscaler.
type target struct {
	// autoscaler is nil if the Deployment itself is scaled.
	autoscaler *autoscalingv2.HorizontalPodAutoscaler
	// value is its number now: spec.replicas or spec.minReplicas.
	value int32
	// record is that of the surge; nil if there is none.
	record *record
	// garbage: there is a record that means nothing.
	garbage bool
}

// isGoing says whether there is nothing left to be scaled.
func (t *target) isGoing(s *situation) bool {
	return t.autoscaler == nil && (s.deployment == nil || s.deployment.DeletionTimestamp != nil)
}

// pod is one of the Deployment's.
type pod struct {
	*corev1.Pod
	// evacuation is that of the pod; nil if it has none that counts.
	evacuation *maintenancev1alpha1.Evacuation
	// staysUp: its node is not under maintenance.
	staysUp bool
	// purpose is the NodeMaintenance that it leaves for, to be put after a verb; "" if none is
	// known.
	purpose string
	// budgets are those that the eviction API would ask.
	budgets []*policyv1.PodDisruptionBudget
}

// memory is what is only worth knowing as long as the process runs: a new one goes on without.
type memory struct {
	// known is false at first sight.
	known bool
	// first is what those have heard that the surge is for, and inLine what those have that another
	// one will be for.
	first, inLine heard
	// waiting is what surge pods were last seen to wait for, and waitingAt is when that was read.
	waiting   map[string]string
	waitingAt time.Time
	// gone counts the pods that had left under the surge, goneAt is when that number changed last,
	// and delivered is when a replacement has last let a pod go.
	gone              int
	goneAt, delivered time.Time
	// lowered is when the deletion cost of a waiting pod was lowered last.
	lowered time.Time
	// warned are the warnings that have been sent.
	warned []string
	// dropped are the pods of which the last scale-down was to take all but spared, and misses
	// counts the scale-downs in a row that took others.
	dropped        []string
	spared, misses int
}

// heard is what Evacuations were told last: the highest mark of the surge, and when that was.
type heard struct {
	mark mark
	at   time.Time
}

// mark is how far a surge has come, or the wait for a rollout before it.
type mark struct {
	// waitsForRollout: no surge has started.
	waitsForRollout bool
	// score grows with each step that a replacement takes, or with each pod that the rollout has
	// updated.
	score int
}

// isProgress reports whether a mark is beyond the highest one so far. A pod that flaps makes none,
// nor does a rollout that starts again.
func (m mark) isProgress(highest mark) bool {
	return m.waitsForRollout == highest.waitsForRollout && m.score > highest.score
}

// orHigher returns the higher one of two marks of the same kind.
func (m mark) orHigher(highest mark) mark {
	if m.waitsForRollout == highest.waitsForRollout && highest.score > m.score {
		return highest
	}
	return m
}

// isOurTurn says whether an Evacuation waits for this evacuator.
func isOurTurn(evacuation *maintenancev1alpha1.Evacuation) bool {
	return evacuation.Status.ActiveEvacuatorClass == maintenancev1alpha1.EvacuatorClassDeployment && !evacuation.Status.ActiveEvacuatorCompleted
}

// isRecorded says whether the surge is for a pod. There may be hundreds of both.
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

// leaving returns the pods that wait for this evacuator, those first that the surge is recorded
// for.
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

// handedOver returns the pods that may go since the surge is up, and have not gone yet.
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
			// A second more: that of the condition is rounded down.
			return c.LastTransitionTime.Add(time.Duration(s.deployment.Spec.MinReadySeconds)*time.Second + time.Second), true
		}
	}
	return time.Time{}, false
}

func (s *situation) isAvailable(p *pod) bool {
	at, ready := s.availableAt(p)
	// Without minReadySeconds ready is available, whatever the kubelet's clock shows.
	return ready && (s.deployment == nil || s.deployment.Spec.MinReadySeconds == 0 || !s.now.Before(at))
}

// replacements returns the pods that came with the surge and are not asked to leave themselves.
// Timestamps alone do not tell: a drain may begin in the second in which the Deployment got its
// pods. So they are at most as many as there are pods beyond those from before the surge, the
// youngest of all.
func (s *situation) replacements() []*pod {
	r := s.target.record
	if !r.isUp() {
		return nil
	}
	var fresh []*pod
	for i := range s.pods {
		if p := &s.pods[i]; !p.CreationTimestamp.Time.Before(r.Since.Time) {
			fresh = append(fresh, p)
		}
	}
	if came := max(0, len(s.pods)-max(0, int(r.Keep)-s.gone())); len(fresh) > came {
		slices.SortStableFunc(fresh, func(a, b *pod) int {
			return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(s.maturity(a), s.maturity(b)))
		})
		fresh = fresh[:came]
	}
	// One that is asked to leave itself has come as well, but it replaces nothing.
	fresh = slices.DeleteFunc(fresh, func(p *pod) bool { return p.evacuation != nil })
	slices.SortFunc(fresh, func(a, b *pod) int { return strings.Compare(a.Name, b.Name) })
	return fresh
}

// maturity is lower for a pod that is less likely to be from before the surge, of two that came in
// the same second.
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

// serving counts the pods that are available and stay so: not those that may go at any moment, and
// not replacements on nodes that are under maintenance themselves.
func (s *situation) serving() int {
	misplaced := map[string]bool{}
	for _, p := range s.replacements() {
		misplaced[p.Name] = !p.staysUp
	}
	n := 0
	for i := range s.pods {
		p := &s.pods[i]
		mayGo := p.evacuation != nil && !isOurTurn(p.evacuation)
		if !mayGo && !misplaced[p.Name] && s.isAvailable(p) {
			n++
		}
	}
	return n
}

// passedOn counts the available pods that the surge is not for, and that may go at any moment:
// their turns ended without a replacement.
func (s *situation) passedOn() int {
	n := 0
	for i := range s.pods {
		if p := &s.pods[i]; p.evacuation != nil && !isOurTurn(p.evacuation) && !s.isRecorded(p) && s.isAvailable(p) {
			n++
		}
	}
	return n
}

// floor is how many pods are to be available all the time. What an autoscaler adds because of the
// load counts, too.
func (s *situation) floor() int {
	r := s.target.record
	return int(max(r.Keep, surge.Replicas(s.deployment)-(r.To-r.Keep)))
}

// spare is how many available pods may go. That is how many there are beyond those that are to be
// available all the time or, where others of the Deployment are sick, how many replacements are
// available for which no pod has gone yet: the sick ones get no better by waiting.
func (s *situation) spare() int {
	r, handed := s.target.record, len(s.handedOver())
	spare := s.serving() - s.floor()
	gone := s.gone()
	extra, replacements := int(r.To-r.Keep), s.replacements()
	if len(replacements) < extra+gone {
		return spare
	}
	for _, p := range replacements {
		if !p.staysUp || !s.isAvailable(p) {
			return spare
		}
	}
	return max(spare, min(len(replacements)-gone, extra)-handed-s.passedOn())
}

// gone counts the pods that have left under the surge: as many replacements are used up.
func (s *situation) gone() int {
	gone := s.target.record.Gone + len(s.target.record.Evacuations) - len(s.handedOver())
	for _, p := range s.leaving() {
		if s.isRecorded(p) {
			gone--
		}
	}
	return gone
}

// unsettled says what keeps the Deployment from being scaled now; "" if nothing does. While it
// rolls out, a surge would be spread over its ReplicaSets, and the rollout replaces the pods
// anyway. That the cache shows as many pods as there should be says that it has seen what the last
// scale-down took.
func (s *situation) unsettled() string {
	d, want := s.deployment, surge.Replicas(s.deployment)
	switch {
	case d.Status.ObservedGeneration < d.Generation:
		return "its latest change has not been seen by the deployment controller"
	case s.isRolloutIncomplete():
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

// isRolloutStuck reports whether the rollout that is waited for has made no progress within the
// Deployment's own progressDeadlineSeconds.
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

// isRollingOut says whether a rollout is under way that was not there when the surge started.
func (s *situation) isRollingOut() bool {
	return s.activeReplicaSets > 1 || s.deployment.Status.ObservedGeneration >= s.deployment.Generation &&
		s.deployment.Status.Replicas != s.deployment.Status.UpdatedReplicas
}

// replicaFailure says what the ReplicaSet fails with, to be put at the end of a sentence.
func replicaFailure(d *appsv1.Deployment) string {
	for i := range d.Status.Conditions {
		if c := &d.Status.Conditions[i]; c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return ": " + c.Message
		}
	}
	return ""
}

// maxSurge returns how many replicas the Deployment allows itself beyond the given number of them,
// as far as one surge goes.
func maxSurge(d *appsv1.Deployment, replicas int32) int32 {
	return min(surge.Most(d, replicas), maxRecorded)
}

// lastSign is when the surge for an Evacuation last made progress or, if that could not be
// reported, when this leader took over.
func (s *situation) lastSign(evacuation *maintenancev1alpha1.Evacuation) time.Time {
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

// surplus is how many of the pods a taking back would remove.
func (s *situation) surplus() int32 {
	if r := s.target.record; r.isUp() {
		return max(0, surge.Replicas(s.deployment)-r.Keep)
	}
	return 0
}

// letsGo says whether the eviction API would let the pod go once the surge is taken back.
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

// goesByScaleDown says whether the pods can only go, or go best, with the scale-down that ends the
// surge.
func (s *situation) goesByScaleDown(pods []*pod) bool {
	return !slices.ContainsFunc(pods, func(p *pod) bool { return !s.leavesByScaleDown(p) })
}

func (s *situation) leavesByScaleDown(p *pod) bool {
	return surge.LeavesByScaleDown(s.deployment, s.target.autoscaler != nil, s.original(), s.mostExtra(), p.budgets)
}

// expectedFinish estimates when the replacements are available, from how long the pods that are
// there took. nil if there is nothing to go by.
func (s *situation) expectedFinish() *metav1.Time {
	var typical time.Duration
	for i := range s.pods {
		p := &s.pods[i]
		if at, ready := s.availableAt(p); ready {
			// A pod that became ready anew looks slow; the quickest tells most.
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
