// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/drain/surge"
)

const (
	// sickAfter is how long a pod may be unready before it leaves without a replacement.
	sickAfter = time.Minute
	// hardEnd limits how long this evacuator stays active for a pod, even if there is progress. It
	// is a multiple of the surge timeout.
	hardEnd = 3
)

// original returns the replica count without the surge.
func (s *situation) original() int32 {
	if r := s.target.record; r.isUp() {
		return r.Keep
	}
	return surge.AutoscaledTo(s.deployment, s.target.autoscaler)
}

// mostExtra returns the maximum number of extra replicas of a surge, at least one.
func (s *situation) mostExtra() int32 {
	original := s.original()
	most := maxSurge(s.deployment, original)
	if a := s.target.autoscaler; a != nil {
		most = min(most, a.Spec.MaxReplicas-original)
	}
	if r := s.target.record; r.isUp() {
		most = max(most, r.To-r.Keep)
	}
	return max(1, most)
}

// refusalOf returns the reason why the budgets of a pod rule out a surge.
func (s *situation) refusalOf(p *pod) surge.Refusal {
	if len(p.budgets) == 0 {
		return surge.Refusal{}
	}
	return surge.RefuseBudgets(s.deployment, s.target.autoscaler, p.budgets, s.original(), s.mostExtra())
}

// decline reports completion for pods whose budgets never allow an eviction, and returns the other
// pods.
func (d *decision) decline(s situation, leaving []*pod) (waiting []*pod) {
	why, declined := "", 0
	for _, p := range leaving {
		refusal := s.refusalOf(p)
		if refusal.IsZero() {
			waiting = append(waiting, p)
			continue
		}
		why = refusal.String()
		declined++
		d.endWithout(p, fmt.Sprintf("Deployment %s %s.", s.deployment.Name, why))
	}
	if declined > 0 {
		d.declineEvent(declined, why)
	}
	return waiting
}

// endWithout reports completion for a pod that has no replacement.
func (d *decision) endWithout(p *pod, why string) {
	d.ended = append(d.ended, p)
	d.complete(p, why)
}

func (d *decision) declineEvent(pods int, why string) {
	d.event(corev1.EventTypeNormal, EventSurgeDeclined, actionSurge,
		"The next evacuator is active for %d pods, which get no replacement: the Deployment %s", pods, why)
}

// endTurns reports completion for pods that no longer wait for a replacement, and returns the other
// pods.
func (d *decision) endTurns(s situation, leaving []*pod) (waiting []*pod) {
	holds := s.holdsTurns()
	// It is the same for all pods, of which there may be thousands.
	trouble := sync.OnceValue(s.trouble)
	var ended []*pod
	for _, p := range leaving {
		if holds && s.isAvailable(p) {
			waiting = append(waiting, p)
		} else if why := d.endOf(s, p, trouble); why != "" {
			ended = append(ended, p)
			d.endWithout(p, why+s.refusal(p))
		} else {
			waiting = append(waiting, p)
		}
	}
	d.noteTried(s, ended...)
	return waiting
}

// noteTried records that the surge for the pods is active until now. If a pod has waited long
// enough after its previous try, this is a new try. It copies the record of all pods, so it is
// called once for all pods of a decision.
func (d *decision) noteTried(s situation, pods ...*pod) {
	if len(pods) == 0 {
		return
	}
	tried := maps.Clone(d.memory.tried)
	if tried == nil {
		tried = map[types.UID]try{}
	}
	for _, p := range pods {
		last, known := tried[p.UID]
		if known && s.now.After(last.restsUntil(s.timeout)) {
			last.before++
		}
		last.at = s.now
		tried[p.UID] = last
	}
	d.memory.tried = tried
}

// stillTried returns the tries of the pods that still exist.
func (s *situation) stillTried() map[types.UID]try {
	var tried map[types.UID]try
	for i := range s.pods {
		if last, ok := s.memory.tried[s.pods[i].UID]; ok {
			if tried == nil {
				tried = map[types.UID]try{}
			}
			tried[s.pods[i].UID] = last
		}
	}
	return tried
}

// takeUp makes this evacuator active again for declined pods, if the reason to decline has ended
// and the pods have waited long enough.
func (d *decision) takeUp(s situation) {
	declined := s.declined()
	if len(declined) == 0 || s.reasonToDecline() != "" {
		return
	}
	if a := s.target.autoscaler; a != nil && !s.target.record.isUp() {
		if !surge.RefuseAutoscaled(s.autoscalers, a, a.Spec.MaxReplicas-s.original()).IsZero() {
			return
		}
	}
	for _, p := range declined {
		if s.refusalOf(p).IsZero() {
			d.reports = append(d.reports, report{evacuation: p.evacuation, takesUp: true, message: fmt.Sprintf(
				"Deployment %s can be scaled up now, so that another replica takes the place of the pod before it leaves.", s.deployment.Name)})
		}
	}
}

// endOf returns the reason why this evacuator reports completion for a pod without a replacement,
// "" if it stays active. It stays active while the pod's budget does not allow its eviction, unless
// more replicas would not help either. It also stays active until ready replacements become
// available.
func (d *decision) endOf(s situation, p *pod, trouble func() string) string {
	// When a reason to stay has ended, the replacement gets the whole surge timeout.
	stood := s.memory.stood.Add(s.timeout)
	quiet, end := latest(s.lastSign(p.evacuation).Add(s.timeout), stood), latest(s.hardEndOf(p), stood)
	sick, isReady := s.sickAt(p)
	if allowsEviction(p, s.surplus()) {
		switch {
		case !isReady && !s.now.Before(sick):
			return fmt.Sprintf("The pod has not been ready for %s: the evacuator does not wait for a replacement.", sickAfter)
		case s.isRolloutStuck():
			return fmt.Sprintf("The rollout of Deployment %s is stuck (%s): the evacuator does not wait for a replacement.",
				s.deployment.Name, progressDeadlineExceeded)
		case d.isAboutToBeAvailable(s, end):
			return ""
		case !s.now.Before(quiet):
			return fmt.Sprintf("No progress with a replacement for %s: %s", s.timeout, trouble())
		case !s.now.Before(end):
			return fmt.Sprintf("No replacement is available after %s: %s", hardEnd*s.timeout, trouble())
		}
		if !isReady {
			d.wakeAt(sick)
		}
	} else if !s.now.Before(end) && !d.lacksReplacements(s, p) {
		return fmt.Sprintf("The pod could not leave within %s, and PodDisruptionBudget %s would not allow a disruption with more replicas either.",
			hardEnd*s.timeout, p.budgets[0].Name)
	}
	for _, at := range []time.Time{quiet, end} {
		if s.now.Before(at) {
			d.wakeAt(at)
		}
	}
	return ""
}

// isAboutToBeAvailable reports whether all replacements are ready, so that they become available at
// a known time. This evacuator waits for that time even with a short surge timeout, but not longer
// than minReadySeconds after end, since a replacement may become unready and ready again.
func (d *decision) isAboutToBeAvailable(s situation, end time.Time) bool {
	last := d.lastAvailable(s)
	if bound := end.Add(time.Duration(s.deployment.Spec.MinReadySeconds) * time.Second); !s.now.Before(last) || !s.now.Before(bound) {
		return false
	}
	d.wakeAt(last)
	return true
}

// lastAvailable computes, once for all pods, when the last replacement becomes available; zero if
// one is missing, is not ready or is on a node under maintenance.
func (d *decision) lastAvailable(s situation) time.Time {
	if d.available != nil {
		return *d.available
	}
	d.available = &time.Time{}
	r := s.target.record
	if !r.isUp() || s.isRollingOut() {
		return *d.available
	}
	replacements := s.replacements()
	if len(replacements) < int(r.To-r.Keep) {
		return *d.available
	}
	var last time.Time
	for _, p := range replacements {
		at, ready := s.availableAt(p)
		if !ready || !p.staysUp {
			return *d.available
		}
		last = latest(last, at)
	}
	d.available = &last
	return last
}

// hardEndOf returns the latest time at which this evacuator reports completion for a pod. When a
// pod leaves because its replacement is available, the time of the other pods starts again, since a
// large Deployment is replaced in steps.
func (s *situation) hardEndOf(p *pod) time.Time {
	since := s.lastSign(p.evacuation)
	if stamp := p.evacuation.Status.ActiveEvacuatorSince; stamp != nil {
		since = stamp.Time
	}
	if s.memory.gone > 0 {
		since = latest(since, s.memory.goneAt)
	}
	return latest(latest(since, s.memory.delivered).Add(hardEnd*s.timeout), s.servingSince.Add(s.timeout))
}

// sickAt returns the time at which an unready pod has been unready for sickAfter.
func (s *situation) sickAt(p *pod) (at time.Time, isReady bool) {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.LastTransitionTime.Add(sickAfter), c.Status == corev1.ConditionTrue
		}
	}
	return p.CreationTimestamp.Add(sickAfter), false
}

// awaitsRecovery reports whether one of the pods is not available, and is expected to be: it has
// been ready for less than minReadySeconds, or is not ready and does not count as sick yet.
func (d *decision) awaitsRecovery(s situation, pods []*pod) bool {
	waits := false
	for _, p := range pods {
		at, isReady := s.availableAt(p)
		if !isReady {
			at, _ = s.sickAt(p)
		}
		if !s.isAvailable(p) && s.now.Before(at) {
			d.wakeAt(at)
			waits = true
		}
	}
	return waits
}

// shortage has the numbers of replacements that the surge lacks.
type shortage struct {
	// missing counts the replacements that are not available on a node without maintenance, and
	// sick the replacements that are not available on any node. toCome counts the replacements that
	// budgets do not expect yet.
	missing, sick, toCome int32
}

// shortage computes the shortage, once for all pods.
func (d *decision) shortage(s situation) shortage {
	if d.short != nil {
		return *d.short
	}
	extra := s.mostExtra()
	d.short = &shortage{missing: extra, sick: extra, toCome: extra}
	r := s.target.record
	if !r.isUp() {
		return *d.short
	}
	all := r.To - r.Keep + int32(s.gone())
	d.short = &shortage{missing: all, sick: all, toCome: max(0, r.To-surge.Replicas(s.deployment))}
	for _, p := range s.replacements() {
		if !s.isAvailable(p) {
			continue
		}
		d.short.sick--
		if p.staysUp {
			d.short.missing--
		}
	}
	return *d.short
}

// lacksReplacements reports whether the budget of a pod would allow its eviction if all
// replacements were available.
func (d *decision) lacksReplacements(s situation, p *pod) bool {
	short := d.shortage(s)
	if short.missing <= 0 {
		return false
	}
	if s.leavesByScaleDown(p) || len(p.budgets) != 1 || !pdb.IsCurrent(p.budgets[0]) {
		return true
	}
	status := &p.budgets[0].Status
	expected, healthy := status.ExpectedPods+short.toCome, status.CurrentHealthy+max(0, short.sick)
	desired := pdb.DesiredHealthy(p.budgets[0], expected)
	return min(healthy, expected) > desired || !pdb.IsReady(p.Pod) && desired > 0 && healthy >= desired
}

// holding returns the pods that must leave before the surge ends, although the next evacuator is
// already active for them.
func (s *situation) holding() []*pod {
	var kept []*pod
	for _, p := range s.handedOver() {
		if s.refusalOf(p).IsZero() {
			kept = append(kept, p)
		}
	}
	return kept
}

// isInVain reports whether all pods for which the next evacuator is active have been blocked for
// longer than the timeout although their replacements are available. Then the cause is not a lack
// of replicas.
func (d *decision) isInVain(s situation, handed []*pod) bool {
	if len(handed) == 0 {
		return false
	}
	since, blocked, reason := latest(d.memory.goneAt, d.memory.delivered, s.servingSince), time.Time{}, ""
	for _, p := range handed {
		blockedAt, why := p.blockedSince()
		if why == "" || !allowsEviction(p, 0) && d.lacksReplacements(s, p) {
			return false
		}
		blocked, reason = latest(blocked, blockedAt), why
	}
	since = latest(since, blocked)
	available := d.memory.availableAt
	if available.After(blocked.Add(hardEnd * s.timeout)) {
		// A replacement that comes and goes does not keep the surge, but the pod can leave now.
		available = available.Add(removeTime - s.timeout)
	}
	since = latest(since, available)
	if end := since.Add(s.timeout); s.now.Before(end) {
		d.wakeAt(end)
		return false
	}
	d.event(corev1.EventTypeWarning, EventSurgeInVain, actionRelease,
		"The pods to leave have been blocked for %s although replacements are available: %d (%s). The surge ends, and the pods wait without replacements",
		s.timeout, len(handed), reason)
	return true
}

// blockedSince returns the time since which eviction cannot remove a pod, and the reason; "" if it
// may remove the pod. The server does not evict a pod that only another client wants to evict, and
// does not know its answers. So there the budgets decide, and the time is that from which the
// client may evict the pod.
func (p *pod) blockedSince() (since time.Time, reason string) {
	status := &p.evacuation.Status
	if blocked := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionBlocked); blocked != nil && blocked.Status == metav1.ConditionTrue {
		return blocked.LastTransitionTime.Time, blocked.Reason
	}
	if protocol.OnlyEvictionAsks(p.evacuation) && !allowsEviction(p, 0) {
		return protocol.TurnOf(status).Since, v1alpha1.ReasonPodDisruptionBudget
	}
	return time.Time{}, ""
}

// noteGone records the number of pods that have left during the surge, and the time at which it
// last changed.
func (d *decision) noteGone(s situation) {
	if gone := s.gone(); gone != s.memory.gone || s.memory.goneAt.IsZero() {
		d.memory.gone, d.memory.goneAt = gone, s.now
	}
}
