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

package eviction

import "time"

// forgetTroubleAfter is how long after a bad answer a window may double again.
const forgetTroubleAfter = time.Minute

// window is how many calls may be in flight: more after good answers, half as many after a bad one.
type window struct {
	limit, ceiling int
	// doubling is up to where each good answer makes it grow, which doubles it with every round of calls; a bad answer ends that.
	doubling int
	// patience times limit good answers in a row make it grow by one beyond that.
	patience int
	streak   int
	cut      time.Time
}

func (w *window) good() {
	if w.limit >= w.ceiling {
		return
	}
	if w.streak++; w.limit < w.doubling || w.streak >= w.limit*w.patience {
		w.limit++
		w.streak = 0
	}
}

// bad halves the window, once for all the calls that were in flight together: those sent before the last cut say nothing new.
func (w *window) bad(sent, now time.Time) {
	if sent.Before(w.cut) {
		return
	}
	w.limit = max(1, w.limit/2)
	w.doubling = w.limit
	w.streak = 0
	w.cut = now
}

// restart lets the window begin anew with no more than first calls, as what it has learned may not hold any more. That a bad answer has ended the
// doubling is forgotten after a while.
func (w *window) restart(first int, now time.Time) {
	w.limit, w.streak = min(w.limit, first), 0
	if now.Sub(w.cut) >= forgetTroubleAfter {
		w.doubling = w.ceiling
	}
}
