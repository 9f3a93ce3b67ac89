/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

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
