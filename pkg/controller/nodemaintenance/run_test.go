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

package nodemaintenance

import (
	"slices"
	"testing"
	"testing/synctest"
)

// TestRun lets the controller run by events alone.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newMaintenance("m", planning(upTo(1000))),
			newPod("low", "one", 10), newPod("high", "two", 5000))
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.Controller.Run(f.ctx, 2)
		}()
		f.ticking("low is asked to leave", func() bool { return slices.Equal(f.evacuating(), []string{"low"}) })
		f.deletePod("low")
		f.ticking("high is asked to leave", func() bool { return slices.Equal(f.evacuating(), []string{"high"}) })
		f.deletePod("high")
		f.ticking("the maintenance is drained", func() bool { return isDrained(f.nm("m")) })
		f.enter("m", stageComplete)
		f.ticking("the maintenance is complete", func() bool { return len(f.nm("m").Finalizers) == 0 })
		f.wantCordon("one", false)
		f.wantCordon("two", false)
	})
}

// ticking waits for a condition while the clock runs.
func (f *fixture) ticking(what string, condition func() bool) {
	f.t.Helper()
	f.eventually(what, func() bool {
		f.wait(debounce)
		return condition()
	})
}
