// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"cmp"
	"slices"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/drain/pdb"
)

// lane has pods whose evictions depend on each other, and decides which of them is evicted next.
type lane interface {
	// offer returns the next pod that may be evicted now, and the reason why it may be; nil if
	// there is none.
	offer(now time.Time) (*item, pass)
	// interrupted returns the pods whose evictions were interrupted and have to be finished.
	interrupted(now time.Time) []*item
	// begin is called when a call is sent, and handleAnswer after its answer was applied to the
	// pod.
	begin(c *call)
	handleAnswer(c *call, a answer, now time.Time)
	// judge returns the state to report for a pod of the lane. It changes nothing.
	judge(it *item, now time.Time) judgement
	// addWakeTimes calls add with each time at which the lane has work to do without an event.
	addWakeTimes(add func(time.Time))
	// moves reports whether the lane of a budget has calls to make, and is open or was closed a
	// moment ago.
	moves(now time.Time) bool
	// isDone reports whether the lane may be dropped. The queue then calls drop.
	isDone(now time.Time) bool
	drop()
	common() *group
}

// laneKey identifies a lane by its budget, or by the namespace and UID of its owner. It is empty
// for the lane of all other pods.
type laneKey struct {
	types.NamespacedName
	owner types.UID
}

// pass is the reason why a pod may be evicted.
type pass int

const (
	// passPlain: the pod has no budget, or its budget allows a disruption.
	passPlain pass = iota
	// passUnready: the pod is not ready, and its eviction does not use up the budget.
	passUnready
	// passProbe: the cached budget allows no disruption, but the cache may be stale.
	passProbe
	// passGranted: the budget has already granted the eviction (see interruptedAfter).
	passGranted
)

// judgement is the state of an item: its blocker, or a note about what the pod waits for.
type judgement struct {
	blocker *Blocker
	note    string
	source
	// until is the time at which the state may change without an event; zero if there is none.
	until time.Time
}

// source describes where a state comes from.
type source struct {
	// about is the lane that the blocker or note is about. It is empty if that is not known.
	about laneKey
	// starved is set if the blocker comes from a budget, follows if its message must follow that
	// budget, told if the note names the pods that the item waits for.
	starved, follows, told bool
}

type group struct {
	key laneKey
	// protected is set if the pods have a budget.
	protected bool
	// members are the items of the lane, each with the kind of its owner, which determines the
	// remedy if the budget allows no disruption.
	members map[*item]pdb.Owner
	// ready and unready are the waiting members. They are in separate lines because a budget that
	// allows no disruption may still allow the eviction of pods that are not ready.
	ready, unready line
	// sending has the items with a call in flight, with the time of the call.
	sending map[*item]time.Time
	// refused is set if a member may rest because the budget refused it.
	refused bool
	// reviewAt is the time at which a member may become blocked or unblocked without an event, and
	// reviewedAt the time of the last review.
	reviewAt, reviewedAt time.Time
}

func newGroup() group {
	return group{members: map[*item]pdb.Owner{}, ready: line{order: byTurn}, unready: line{order: byTurn}, sending: map[*item]time.Time{}}
}

func (g *group) join(it *item, pod *corev1.Pod) {
	if g.members[it] = pdb.OwnerOf(metav1.GetControllerOfNoCopy(pod)); it.ReplacedFirst && it.NotReplaced == "" {
		g.members[it] = pdb.OwnerDeployment
	}
}

// wait adds a member to the line of the lane in which it waits.
func (g *group) wait(it *item) {
	if it.notReady {
		g.unready.add(it)
	} else {
		g.ready.add(it)
	}
}

// first returns the next waiting member. Among pods that have not been tried, pods that are not
// ready come first, since they serve no requests.
func (g *group) first() *item {
	ready, unready := g.ready.first(), g.unready.first()
	if ready == nil || unready != nil && unready.tried <= ready.tried {
		return unready
	}
	return ready
}

// reviewBy makes the next review happen at t at the latest, but not within reviewInterval after the
// previous one.
func (g *group) reviewBy(t time.Time) {
	if t = latest(t, g.reviewedAt.Add(reviewInterval)); g.reviewAt.IsZero() || t.Before(g.reviewAt) {
		g.reviewAt = t
	}
}

// The types of lanes override some of these methods.
func (g *group) common() *group                              { return g }
func (g *group) moves(time.Time) bool                        { return false }
func (g *group) interrupted(time.Time) []*item               { return nil }
func (g *group) begin(c *call)                               { g.sending[c.it] = c.sent }
func (g *group) handleAnswer(c *call, _ answer, _ time.Time) { delete(g.sending, c.it) }
func (g *group) judge(*item, time.Time) judgement            { return judgement{} }
func (g *group) addWakeTimes(add func(time.Time))            { add(g.reviewAt) }
func (g *group) isDone(time.Time) bool                       { return len(g.members) == 0 }
func (g *group) drop()                                       {}

// freeLane has the pods that have neither a budget nor an owner whose pods wait for each other.
type freeLane struct{ group }

func (l *freeLane) offer(time.Time) (*item, pass) { return l.first(), passPlain }

// concurrency is an adaptive limit of calls in flight. A bad answer halves it, and a good answer
// increases it by one.
type concurrency struct {
	limit, most int
}

func (c *concurrency) good() { c.limit = min(c.limit+1, c.most) }

// bad halves the limit after a bad answer. sentUnder is the limit at the time of the call: if
// several calls that were sent together get bad answers, they halve the limit only once.
func (c *concurrency) bad(sentUnder int) {
	c.limit = max(1, min(c.limit, sentUnder/2))
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

type phase int

const (
	// phaseWaiting: the pod waits in its lane.
	phaseWaiting phase = iota
	// phaseParked: the pod cannot be evicted until there is an event of the pod or of a budget.
	phaseParked
	// phaseResting: the pod waits for the end of its back-off.
	phaseResting
	// phaseInFlight: its eviction was sent and has not been answered.
	phaseInFlight
	// phaseAccepted: its eviction was accepted. The eviction is sent again only if the pod is
	// unchanged after resendAfter.
	phaseAccepted
)

// item is one pod that is to be evicted.
type item struct {
	// Request is replaced as a whole if the pod is requested again.
	*Request
	added time.Time
	// removed is set if the request was withdrawn after the eviction had been sent. The item is
	// kept until the outcome is known, so that a pod that is requested again is not evicted twice.
	removed bool
	// askedAgain is set if the pod was requested after its last call began. If that call found that
	// the Evacuation was withdrawn, this finding may be outdated.
	askedAgain bool
	phase      phase
	// lane is nil while the item is parked or accepted. line is the line in which the item waits
	// for its eviction, for the end of its back-off or, if it is parked, for its next review; nil
	// if it does not wait.
	lane lane
	line *line

	// notReady, cost and created are copied from the pod, so that the order of a line does not
	// change when the pod changes. tried is the number of the last call for the item, 0 if there
	// was none.
	notReady bool
	cost     int32
	created  time.Time
	tried    uint64

	// labels are the labels with which the pod's budgets were last looked up, and budgets are the
	// names of the budgets that select it. matched is set once the budgets have been looked up.
	labels  labels.Set
	budgets []string
	matched bool

	// due is the time at which the back-off ends, at which resendAfter is over for an accepted
	// eviction, or at which a parked item is reviewed.
	due time.Time
	// failures is the number of consecutive failures, which determines the next back-off. restUntil
	// is the end of the back-off, and answeredAt the time of the answer that caused it.
	failures              int
	restUntil, answeredAt time.Time
	// restsForBudget is set if the back-off also ends when the budget allows a disruption.
	restsForBudget bool

	failed int32
	// trouble is nil unless the last answer concerned this pod alone. several is nil unless several
	// budgets select the pod.
	trouble, several *trouble
	// deniedSince is the time at which admission began to refuse the pod, and denial is the last
	// message of admission. failingSince is the time at which evictions of the pod began to fail
	// for temporary reasons.
	deniedSince, failingSince time.Time
	denial                    string
	// blocker, note and source are the reported state.
	blocker *Blocker
	note    string
	source
	// changes limits how often the reported state changes (see changeEvery).
	changes *rate.Limiter
}

// updateRemedy sets what a repeated request says about the remedy for the budget, and reports
// whether it differs.
func (it *item) updateRemedy(r *Request) (changed bool) {
	updated := *it.Request
	updated.ReplacedFirst, updated.Deployment, updated.NotReplaced = r.ReplacedFirst, r.Deployment, r.NotReplaced
	changed = updated != *it.Request
	if changed {
		// A call in flight keeps its request.
		it.Request = &updated
	}
	return changed
}

// read copies the fields of the pod that determine the position of the item in a line.
func (it *item) read(pod *corev1.Pod) {
	it.notReady, it.created = !pdb.IsReady(pod), pod.CreationTimestamp.Time
	it.cost, _ = deletioncost.Of(pod)
}

// endRest ends the back-off of the pod after its budget has opened.
func (it *item) endRest() {
	it.restUntil, it.failures, it.trouble = time.Time{}, 0, nil
}

// otherBudgetDecides shortens the back-off of a pod that its former budget has refused.
func (it *item) otherBudgetDecides() {
	if !it.restsForBudget {
		return
	}
	it.trouble, it.failures = nil, min(it.failures, otherBudgetFailures)
	if until := it.answeredAt.Add(firstRest << otherBudgetFailures); until.Before(it.restUntil) {
		it.restUntil = until
	}
}

// isSent reports whether the pod's eviction is in flight or accepted.
func (it *item) isSent() bool {
	return it.phase == phaseInFlight || it.phase == phaseAccepted
}

// canBeAsked reports whether the pod is neither stopping nor finished.
func canBeAsked(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// line is a sorted list of items. An item is in at most one line. The fields that determine its
// position do not change while it is in a line.
type line struct {
	items []*item
	order func(a, b *item) int
}

// byTurn is the order within a lane. Pods that have not been tried come first, ordered by deletion
// cost, and younger pods before older ones. Then come pods that have been tried, the pod with the
// oldest try first.
func byTurn(a, b *item) int {
	return cmp.Or(cmp.Compare(a.tried, b.tried), cmp.Compare(a.cost, b.cost), b.created.Compare(a.created), cmp.Compare(a.UID, b.UID))
}

// byDue is the order of resting items.
func byDue(a, b *item) int {
	return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.UID, b.UID))
}

func (l *line) first() *item {
	if len(l.items) == 0 {
		return nil
	}
	return l.items[0]
}

func (l *line) add(it *item) {
	at, _ := slices.BinarySearchFunc(l.items, it, l.order)
	l.items = slices.Insert(l.items, at, it)
	it.line = l
}

// leaveLine removes the item from its line, if it has one.
func (it *item) leaveLine() {
	l := it.line
	if l == nil {
		return
	}
	if at, _ := slices.BinarySearchFunc(l.items, it, l.order); at > 0 {
		l.items = slices.Delete(l.items, at, at+1)
	} else {
		// Removing the first item moves no other item.
		l.items[0], l.items = nil, l.items[1:]
	}
	it.line = nil
}
