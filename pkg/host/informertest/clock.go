// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package informertest

import (
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// Clock is the fake clock of a bubble of testing/synctest. It begins at Start.
type Clock struct{ clock.RealClock }

// Start is the time at which every bubble begins.
var Start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Step advances the time. Each timer that expires within d fires at its own time.
func (Clock) Step(d time.Duration) { <-time.After(d) }

// Until waits in a bubble until a condition is true. It checks the condition whenever all
// goroutines are blocked, and then advances the time by step, or by a millisecond if step is 0. It
// returns false if the condition is still false after 20,000 steps.
func Until(step time.Duration, condition func() bool) bool {
	for range 20000 {
		synctest.Wait()
		if condition() {
			return true
		}
		<-time.After(max(step, time.Millisecond))
	}
	return false
}
