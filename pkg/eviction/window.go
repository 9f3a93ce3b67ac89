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

// window is how many calls may be in flight: one more after a while of good answers, half as many after a bad one.
type window struct {
	limit, ceiling int
	// patience times limit good answers in a row make it grow.
	patience int
	streak   int
	cut      time.Time
}

func (w *window) good() {
	if w.limit >= w.ceiling {
		return
	}
	if w.streak++; w.streak >= w.limit*w.patience {
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
	w.streak = 0
	w.cut = now
}
