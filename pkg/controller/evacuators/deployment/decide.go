// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/surge"
)

const (
	// maxResets is how often a user or controller may revert the replica count before the evacuator
	// stops scaling the Deployment. maxMisses is how many consecutive scale-downs may delete the
	// wrong pods before that.
	maxResets = 2
	maxMisses = 2
	// answerRetry is the time after which evictions in flight are checked again.
	answerRetry = 50 * time.Millisecond
	// replaceTime is how long a surge stays after a pod has left, so that the ReplicaSet controller
	// can replace the pod, and how long evictions wait at least for that controller after a
	// scale-down that may delete any pod.
	replaceTime = 10 * time.Second
	// coverRetry is the time after which a surge is checked again that stays for pods which a
	// maintenance covers: the maintenance may end without an event that this controller handles.
	coverRetry = time.Minute
	// worthDropping is the minimum number of pods that must have left before their names are
	// removed from a full record.
	worthDropping = maxRecorded / 4
)

// decision is the outcome of one sync, in the order in which it is applied.
type decision struct {
	// ask are the pods for which the API server is asked, one after the other, whether they may
	// leave. The next decision has the answers.
	ask []*pod
	// restore and lower are the pods whose deletion cost has to change before a scale-down.
	restore, lower []*corev1.Pod
	// surplus are the replacements that a scale-down has to delete, nil if there are none in
	// particular.
	surplus map[types.UID]struct{}
	// awaits is what a scale-down waits for, as a phrase that follows "until"; "" if the wait is
	// short.
	awaits string
	// stays is the same for pods that only a scale-down can delete and that it may not delete now.
	stays map[types.UID]string
	// removed are the pods that the scale-down has to delete so that they leave.
	removed []*pod
	// keepsClaim is set if a scale-down only waits for the status of a budget. A claim stays then:
	// if evictions began again, each of them would make the status old again.
	keepsClaim bool
	// ended are the pods for which this evacuator reports completion although they have no
	// replacement.
	ended []*pod
	// short caches which replacements the surge lacks, and available the result of lastAvailable.
	short     *shortage
	available *time.Time
	// scale is the change of the target; nil if there is none.
	scale   *scaling
	reports []report
	events  []event
	memory  memory
	// wake is the time at which to reconcile again without an event; zero means never.
	wake time.Time
	// idle is set if no pod waits for this evacuator, and there is nothing to revert.
	idle bool
}

// scaling is a write to the target: its replica count together with the record. During a surge the
// count is only written if this evacuator set the current count. Otherwise the surge is over, and
// the current count stays.
type scaling struct {
	// value is the new replica count; nil keeps it.
	value *int32
	// record is the new record; nil removes the annotation.
	record *record
}

type report struct {
	evacuation *v1alpha1.Evacuation
	message    string
	// progress sets the progress timestamp. completed makes the next evacuator active.
	progress, completed bool
	// takesUp makes this evacuator active again after it has declined.
	takesUp  bool
	expected *metav1.Time
}

// decide decides about a Deployment. It performs no writes.
func decide(s situation) decision {
	if s.memory.holds {
		// The previous decision held the pods until now, even if no sync ran in between.
		s.memory.stood = s.now
	}
	// Cache these before the situation is copied.
	s.recordedPods()
	s.replacements()
	d := decision{memory: s.memory}
	d.memory.standing, d.memory.holds, d.memory.settled, d.memory.costsSince = Standing{}, false, nil, time.Time{}
	d.memory.askedSince = time.Time{}
	for _, evacuation := range s.orphans {
		d.reports = append(d.reports, report{evacuation: evacuation, completed: true, message: "The pod no longer belongs to a Deployment."})
	}
	d.warn(s)
	r := s.target.record
	switch {
	case s.target.garbage:
		d.scale = &scaling{value: s.target.origin}
	case r.isUp() && s.target.value != r.To:
		d.dissolve(s)
	case s.deployment == nil:
		d.revertSurge(s)
	default:
		if why := s.reasonToDecline(); why != "" {
			d.giveUp(s, why)
		} else if r.isUp() {
			d.hold(s)
		} else {
			d.start(s)
		}
		d.takeUp(s)
		d.memory.standing, d.memory.holds, d.memory.settled = s.standing(), s.holdsTurns(), s.settled()
	}
	rests, counted := d.rests(s), d.memory.misses > 0 || len(d.memory.tried) > 0
	d.idle = !rests && !s.hasPaused() && !(counted && s.isAsked()) && len(s.leaving()) == 0 && len(s.declined()) == 0 && len(s.orphans) == 0 && r == nil && !s.target.garbage && d.scale == nil
	return d
}

// warn adds events about invalid annotations, one for each text.
func (d *decision) warn(s situation) {
	for _, text := range s.warnings {
		if !slices.Contains(s.memory.warned, text) && len(s.leaving()) > 0 {
			d.memory.warned = append(slices.Clone(d.memory.warned), text)
			d.event(corev1.EventTypeWarning, EventInvalidAnnotation, actionRead, "%s", text)
		}
	}
}

// reasonToDecline returns the reason why the Deployment is not scaled up, as a phrase that follows
// its name; "" if there is none. The reason may also arise during a surge, which is then reverted.
func (s *situation) reasonToDecline() string {
	original := surge.Replicas(s.deployment)
	if r := s.target.record; r.isUp() {
		original = r.Keep
	}
	if s.off {
		return "is not scaled up: the evacuator is disabled (--evacuators)"
	}
	if why := surge.Refuse(s.deployment, original, s.oneNodeClaims); !why.IsZero() {
		return why.String()
	}
	switch {
	case s.target.record.resets() >= maxResets:
		return fmt.Sprintf("cannot be scaled up: a user or controller has reverted its replicas %d times (remove the annotation %s to try again)",
			s.target.record.resets(), v1alpha1.AnnotationSurgeRecord)
	case s.isScaleRefused():
		return "cannot be scaled up: " + s.refused.text
	case s.now.Before(s.missedUntil()):
		return fmt.Sprintf("cannot use a surge: %d scale-downs in a row removed other pods than those with the lowest deletion cost", s.memory.misses)
	}
	return ""
}

// isScaleRefused reports whether scaling the Deployment has failed for longer than the surge
// timeout, and the next attempt is not due yet.
func (s *situation) isScaleRefused() bool {
	return !s.target.record.isUp() && s.refused.text != "" && !s.now.Before(s.refused.since.Add(s.timeout)) &&
		s.now.Before(s.refused.retryAt(s.timeout))
}

// missedUntil returns the time at which a surge is tried again after scale-downs that deleted the
// wrong pods; zero if it may be tried now.
func (s *situation) missedUntil() time.Time {
	if s.memory.misses < maxMisses {
		return time.Time{}
	}
	return s.memory.missedAt.Add(restAfter(s.memory.misses-maxMisses, s.timeout))
}

// rests reports whether a new surge, or a surge for one of the pods, has to wait after a failure,
// and sets wake to the end of the wait. Until then the Deployment must not become idle, since its
// failures would be forgotten.
func (d *decision) rests(s situation) bool {
	if s.deployment == nil {
		return false
	}
	rests := false
	if s.isScaleRefused() {
		rests = true
		d.wakeAt(s.refused.retryAt(s.timeout))
	}
	s.memory = d.memory
	if until := s.missedUntil(); s.now.Before(until) {
		rests = true
		d.wakeAt(until)
	}
	for i := range s.pods {
		if p := &s.pods[i]; p.evacuation != nil && !s.isRecorded(p) && s.rests(p) {
			rests = true
			d.wakeAt(s.memory.tried[p.UID].restsUntil(s.timeout))
		}
	}
	return rests
}

// dissolve ends a surge if a user or another controller has changed the replica count. It keeps the
// new replica count.
func (d *decision) dissolve(s situation) {
	r := s.target.record
	resets := r.Resets
	if s.target.value == r.From {
		resets++
	}
	d.scale, d.memory.highest = &scaling{}, nil
	if resets > 0 && s.isAsked() {
		d.scale.record = &record{UID: r.UID, Resets: resets}
	}
	d.event(corev1.EventTypeNormal, EventSurgeDissolved, actionRelease,
		"The surge is over: a user or controller has changed %s from %d to %d", s.target.field(), r.To, s.target.value)
}

// giveUp reverts a surge and reports completion for its pods. Pods that a maintenance still covers
// keep the surge.
func (d *decision) giveUp(s situation, why string) {
	leaving := s.leaving()
	if s.target.record.isUp() {
		d.noteGone(s)
		if !d.keepsSurge(s) && !d.withdraw(s, slices.Concat(leaving, s.handedOver())) {
			return
		}
	} else if s.target.record != nil && !s.isAsked() {
		d.scale = &scaling{}
	}
	_, ending := splitPaused(leaving)
	for _, p := range ending {
		d.complete(p, fmt.Sprintf("Deployment %s %s.", s.deployment.Name, why))
	}
	if len(ending) == 0 {
		return
	}
	d.declineEvent(len(ending), why)
}

// start starts a surge, if there are pods that have to leave.
func (d *decision) start(s situation) {
	leaving := s.leaving()
	if len(leaving) == 0 {
		if s.target.record != nil && !s.isAsked() {
			d.scale = &scaling{}
		}
		kept := memory{warned: d.memory.warned, tried: s.stillTried()}
		if s.isAsked() {
			kept.misses, kept.missedAt = s.memory.misses, s.memory.missedAt
		}
		d.memory = kept
		return
	}
	leaving = d.endTurns(s, d.decline(s, leaving))
	if len(leaving) == 0 {
		return
	}
	replicas := surge.AutoscaledTo(s.deployment, s.target.autoscaler)
	extra := min(s.extraFor(leaving), maxSurge(s.deployment, replicas))
	if a := s.target.autoscaler; a != nil {
		extra = min(extra, a.Spec.MaxReplicas-replicas)
		if why := surge.RefuseAutoscaled(s.autoscalers, a, extra); !why.IsZero() {
			d.giveUp(s, why.String())
			return
		}
	}
	if why := s.unsettled(); why != "" {
		d.say(s, leaving, int(s.deployment.Status.UpdatedReplicas), func(*pod) string {
			return fmt.Sprintf("Deployment %s is not scaled up yet: %s.", s.deployment.Name, why)
		}, nil)
		return
	}
	d.countMisses(s)
	s.memory = d.memory
	if why := s.reasonToDecline(); why != "" {
		d.giveUp(s, why)
		return
	}
	r := &record{
		UID: s.target.uid(&s), From: s.target.value, To: replicas + extra, Keep: replicas,
		Since: s.youngest(), Resets: s.target.record.resets(), Evacuations: namesOf(leaving),
	}
	d.scale = &scaling{value: &r.To, record: r}
	d.memory.highest, d.memory.saidAt = new(int), s.now
	d.memory.gone, d.memory.goneAt, d.memory.available = 0, s.now, 0
	d.sayScaled(s, r, leaving)
	d.event(corev1.EventTypeNormal, EventSurgeStarted, actionSurge, "%s is increased from %d to %d to replace pods before they leave: %d",
		s.target.field(), r.From, r.To, len(leaving))
}

// countMisses determines whether the last scale-down deleted the intended pods, and counts
// consecutive failures. It tells the pods apart by their UIDs.
func (d *decision) countMisses(s situation) {
	if len(s.memory.dropped) == 0 {
		return
	}
	d.memory.dropped, d.memory.misses = nil, 0
	if s.notRemoved() > 0 {
		d.memory.misses, d.memory.missedAt = s.memory.misses+1, s.now
	}
}

// notRemoved counts the pods of the last scale-down that still exist.
func (s *situation) notRemoved() int {
	left := 0
	for i := range s.pods {
		if slices.Contains(s.memory.dropped, s.pods[i].UID) {
			left++
		}
	}
	return left
}

// hold keeps a surge until its pods have left, which they may do as soon as their replacements are
// available.
func (d *decision) hold(s situation) {
	shrinks := s.hasTooMany()
	if !shrinks {
		d.countMisses(s)
	}
	d.noteGone(s)
	d.noteAvailable(s)
	reports, events := len(d.reports), len(d.events)
	// Paused pods neither leave nor end their turns.
	paused, others := splitPaused(s.leaving())
	leaving, handed := slices.Concat(paused, d.endTurns(s, d.decline(s, others))), s.holding()
	// The wait before the next try for these pods begins with the end of the surge.
	d.noteTried(s, handed...)
	if len(leaving) == 0 && !d.keepsSurge(s) && (len(handed) == 0 || d.isInVain(s, handed)) {
		if !d.withdraw(s, slices.Concat(d.ended, s.handedOver())) {
			// The next decision reports completion when it ends the surge.
			d.reports, d.events = d.reports[:reports], d.events[:events]
		}
		return
	}
	// A rollout may have more pods at any time.
	shrinks = shrinks && !s.isRollingOut()
	if !shrinks && d.widen(s, leaving, len(handed)) {
		return
	}
	_, leaving = splitPaused(leaving)
	switch {
	case s.isRollingOut():
		d.restoreCosts(s, slices.Concat(leaving, handed))
	case shrinks:
		d.awaits = fmt.Sprintf("the ReplicaSet has deleted pods: the Deployment has %d and should have %d", len(s.pods), surge.Replicas(s.deployment))
	default:
		var done bool
		if leaving, done = d.letGo(s, d.sendAway(s, leaving), handed); done && d.awaits == "" {
			return
		}
	}
	progress := s.progressMessage()
	if len(d.stays) > 0 && s.trouble() != otherReplicas {
		d.stays = nil // the replacements come first
	}
	message := func(p *pod) string {
		scaled := s.scaledMessage(s.target.record, p.purpose)
		if awaits := cmp.Or(d.stays[p.UID], d.awaits); awaits != "" {
			return scaled + "; the pod waits until " + awaits + "."
		}
		return scaled + progress
	}
	d.say(s, leaving, s.score(), message, s.finish())
}

// keepsSurge reports whether the surge must not be taken back now, since maintenances cover pods
// that no evacuator can replace: they are paused, or their Evacuations do not exist yet after a
// pause. Whatever their budgets allow, the scale-down could delete these pods in place of the
// replacements: the ReplicaSet controller prefers pods that are not ready, and among pods with the
// same cost those on a node with several ready ones.
func (d *decision) keepsSurge(s situation) bool {
	if !slices.ContainsFunc(s.pods, func(p pod) bool { return p.isPaused || p.isCovered }) {
		return false
	}
	d.wakeAt(s.now.Add(coverRetry))
	return true
}

// withdraw reverts the surge while some of its pods still exist, and reports whether it does so. It
// first restores the deletion cost of these pods, and lowers that of the replacements. Otherwise
// the scale-down would delete these pods, although their budgets protect them, instead of the
// replacements. It also waits for evictions in flight, since each of them may delete one more pod
// in addition to the scale-down, and for an earlier scale-down, since it needs the costs.
func (d *decision) withdraw(s situation, remaining []*pod) bool {
	if d.awaitsRemoval(s) {
		return false
	}
	lowers := d.lowerReplacements(s)
	if d.restoreCosts(s, remaining) || lowers || d.awaitsAnswers(s) || d.awaitsReplicaSet(s) || d.awaitsAvailable(s) {
		return false
	}
	d.revertSurge(s)
	return true
}

// awaitsAnswers reports whether evictions of the Deployment's pods are in flight.
func (d *decision) awaitsAnswers(s situation) bool {
	if !slices.ContainsFunc(s.pods, func(p pod) bool { return p.isEvicting }) {
		return false
	}
	d.wakeAt(s.now.Add(answerRetry))
	return true
}

// awaitsRemoval reports whether the ReplicaSet has not deleted the pods of a scale-down yet.
func (d *decision) awaitsRemoval(s situation) bool {
	until := latest(s.memory.delivered, s.servingSince).Add(removeTime)
	if s.deployment == nil || !s.hasTooMany() || s.isRollingOut() || !s.now.Before(until) {
		return false
	}
	d.wakeAt(until)
	return true
}

// awaitsReplicaSet reports whether a pod has left a moment ago and the ReplicaSet has not replaced
// it. Its controller may still count the pod among those that stay after the scale-down, and then
// deletes one of the others too many.
func (d *decision) awaitsReplicaSet(s situation) bool {
	until := d.memory.goneAt.Add(replaceTime)
	if s.deployment == nil || s.gone() == 0 || !s.now.Before(until) || s.isRollingOut() ||
		len(s.pods) >= int(surge.Replicas(s.deployment)) || replicaFailure(s.deployment) != "" {
		return false
	}
	d.wakeAt(until)
	return true
}

// extraFor returns how many extra replicas the leaving pods need. Each pod needs one. If a budget
// in percent needs more before it allows a disruption, the number is higher.
func (s *situation) extraFor(leaving []*pod) int32 {
	extra := int32(len(leaving))
	for _, p := range leaving {
		if len(p.budgets) == 1 && !s.leavesByScaleDown(p) {
			extra = max(extra, surge.ExtraFor(p.budgets[0], s.original(), s.mostExtra()))
		}
	}
	return extra
}

// youngest returns the creation time of the youngest pod, according to the clock of the host
// cluster. Replacements are not created before that time.
func (s *situation) youngest() *metav1.Time {
	var at metav1.Time
	for i := range s.pods {
		if created := s.pods[i].CreationTimestamp; at.Before(&created) {
			at = created
		}
	}
	return &at
}

// widen adds pods that were asked to leave after the start of the surge to the record. It scales up
// further for them if the Deployment allows it.
func (d *decision) widen(s situation, leaving []*pod, handed int) bool {
	r := s.target.record
	newcomers := slices.DeleteFunc(slices.Clone(leaving), s.isRecorded)
	if len(newcomers) < len(leaving) || handed > 0 {
		// The replacement of a pod that has returned would also return.
		strays := s.strays()
		newcomers = slices.DeleteFunc(newcomers, func(p *pod) bool {
			return isReturned(p) || slices.Contains(strays, p) && !d.isDue(s, p)
		})
	}
	wider := *r
	if len(newcomers) > maxRecorded-len(r.Evacuations) {
		wider.dropGone(s)
	}
	newcomers = newcomers[:min(len(newcomers), max(0, maxRecorded-len(wider.Evacuations)))]
	if len(newcomers) == 0 {
		return false
	}
	extra := min(int32(len(leaving)+handed), maxSurge(s.deployment, r.Keep))
	if a := s.target.autoscaler; a != nil {
		extra = min(extra, a.Spec.MaxReplicas-r.Keep)
	}
	wider.To = max(r.To, r.Keep+extra)
	// Keep the names of pods that have left: gone derives the number of used replacements from
	// them.
	wider.Evacuations = slices.Concat(wider.Evacuations, namesOf(newcomers))
	d.scale = &scaling{value: &wider.To, record: &wider}
	// Most pods that have waited for room in a full record have had a report. If there has been
	// progress, the next heartbeat restarts their deadlines and reports that they have joined.
	if d.hasProgressed(s.score()) {
		newcomers = slices.DeleteFunc(newcomers, func(p *pod) bool { return s.now.Before(nextHeartbeat(s.timeout, p)) })
	}
	d.sayScaled(s, &wider, newcomers)
	if len(wider.Evacuations) < maxRecorded {
		// This decision lets no pod leave. After a pause more pods could have been asked to leave,
		// and so on.
		d.wakeAt(s.now.Add(writeRetry))
	}
	return true
}

// dropGone replaces the names of pods that have left with their number, if that frees enough space
// in a full record to be worth a write. To revert the surge and start another one instead would
// recreate all replacements.
func (r *record) dropGone(s situation) {
	var present []string
	for i := range s.pods {
		if p := &s.pods[i]; s.isRecorded(p) {
			present = append(present, protocol.CanonicalName(p.Name, p.UID))
		}
	}
	if gone := len(r.Evacuations) - len(present); gone >= worthDropping {
		r.Gone += gone
		r.Evacuations = present
	}
}

// handOver makes the next evacuator active for as many pods as spare, and returns the other pods.
// The pods leave by eviction, which respects the budgets.
func (d *decision) handOver(s situation, leaving []*pod, spare int) (waiting []*pod) {
	var handed []*pod
	for _, p := range leaving {
		cost := 0
		if s.isAvailable(p) {
			cost = 1
		}
		if spare < cost {
			waiting = append(waiting, p)
			continue
		}
		spare -= cost
		d.memory.delivered = s.now
		handed = append(handed, p)
		d.complete(p, fmt.Sprintf("Another replica is available in its place: Deployment %s is scaled up to %d until the pod has left%s.%s",
			s.deployment.Name, s.target.record.To, p.purpose, s.refusal(p)))
	}
	d.noteTried(s, handed...)
	return waiting
}

func (d *decision) revertSurge(s situation) {
	r := s.target.record
	if r == nil || s.target.isGoing(&s) {
		return
	}
	if d.scale = (&scaling{}); !r.isUp() {
		return
	}
	d.memory.highest = nil
	from := r.From
	d.scale.value = &from
	if a := s.target.autoscaler; a != nil && surge.LacksMetrics(a) {
		d.event(corev1.EventTypeWarning, EventSurgeEnded, actionRelease,
			"%s is restored from %d to %d. The autoscaler has lost its metrics (ScalingActive is False): "+
				"the replicas stay as they are until it has them again, or until their owner changes them", s.target.field(), r.To, r.From)
		return
	}
	d.event(corev1.EventTypeNormal, EventSurgeEnded, actionRelease, "%s is restored from %d to %d", s.target.field(), r.To, r.From)
}

func (d *decision) complete(p *pod, message string) {
	d.reports = append(d.reports, report{evacuation: p.evacuation, completed: true, progress: true, message: message})
}

func (d *decision) event(eventType, reason, action, format string, args ...any) {
	d.events = append(d.events, event{eventType: eventType, reason: reason, action: action, message: fmt.Sprintf(format, args...)})
}

func (d *decision) wakeAt(t time.Time) {
	if d.wake.IsZero() || t.Before(d.wake) {
		d.wake = t
	}
}

func namesOf(pods []*pod) []string {
	names := make([]string, 0, min(len(pods), maxRecorded))
	for _, p := range pods[:min(len(pods), maxRecorded)] {
		names = append(names, p.evacuation.Name)
	}
	return names
}
