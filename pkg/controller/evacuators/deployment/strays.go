// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/controller/deletioncost"
)

// strays returns the pods of the surge that are asked to leave and do not tolerate the cordon. They
// were bound to their nodes immediately before the cordon, or by a scheduler that ignores it. They
// are no replacements. They leave first, so that new replacements can start on other nodes.
func (s *situation) strays() []*pod {
	return slices.DeleteFunc(s.created(), func(p *pod) bool {
		return p.staysUp || p.evacuation == nil || s.isRecorded(p) || isReturned(p)
	})
}

// isNeverEvicted reports whether a pod can leave only by scale-down, because its budget never
// allows its eviction.
func (s *situation) isNeverEvicted(p *pod) bool {
	return len(p.budgets) > 0 && s.leavesByScaleDown(p)
}

// isDue reports whether a stray that no eviction can remove gets a replacement in this surge. It
// gets one only after the surge timeout, since the replacement may become a stray as well.
func (d *decision) isDue(s situation, p *pod) bool {
	if !s.isNeverEvicted(p) {
		return false
	}
	at := s.lastSign(p.evacuation).Add(s.timeout)
	d.wakeAt(at)
	return !s.now.Before(at)
}

// holdsTurns reports whether this evacuator stays active for available pods regardless of the surge
// timeout, because no replacement could start, or because strays leave first.
func (s *situation) holdsTurns() bool {
	return s.standing() != (Standing{}) || !s.isRollingOut() && len(s.strays()) > 0
}

// sendAway makes the next evacuator active for the strays that the surge does not need, and returns
// the other pods. If the pods that replace them become strays as well, the evacuation controller
// delays their evictions longer each time, as for all pods that return.
func (d *decision) sendAway(s situation, leaving []*pod) (waiting []*pod) {
	strays := s.strays()
	spare := d.spare(s, strays...)
	for _, p := range leaving {
		cost := 0
		if s.isAvailable(p) {
			cost = 1
		}
		if spare < cost || !slices.Contains(strays, p) || s.isNeverEvicted(p) {
			waiting = append(waiting, p)
			continue
		}
		spare -= cost
		// The deadlines for the other pods must not pass, so make the next report count as
		// progress.
		d.memory.highest = ptr.To(-1)
		if deletioncost.CanLower(p.Pod) && !deletioncost.Keeps(p.Pod) {
			// If the surge ends before the eviction, the scale-down at its end then deletes the
			// stray.
			d.lower = append(d.lower, p.Pod)
		}
		d.complete(p, fmt.Sprintf("The pod was created by a surge of Deployment %s and has started on a node under maintenance: it leaves before the other pods, "+
			"so that its replacement can start on another node%s.", s.deployment.Name, p.purpose))
	}
	return waiting
}
