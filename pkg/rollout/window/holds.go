// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package window

import (
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Holding is what the holds of a rollout stop at a time.
type Holding struct {
	// Active are the holds that apply, in the order of the spec. No unit starts while there is one.
	Active []v1alpha1.RolloutHold
	// Drains is true if one of them also pauses drains.
	Drains bool
	// Until is the next time at which a hold begins or ends by itself; zero if none does.
	Until time.Time
}

// IsOver reports whether a hold has ended, and so stops nothing.
func IsOver(hold *v1alpha1.RolloutHold, now time.Time) bool {
	return hold.Until != nil && !hold.Until.After(now)
}

// HoldsAt returns what holds stop at a time. A hold applies from the time from, inclusive, to the
// time until, exclusive.
func HoldsAt(holds []v1alpha1.RolloutHold, now time.Time) Holding {
	var h Holding
	for i := range holds {
		hold := &holds[i]
		if IsOver(hold, now) {
			continue
		}
		if hold.From != nil && hold.From.After(now) {
			h.Until = Earliest(h.Until, hold.From.Time)
			continue
		}
		h.Active = append(h.Active, *hold)
		// A scope that a newer server has stored stops as much as it can.
		h.Drains = h.Drains || hold.Stops != v1alpha1.RolloutHoldStarts
		if hold.Until != nil {
			h.Until = Earliest(h.Until, hold.Until.Time)
		}
	}
	return h
}
