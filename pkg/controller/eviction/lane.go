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

// lane is a group of pods that depend on each other, and decides which of them goes next.
type lane interface {
	// offer returns the pod that may be evicted now, and the right to evict it; nil if none may.
	offer(now time.Time) (*item, pass)
	// interrupted returns the pods whose evictions have to be finished.
	interrupted(now time.Time) []*item
	// begin takes in that a call is sent, and settle its answer, after the pod has taken it in.
	begin(c *call)
	settle(c *call, a answer, now time.Time)
	// judge returns what the outside should know about a pod of the lane: what blocks it, or what
	// it waits for. until is when that may change although nothing happens; zero if it does not.
	judge(it *item, now time.Time) (b *Blocker, note string, until time.Time)
	// setAlarm names the times at which the lane has something to do although nothing happens.
	setAlarm(ring func(time.Time))
	// moves reports whether the lane of a budget has calls to make and is not stuck.
	moves(now time.Time) bool
	// isDone reports whether the lane may be dropped; drop is called then.
	isDone(now time.Time) bool
	drop()
	// common returns what the lane has in common with others.
	common() *group
}

// laneKey identifies a lane: by its budget, or by the namespace and UID of its owner. It is empty
// for the lane of all other pods.
type laneKey struct {
	types.NamespacedName
	owner types.UID
}

// pass is the right to send an eviction.
type pass int

const (
	// passPlain: the pod may go, and uses up its budget if it has one.
	passPlain pass = iota
	// passUnready: the pod is not ready, and may go without using up its budget.
	passUnready
	// passProbe: the budget has no room according to the cache, which is doubted.
	passProbe
	// passGranted: the budget has let the pod go already, see interruptedAfter.
	passGranted
)

// group is what every lane has.
type group struct {
	key laneKey
	// protected: the pods have a budget.
	protected bool
	// members are the items of the lane, with what the remedies for a closed budget depend on.
	members map[*item]pdb.Owner
	// ready and unready are the members that wait, apart because pods that are not ready may go
	// when others may not.
	ready, unready line
	// sending are the calls in flight, and when they were sent.
	sending map[*item]time.Time
	// reviewAt is when a member may become blocked or unblocked by the passing of time.
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

// wait has a member wait for its turn.
func (g *group) wait(it *item) {
	if it.notReady {
		g.unready.add(it)
	} else {
		g.ready.add(it)
	}
}

// first returns the next of the members that wait. Of pods that have not been tried, those that are
// not ready serve no requests and go first.
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

// The kinds of lanes have their own versions of some of these.
func (g *group) common() *group                                       { return g }
func (g *group) moves(time.Time) bool                                 { return false }
func (g *group) interrupted(time.Time) []*item                        { return nil }
func (g *group) begin(c *call)                                        { g.sending[c.it] = c.sent }
func (g *group) settle(c *call, _ answer, _ time.Time)                { delete(g.sending, c.it) }
func (g *group) judge(*item, time.Time) (*Blocker, string, time.Time) { return nil, "", time.Time{} }
func (g *group) setAlarm(ring func(time.Time))                        { ring(g.reviewAt) }
func (g *group) isDone(time.Time) bool                                { return len(g.members) == 0 }
func (g *group) drop()                                                {}

// freeLane has the pods that have neither a budget nor an owner whose pods take turns.
type freeLane struct{ group }

func (l *freeLane) offer(time.Time) (*item, pass) { return l.first(), passPlain }

// concurrency is how many calls may be in flight: half as many after an answer that means trouble,
// one more after each good one.
type concurrency struct {
	limit, most int
}

func (c *concurrency) good() { c.limit = min(c.limit+1, c.most) }

// bad takes in a bad answer to a call that was sent when sentUnder calls were allowed. Half of that
// is allowed now: the answers to calls that were sent together halve it once.
func (c *concurrency) bad(sentUnder int) {
	c.limit = max(1, min(c.limit, sentUnder/2))
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
