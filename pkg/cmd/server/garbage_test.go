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

package server

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

func TestPercentOfGarbage(t *testing.T) {
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		live  uint64
		floor int
		want  int
	}{
		"half of the least in use":                     {32 * mib, 30, 200},
		"as much in use":                               {64 * mib, 30, 100},
		"so much in use that GOGC allows more garbage": {400 * mib, 30, 30},
		"the GOGC of Go itself":                        {200 * mib, 100, 100},
		"nothing in use":                               {0, 30, 1600},
	} {
		t.Run(name, func(t *testing.T) {
			if got := percent(tc.live, 64*mib, tc.floor); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestGarbagePilesUp(t *testing.T) {
	before := debug.SetGCPercent(30)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	sample := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}, {Name: liveBytes}}
	// until waits for the garbage that may pile up, in bytes, to be right after a collection.
	until := func(what string, right func(garbage, live uint64) bool) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
			runtime.GC()
			metrics.Read(sample)
			goal, live := sample[0].Value.Uint64(), sample[1].Value.Uint64()
			return right(goal-live, live), nil
		})
		if err != nil {
			t.Fatalf("%s: goal and use are %d and %d bytes", what, sample[0].Value.Uint64(), sample[1].Value.Uint64())
		}
	}
	const least = 512 << 20
	stop := paceGarbage(least)
	until("never as much as asked for", func(garbage, _ uint64) bool { return garbage > least*8/10 && garbage < least*2 })
	much := make([]byte, 128<<20)
	until("not adjusted to more in use", func(garbage, live uint64) bool { return live > 128<<20 && garbage > least*8/10 && garbage < least*2 })
	runtime.KeepAlive(much)
	stop()
	until("GOGC has not come back", func(garbage, live uint64) bool { return garbage < live })
	if got := debug.SetGCPercent(30); got != 30 {
		t.Errorf("GOGC is %d afterwards", got)
	}
}

func TestGarbageIsNotPacedWhereCollectionIsOff(t *testing.T) {
	before := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	paceGarbage(1 << 30)()
	if got := debug.SetGCPercent(-1); got != -1 {
		t.Errorf("GOGC is %d", got)
	}
}
