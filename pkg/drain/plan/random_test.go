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

package plan

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
	"time"
)

var (
	worlds = flag.Int("worlds", usualWorlds(), "how many random worlds TestRandomWorlds goes through")
	seed   = flag.Uint64("seed", 0, "where TestRandomWorlds begins; 0 for another place each time")
)

// usualWorlds takes some seconds. The race detector would make a minute of them and has nothing to
// find: nothing here is concurrent.
func usualWorlds() int {
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return 300
	}
	return 3000
}

// newPlan returns the planner that is to be tested.
func newPlan() planner { return Plan }

// TestRandomWorlds lets random maintenances drain random nodes while pods, nodes, maintenances and
// leaders come and go, and checks every answer. Of a world that fails it shows the smallest part
// that still does.
func TestRandomWorlds(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	// A few at a time, each in steps of its own.
	const parts = 4
	for part := range uint64(parts) {
		t.Run(fmt.Sprintf("part %d", part+1), func(t *testing.T) {
			t.Parallel()
			for i := part; i < uint64(*worlds) && !t.Failed(); i += parts {
				s := writeScript(rand.New(rand.NewPCG(first+i, 0)))
				if v := run(s, Plan); v != nil {
					small, v := shrink(s, v, newPlan)
					t.Errorf(
						"seed %d (run it alone with -seed %d -worlds 1) fails. The smallest script that does:\n%s%v",
						first+i,
						first+i,
						small,
						v,
					)
				}
			}
		})
	}
}
