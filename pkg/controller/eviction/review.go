// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import "time"

// review reports again on the members of the lanes in which a pod may have become blocked, or
// unblocked, because time has passed.
func (q *Queue) review(now time.Time) {
	for _, l := range q.ring {
		if l.reviewAt.IsZero() || now.Before(l.reviewAt) {
			continue
		}
		l.reviewAt = time.Time{}
		for it := range l.members {
			q.show(it, q.blockerOf(it, now))
			if at := changesAt(it, l, now); at.After(now) {
				l.reviewBy(at)
			}
		}
	}
}

// changesAt is when the item becomes blocked by its lane, or no longer is, if nothing happens until
// then.
func changesAt(it *item, l *lane, now time.Time) time.Time {
	at := l.changesAt(it, now)
	if t := it.trouble; t != nil && t.from.After(now) && (!at.After(now) || t.from.Before(at)) {
		return t.from
	}
	return at
}

func (l *lane) changesAt(it *item, now time.Time) time.Time {
	switch {
	case l.owner != nil && it.waitsIn != l && !l.owner.waitsSince.IsZero():
		return latest(it.added, l.owner.waitsSince).Add(blockedAfter)
	case l.isFree():
		return time.Time{}
	case !l.open:
		if at := starvedAt(it, l); at.After(now) {
			return at
		}
		return l.steadySince.Add(steadyAfter)
	case it.blocker != nil:
		return l.since.Add(blockedAfter)
	}
	return time.Time{}
}

func starvedAt(it *item, l *lane) time.Time {
	since := l.since
	if it.added.After(since) {
		since = it.added
	}
	return since.Add(blockedAfter)
}

// blockerOf says what blocks an item: its own trouble, or a budget that has allowed nothing for a
// while. It keeps the former answer while that is still true, so that the numbers of a busy budget
// are not written into every waiting pod's status.
func (q *Queue) blockerOf(it *item, now time.Time) *Blocker {
	l := it.lane
	if it.trouble != nil && !now.Before(it.trouble.from) {
		it.starved = false
		return &it.trouble.Blocker
	}
	if l == nil || l.isFree() {
		return nil
	}
	wasStarved := it.blocker != nil && it.starved
	if l.open {
		if wasStarved && now.Sub(l.since) < blockedAfter {
			return it.blocker
		}
		it.starved = false
		return nil
	}
	if !wasStarved && now.Before(starvedAt(it, l)) {
		return nil
	}
	why := explain(l.budget, it.owner, !it.notReady, now.Sub(l.steadySince) >= steadyAfter)
	if wasStarved && (it.blocker.Reason == why.Reason || now.Before(starvedAt(it, l))) {
		return it.blocker
	}
	it.starved = true
	return why
}

// noteOf says what the outside should know about a pod that is not blocked.
func (q *Queue) noteOf(it *item, now time.Time) string {
	if l := it.lane; l != nil && l.owner != nil && it.phase == phaseWaiting && !it.notReady {
		if it.waitsIn == l {
			// It is told once for each wait: each change is a write of the status.
			return it.note
		}
		if since := l.owner.waitsSince; !since.IsZero() && now.Sub(latest(it.added, since)) >= blockedAfter {
			it.waitsIn = l
			return l.owner.note(q.policy.UnprotectedMaxUnavailable)
		}
	}
	it.waitsIn = nil
	if it.denial != "" {
		return "The eviction is refused for now: " + it.denial + " It is tried again."
	}
	return ""
}

// show makes b what the outside sees, and tells it.
func (q *Queue) show(it *item, b *Blocker) {
	note := q.noteOf(it, q.clock.Now())
	if it.note == note && (it.blocker == b || it.blocker != nil && b != nil && *it.blocker == *b) {
		return
	}
	it.blocker, it.note = b, note
	if q.items[it.Evacuation] == it {
		q.changed(it.Evacuation)
	}
}
