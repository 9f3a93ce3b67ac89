// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestCheck(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1, 0))
	tracker := NewTracker(clock)
	quick, slow := tracker.Start("quick"), tracker.Start("slow")
	quick()
	clock.SetTime(clock.Now().Add(StuckAfter))
	later := tracker.Start("later")
	if err := tracker.Check(nil); err != nil {
		t.Errorf("at the limit: got %v, want no error", err)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	err := tracker.Check(nil)
	if err == nil || !strings.Contains(err.Error(), "slow for 10m1s") || strings.Contains(err.Error(), "quick") ||
		strings.Contains(err.Error(), "later") {
		t.Errorf("after the limit: got %v, want an error about slow alone", err)
	}
	slow()
	if err := tracker.Check(nil); err != nil {
		t.Errorf("after the slow call ended: got %v, want no error", err)
	}
	later()
}

func TestNilTrackerIsHealthy(t *testing.T) {
	var tracker *Tracker
	tracker.Start("anything")()
	if err := tracker.Check(nil); err != nil {
		t.Error(err)
	}
}
