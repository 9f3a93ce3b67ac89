// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/drain/pdb"
)

// lane has pods whose evictions depend on each other, and decides which of them is evicted next.
type lane interface {
	// offer returns the next pod that may be evicted now, and why; nil if none may.
	offer(now time.Time) (*item, pass)
	// interrupted returns the pods whose evictions were interrupted and have to be finished.
	interrupted(now time.Time) []*item
	// begin is called when a call is sent, and handleAnswer when its answer has been applied to the
	// pod.
	begin(c *call)
	handleAnswer(c *call, a answer, now time.Time)
	// judge returns the reported state of a pod of the lane: its blocker, or a note about what it
	// waits for. until is when that may change without an event; zero if it does not.
	judge(it *item, now time.Time) (b *Blocker, note string, until time.Time)
	// addWakeTimes calls add with each time at which the lane has work to do without an event.
	addWakeTimes(add func(time.Time))
	// moves reports whether the lane of a budget has calls to make and has not been closed for
	// long.
	moves(now time.Time) bool
	// isDone reports whether the lane may be dropped; drop is called then.
	isDone(now time.Time) bool
	drop()
	// common returns the fields that all lanes have.
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
	// passPlain: the pod has no budget, or its budget has room.
	passPlain pass = iota
	// passUnready: the pod is not ready, and its eviction does not use up the budget.
	passUnready
	// passProbe: try although the cached budget has no room, in case the cache is stale.
	passProbe
	// passGranted: the budget has already granted the eviction, see interruptedAfter.
	passGranted
)

// group has the fields of every lane.
type group struct {
	key laneKey
	// protected: the pods have a budget.
	protected bool
	// members are the items of the lane, with the kind of their owner, which determines the remedy
	// for a closed budget.
	members map[*item]pdb.Owner
	// ready and unready are the waiting members. They are separate because a closed budget may
	// still allow the eviction of pods that are not ready.
	ready, unready line
	// sending has the items with a call in flight, and when it was sent.
	sending map[*item]time.Time
	// reviewAt is when a member may become blocked or unblocked without an event.
	reviewAt time.Time
}

func newGroup() group {
	return group{members: map[*item]pdb.Owner{}, ready: line{order: byTurn}, unready: line{order: byTurn}, sending: map[*item]time.Time{}}
}

// join makes an item a member.
func (g *group) join(it *item, pod *corev1.Pod) {
	if g.members[it] = pdb.OwnerOf(metav1.GetControllerOfNoCopy(pod)); it.ReplacedFirst {
		g.members[it] = pdb.OwnerDeployment
	}
}

// wait adds a member to the line in which it waits for its turn.
func (g *group) wait(it *item) {
	if it.notReady {
		g.unready.add(it)
	} else {
		g.ready.add(it)
	}
}

// first returns the next waiting member. Among pods that have not been tried, those that are not
// ready go first: they serve no requests.
func (g *group) first() *item {
	ready, unready := g.ready.first(), g.unready.first()
	if ready == nil || unready != nil && unready.tried <= ready.tried {
		return unready
	}
	return ready
}

// reviewBy asks for a review no later than at t.
func (g *group) reviewBy(t time.Time) {
	if g.reviewAt.IsZero() || t.Before(g.reviewAt) {
		g.reviewAt = t
	}
}

// The types of lanes override some of these methods.
func (g *group) common() *group                                       { return g }
func (g *group) moves(time.Time) bool                                 { return false }
func (g *group) interrupted(time.Time) []*item                        { return nil }
func (g *group) begin(c *call)                                        { g.sending[c.it] = c.sent }
func (g *group) handleAnswer(c *call, _ answer, _ time.Time)          { delete(g.sending, c.it) }
func (g *group) judge(*item, time.Time) (*Blocker, string, time.Time) { return nil, "", time.Time{} }
func (g *group) addWakeTimes(add func(time.Time))                     { add(g.reviewAt) }
func (g *group) isDone(time.Time) bool                                { return len(g.members) == 0 }
func (g *group) drop()                                                {}

// freeLane has the pods that have neither a budget nor an owner whose pods wait for each other.
type freeLane struct{ group }

func (l *freeLane) offer(time.Time) (*item, pass) { return l.first(), passPlain }

// concurrency is an adaptive limit of calls in flight: half as many after a bad answer, one more
// after each good one.
type concurrency struct {
	limit, most int
}

func (c *concurrency) good() { c.limit = min(c.limit+1, c.most) }

// bad halves the limit after a bad answer. sentUnder is the limit when the call was sent: bad
// answers to calls that were sent together halve the limit only once.
func (c *concurrency) bad(sentUnder int) {
	c.limit = max(1, min(c.limit, sentUnder/2))
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
