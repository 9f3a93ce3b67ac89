// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/drain/surge"
)

// The last pods of a surge, as many as there are extra replicas, are exchanged: a scale-down of the
// extra replicas deletes them, and no other pod is started in their place. The surge reserves them
// from its beginning, since a pod that is up for eviction cannot be taken back.

const (
	// answerTTL is how long the API server's answer that a pod may leave counts.
	answerTTL = 10 * time.Second
	// askFor is how long one sync may start questions. It is shorter than answerTTL, so that the
	// first answers still count after the last one.
	askFor = 3 * time.Second
	// askAgain is the time after which a pod is asked for again that could not leave, and denyRetry
	// the same for a pod that a webhook has refused and that no eviction can remove.
	askAgain  = 5 * time.Second
	denyRetry = 30 * time.Second
	// laneTime is how long an exchange waits for pods that are up for eviction after one of them
	// has left, or for the rest of the replacements after one of them has become available. After
	// that these keep their extra replicas, and the others are exchanged.
	laneTime = 10 * time.Second
	// askedLong is the time after which Evacuations report that the API server has not agreed.
	askedLong = 10 * time.Second
	// roomTime is how long an exchange waits for a replacement that no node has room for, or that
	// cannot be created.
	roomTime = 30 * time.Second
	// costsAwaited is what pods wait for whose deletion costs cannot be written.
	costsAwaited = "the deletion costs of pods are written, which has failed and is tried again"
)

// consent is an answer to the question whether a pod may leave.
type consent struct {
	eviction.Consent
	at   time.Time
	text string
	// took is how long the API server took to answer.
	took time.Duration
}

// until returns the time until which the answer counts.
func (c consent) until() time.Time {
	switch c.Consent {
	case eviction.ConsentGiven:
		return c.at.Add(answerTTL)
	case eviction.ConsentLater:
		return c.at.Add(askAgain)
	case eviction.ConsentDenied:
		return c.at.Add(denyRetry)
	}
	return c.at
}

// letGo makes pods leave for which replacements are available. If more pods leave than there are
// extra replicas, these leave by eviction, and then the others by a scale-down. It returns the pods
// that wait. done is set if the decision scales down, or only waits for what a scale-down needs.
func (d *decision) letGo(s situation, leaving, handed []*pod) (waiting []*pod, done bool) {
	strays, ours := s.strays(), 0
	var recorded []*pod
	for _, p := range leaving {
		if s.isRecorded(p) {
			recorded = append(recorded, p)
		}
		if !slices.Contains(strays, p) {
			ours++
		}
	}
	others := d.notReady(s, leaving)
	evicted, exchanged := d.divide(s, leaving, recorded, ours, others.sick)
	stuck, spare := 0, d.spare(s)
	if ours > 0 {
		var available int
		stuck, available = d.countStuck(s, handed)
		spare += available
	}
	if len(evicted) == 0 {
		evicted, done = d.exchange(s, others, exchanged, len(handed)-stuck, spare)
	}
	waiting = d.handOver(s, evicted, spare)
	for _, p := range leaving {
		if !slices.Contains(evicted, p) {
			waiting = append(waiting, p)
		}
	}
	return waiting, done
}

// spare returns how many available pods may leave. This is the number above floor or, if other pods
// of the Deployment do not recover, the number of available replacements for which no pod has left
// yet: waiting for these pods would not help. It waits for them for at most half of the surge
// timeout, since a pod may be ready again and again without becoming available, and the end of the
// turns would cost the replacements. also has strays that count as replacements here.
func (d *decision) spare(s situation, also ...*pod) int {
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
	if d.awaitsRecovery(s, s.remaining(also...)) && !d.isStalled(s, s.timeout/2) {
		return spare
	}
	return max(spare, min(len(replacements)-gone, extra)-handed-s.passedOn())
}

// divide divides the pods of the record into those that are evicted and those that are exchanged.
// ours is the number of all pods that leave by one or the other, and sick are pods that stay.
func (d *decision) divide(s situation, leaving, recorded []*pod, ours int, sick []*pod) (evicted, exchanged []*pod) {
	var either []*pod
	noScaleDown := s.noScaleDown(leaving, sick)
	for _, p := range recorded {
		switch {
		case s.isNeverEvicted(p):
			stays := noScaleDown
			if stays == "" && !canBeLowest(p) {
				stays = "its deletion cost can be lowered, which another client has changed"
			}
			if stays != "" {
				d.stay(p, stays)
				continue
			}
			exchanged = append(exchanged, p)
		case noScaleDown != "", !s.canBeExchanged(p), s.isDenied(p):
			evicted = append(evicted, p)
		case s.leavesByScaleDown(p):
			exchanged = append(exchanged, p)
		default:
			either = append(either, p)
		}
	}
	r := s.target.record
	n := min(surge.Evictions(ours, int(r.To-r.Keep), len(evicted))-len(evicted), len(either))
	return append(evicted, either[:n]...), append(exchanged, either[n:]...)
}

// noScaleDown returns what a scale-down of the leaving pods has to wait for because it would delete
// another pod, or would be reverted, as a phrase that follows "until"; "" if there is nothing. Pods
// that can be evicted are evicted then. sick are pods that have not been ready for a while.
func (s *situation) noScaleDown(leaving, sick []*pod) string {
	switch lowest := s.otherLowest(leaving); {
	case s.hasPaused():
		return "no pod of the Deployment is paused any more: the scale-down could delete a paused one"
	case len(s.autoscalers) > 0:
		return fmt.Sprintf("HorizontalPodAutoscaler %s no longer scales the Deployment: it would revert the scale-down", s.autoscalers[0].Name)
	case lowest != nil:
		return fmt.Sprintf("pod %s is deleted or no longer has the lowest deletion cost: the scale-down would delete it first", lowest.Name)
	case len(sick) > 0:
		return fmt.Sprintf("pod %s is ready or deleted: it has not been ready for %s, and the scale-down would delete it first",
			sick[0].Name, sickAfter)
	}
	return ""
}

// stay notes what a pod waits for that no eviction can remove.
func (d *decision) stay(p *pod, until string) {
	if d.stays == nil {
		d.stays = map[types.UID]string{}
	}
	d.stays[p.UID] = until
}

// canBeExchanged reports whether a scale-down may delete the pod and would choose it.
func (s *situation) canBeExchanged(p *pod) bool {
	if deletioncost.Keeps(p.Pod) || !canBeLowest(p) {
		return false
	}
	return !slices.ContainsFunc(p.budgets, func(b *policyv1.PodDisruptionBudget) bool {
		return !surge.KeepsBudget(b, s.original(), s.others[pdb.NameOf(b)])
	})
}

func uidsOf(pods []*pod) map[types.UID]struct{} {
	uids := make(map[types.UID]struct{}, len(pods))
	for _, p := range pods {
		uids[p.UID] = struct{}{}
	}
	return uids
}

// isDenied reports whether a webhook or policy has refused the pod a moment ago.
func (s *situation) isDenied(p *pod) bool {
	answer := s.memory.answers[p.UID]
	return answer.Consent == eviction.ConsentDenied && s.now.Before(answer.until())
}

// exchange scales down by as many pods as may be exchanged now, as soon as no others are about to
// become ready, these have the lowest deletion cost, and the API server has agreed. moving is the
// number of pods up for eviction, which need an extra replica each, and spare the number of
// available pods that may leave. exchange returns the pods that have to be evicted instead. done is
// set if the decision scales down, or only waits for answers, costs or evictions.
func (d *decision) exchange(s situation, others notReady, pods []*pod, moving, spare int) (evicted []*pod, done bool) {
	all := pods
	if pods = d.withoutResting(s, pods); len(pods) == 0 {
		d.memory.askedSince = s.memory.askedSince
		d.awaitConsent(s, all)
		return nil, false
	}
	if moving > 0 && !d.isLaneIdle(s) || s.deployment.Status.ObservedGeneration < s.deployment.Generation {
		return nil, false
	}
	hopeless, missing := others.hopeless, s.missing()
	hopelessNumber := len(hopeless) + missing
	if len(others.starting) > 0 || missing > 0 && !d.isStalled(s, roomTime) || hopelessNumber > 0 && moving > 0 {
		return nil, false
	}
	if len(hopeless) > 0 {
		d.surplus = uidsOf(hopeless)
	}
	// The wait also goes on while no pod can be chosen because of the same pods.
	hasWaited := len(others.recovering) > 0 && d.hasWaited(s)
	r := s.target.record
	most := min(len(pods), int(r.To-r.From)-moving-hopelessNumber)
	chosen := s.choose(pods, most, spare)
	if len(chosen) == 0 && spare > 0 {
		if budget := s.closedBudget(pods); budget != "" {
			d.awaits = fmt.Sprintf("PodDisruptionBudget %s allows a disruption", budget)
		}
	}
	if len(chosen) == 0 || len(chosen) < most && !d.isStalled(s, laneTime) {
		return nil, false
	}
	switch {
	case hasWaited:
		// Another pod may be unready each time. If the surge ended, the replacements would be lost.
		return slices.DeleteFunc(chosen, s.isNeverEvicted), false
	case len(others.recovering) > 0:
		return nil, false
	case d.awaitsAnswers(s):
		d.awaits = "evictions in flight have ended"
		return nil, true
	case d.awaitsReplicaSet(s):
		d.awaits = "the ReplicaSet has replaced the pods that have left"
		return nil, true
	}
	if d.awaits = s.unconfirmed(chosen); d.awaits != "" {
		d.wakeAt(s.now.Add(removeRetry))
		return nil, true
	}
	if chosen = d.agreed(s, chosen); len(chosen) == 0 {
		d.awaitConsent(s, all)
		return nil, true
	}
	if awaits, failed := d.awaitsLowest(s, chosen, hopeless); failed {
		// The scale-down would delete other pods.
		d.awaits = costsAwaited
		return slices.DeleteFunc(chosen, s.leavesByScaleDown), false
	} else if awaits {
		if !s.now.Before(d.memory.costsSince.Add(costTimeout)) {
			d.awaits = costsAwaited
		}
		return nil, true
	}
	if len(s.unreadyOthers(chosen)) > len(hopeless) || s.otherLowest(chosen) != nil {
		// The scale-down would delete these other pods, for which the API server was not asked.
		return slices.DeleteFunc(chosen, s.isNeverEvicted), false
	}
	if budget := s.outdatedBudget(chosen); budget != "" {
		d.awaits = fmt.Sprintf("the status of PodDisruptionBudget %s no longer counts pods that are not healthy any more", budget)
		d.keepsClaim = true
		d.wakeAt(s.now.Add(removeRetry))
		return nil, true
	}
	d.remove(s, chosen, hopelessNumber)
	return nil, true
}

// remove scales down by the number of the chosen pods, which have the lowest deletion cost, and of
// the hopeless replacements, which are not ready or do not exist. The ReplicaSet controller deletes
// the chosen pods and those of the replacements that exist.
func (d *decision) remove(s situation, chosen []*pod, hopeless int) {
	r := s.target.record
	d.memory.dropped = nil
	d.memory.delivered, d.removed = s.now, chosen
	lower := *r
	if lower.To -= int32(len(chosen) + hopeless); lower.To == r.From {
		d.revertSurge(s)
	} else {
		d.scale = &scaling{value: &lower.To, record: &lower}
	}
	for _, p := range chosen {
		d.memory.dropped = append(d.memory.dropped, p.UID)
		d.events = append(d.events, event{
			eventType: corev1.EventTypeNormal, reason: EventReplaced, action: actionRelease, pod: p.Pod,
			message: fmt.Sprintf("The pod leaves%s: another replica is available in its place, and Deployment %s is scaled back",
				p.purpose, s.deployment.Name),
		})
	}
}

// withoutResting returns the pods that the API server has not refused a moment ago.
func (d *decision) withoutResting(s situation, pods []*pod) []*pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p *pod) bool {
		answer := s.memory.answers[p.UID]
		if answer.Consent == eviction.ConsentGiven || !s.now.Before(answer.until()) {
			return false
		}
		d.wakeAt(answer.until())
		return true
	})
}

// awaitConsent sets what the exchange of these pods awaits if all replacements are available and
// the API server has not agreed for a while.
func (d *decision) awaitConsent(s situation, pods []*pod) {
	since := d.memory.askedSince
	if len(pods) == 0 || since.IsZero() || !d.isPast(s, since.Add(askedLong)) || s.trouble() != otherReplicas {
		return
	}
	d.awaits = "the API server agrees that pods may leave"
	if budget := s.closedBudget(pods); budget != "" {
		d.awaits = fmt.Sprintf("PodDisruptionBudget %s allows a disruption", budget)
	}
}

// isLaneIdle reports whether no pod of the surge has left for a while, and none has become up for
// eviction.
func (d *decision) isLaneIdle(s situation) bool {
	at := latest(d.memory.goneAt, d.memory.delivered).Add(laneTime)
	if s.now.Before(at) {
		d.wakeAt(at)
		return false
	}
	return true
}

// countStuck counts the pods that are up for eviction and cannot leave, whatever their budgets
// allow, because a webhook refuses them, for example. They leave their extra replicas to others.
// available is the number of these that are available.
func (d *decision) countStuck(s situation, handed []*pod) (stuck, available int) {
	count := func(p *pod) {
		if stuck++; s.isAvailable(p) {
			available++
		}
	}
	for _, p := range handed {
		if p.isEvicting {
			continue
		}
		switch _, reason := p.blockedSince(); reason {
		case v1alpha1.ReasonEvictionDenied, v1alpha1.ReasonEvictionForbidden, v1alpha1.ReasonEvictionError:
			count(p)
		case "":
			if s.isDenied(p) {
				d.wakeAt(s.memory.answers[p.UID].until())
				count(p)
			}
		}
	}
	return stuck, available
}

// missing returns how many pods of the Deployment do not exist because they cannot be created. A
// quota can cause that.
func (s *situation) missing() int {
	if createFailure(s.deployment) == "" {
		return 0
	}
	return max(0, int(surge.Replicas(s.deployment))-len(s.pods))
}

// unreadyOthers returns the pods that are not ready and not among these. A scale-down would delete
// them first, whatever their deletion costs are.
func (s *situation) unreadyOthers(pods []*pod) (others []*pod) {
	known := uidsOf(pods)
	for i := range s.pods {
		p := &s.pods[i]
		if _, is := known[p.UID]; !is && !pdb.IsReady(p.Pod) {
			others = append(others, p)
		}
	}
	return others
}

// notReady has the pods that are not ready and do not wait to leave. A scale-down would delete them
// first.
type notReady struct {
	// recovering became unready, or were created, less than sickAfter ago. starting are
	// replacements for which an exchange waits longer, and hopeless those for which it no longer
	// waits. sick are pods that are older than the surge.
	recovering, starting, hopeless, sick []*pod
}

// notReady returns the pods that are not ready and not among these.
func (d *decision) notReady(s situation, pods []*pod) (others notReady) {
	created := uidsOf(s.created())
	for _, p := range s.unreadyOthers(pods) {
		_, isCreated := created[p.UID]
		sick, _ := s.sickAt(p)
		hopeless := d.hopelessAt(s, p)
		switch {
		case isCreated && !s.now.Before(hopeless):
			others.hopeless = append(others.hopeless, p)
		case s.now.Before(sick):
			others.recovering = append(others.recovering, p)
		case isCreated:
			others.starting = append(others.starting, p)
		default:
			others.sick = append(others.sick, p)
		}
		for _, at := range []time.Time{sick, hopeless} {
			if s.now.Before(at) {
				d.wakeAt(at)
			}
		}
	}
	return others
}

// hopelessAt returns the time from which an exchange no longer waits for a replacement that is not
// ready.
func (d *decision) hopelessAt(s situation, p *pod) time.Time {
	recovered, _ := s.sickAt(p)
	at := latest(d.memory.movedAt().Add(s.timeout), recovered)
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			if full := c.LastTransitionTime.Add(roomTime); full.Before(at) {
				return full
			}
		}
	}
	return at
}

// noteAvailable records how many replacements have been available at the same time, and the time at
// which that number last rose. A replacement that flaps counts once.
func (d *decision) noteAvailable(s situation) {
	replacements, available := s.replacements(), 0
	for _, p := range replacements {
		if s.isAvailable(p) {
			available++
		}
	}
	// Those that a scale-down has deleted no longer count.
	d.memory.available = min(s.memory.available, len(replacements))
	if available > d.memory.available {
		d.memory.available, d.memory.availableAt = available, s.now
	}
}

// movedAt returns the time at which a further replacement last became available, or a pod left.
func (m *memory) movedAt() time.Time { return latest(m.goneAt, m.availableAt) }

// isStalled reports whether no further replacement has become available, and no pod has left, for
// some time.
func (d *decision) isStalled(s situation, after time.Duration) bool {
	return d.isPast(s, d.memory.movedAt().Add(after))
}

// isPast reports whether a time has passed. If not, the Deployment is synced again at that time.
func (d *decision) isPast(s situation, at time.Time) bool {
	if s.now.Before(at) {
		d.wakeAt(at)
		return false
	}
	return true
}

// hasWaited reports whether half of the surge timeout has passed since the exchange first waited
// for pods to recover without progress since then.
func (d *decision) hasWaited(s situation) bool {
	if d.memory.recoverySince.Before(d.memory.movedAt()) {
		d.memory.recoverySince = s.now
	}
	return d.isPast(s, d.memory.recoverySince.Add(s.timeout/2))
}

// choose returns at most as many pods as given, of which at most as many as spare are available,
// and as many are ready as their budgets allow. It begins with the pods that a scale-down would
// delete first whatever the costs of others are, and then those that were chosen before.
func (s *situation) choose(pods []*pod, most, spare int) (chosen []*pod) {
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b *pod) int {
		return cmp.Or(compareBool(pdb.IsReady(a.Pod), pdb.IsReady(b.Pod)), -compareBool(isOwnLowest(a), isOwnLowest(b)),
			-compareBool(deletioncost.IsLowered(a.Pod), deletioncost.IsLowered(b.Pod)))
	})
	replicas, under := surge.Replicas(s.deployment), map[types.NamespacedName]int32{}
	for _, p := range pods {
		if len(chosen) >= most {
			break
		}
		isAvailable := s.isAvailable(p)
		// A pod that is not available needs no replacement, but do not choose it while the
		// ReplicaSet still has to create pods: after the scale-down it would create one pod less,
		// or delete another pod, and this one would stay.
		if isAvailable && spare <= 0 || !isAvailable && len(s.pods) < int(replicas)-s.missing() {
			continue
		}
		// Budgets also count pods that are ready but not available yet.
		if pdb.IsReady(p.Pod) {
			if !s.isNeverEvicted(p) && slices.ContainsFunc(p.budgets, func(b *policyv1.PodDisruptionBudget) bool {
				count := under[pdb.NameOf(b)] + 1
				return surge.Removable(b, replicas, count) < count
			}) {
				continue
			}
			for _, b := range p.budgets {
				under[pdb.NameOf(b)]++
			}
		}
		if isAvailable {
			spare--
		}
		chosen = append(chosen, p)
	}
	return chosen
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// agreed returns the pods for which the API server has agreed a moment ago. It has to be asked for
// the others, unless that takes so long that the first answers no longer count: a webhook may take
// as long for each answer.
func (d *decision) agreed(s situation, chosen []*pod) (agreed []*pod) {
	var unasked []*pod
	first := s.now
	for _, p := range chosen {
		answer := s.memory.answers[p.UID]
		if answer.Consent != eviction.ConsentGiven || !s.now.Before(answer.until()) {
			unasked = append(unasked, p)
			continue
		}
		agreed = append(agreed, p)
		if sent := answer.at.Add(-answer.took); sent.Before(first) {
			first = sent
		}
	}
	if len(unasked) > 0 && (len(agreed) == 0 || s.now.Before(first.Add(askFor))) {
		// The wait for deletion costs goes on.
		d.ask, d.memory.costsSince = unasked, s.memory.costsSince
		if d.memory.askedSince = s.memory.askedSince; d.memory.askedSince.IsZero() {
			d.memory.askedSince = s.now
		}
		return nil
	}
	return agreed
}
