// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package informertest

import (
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// Clock is the time of a bubble of testing/synctest, which begins at Start.
type Clock struct{ clock.RealClock }

// Start is when the time of every bubble begins.
var Start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Step lets time pass. All that waits for a time until then goes on at its own time.
func (Clock) Step(d time.Duration) { <-time.After(d) }

// Until waits for a condition in a bubble. Each time all goroutines have done what they can, it
// looks and lets a step of time pass, a millisecond if step is 0. It reports whether the condition
// has come to hold within 20,000 steps.
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
