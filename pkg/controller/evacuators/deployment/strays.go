// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/controller/deletioncost"
)

// strays returns the pods of the surge that were asked to leave the nodes on which they started,
// and do not tolerate the cordon: they were bound just before it, or the scheduler ignores it. They
// are no replacements. Others take their place before the pods leave that the surge is for.
func (s *situation) strays() []*pod {
	return slices.DeleteFunc(s.created(), func(p *pod) bool {
		return p.staysUp || p.evacuation == nil || s.isRecorded(p) || isReturned(p)
	})
}

// isNeverEvicted reports whether a pod has a budget that never allows its eviction, and so leaves
// by scale-down only.
func (s *situation) isNeverEvicted(p *pod) bool {
	return len(p.budgets) > 0 && s.leavesByScaleDown(p)
}

// isDue reports whether a stray takes the place of another pod after all, since no eviction can
// remove it. It does so only after the surge timeout: the next one may be a stray as well.
func (d *decision) isDue(s situation, p *pod) bool {
	if !s.isNeverEvicted(p) {
		return false
	}
	at := s.lastSign(p.evacuation).Add(s.timeout)
	d.wakeAt(at)
	return !s.now.Before(at)
}

// holdsTurns reports whether pods that serve wait for a replacement, whatever the time: leaving
// without one is known to fail, or a stray leaves first.
func (s *situation) holdsTurns() bool {
	return s.standing() != (Standing{}) || !s.isRollingOut() && len(s.strays()) > 0
}

// sendAway hands over the strays that the surge does not need, and returns the pods that wait. If
// the next ones are strays as well, their evictions wait longer each time, as those of all pods
// that return.
func (d *decision) sendAway(s situation, leaving []*pod) (waiting []*pod) {
	strays := s.strays()
	spare := s.spare(strays...)
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
		// The deadlines of the others must not pass: the next report counts as progress.
		d.memory.highest = ptr.To(-1)
		if deletioncost.CanLower(p.Pod) {
			// If the surge ends before, its scale-down deletes the stray.
			d.lower = append(d.lower, p.Pod)
		}
		d.complete(p, fmt.Sprintf("The pod is of a surge of Deployment %s and has started on a node under maintenance: it leaves before the others, "+
			"so that the next one can start elsewhere%s.", s.deployment.Name, p.purpose))
	}
	return waiting
}
