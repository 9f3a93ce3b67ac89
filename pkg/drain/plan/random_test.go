// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

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
	worlds = flag.Int("worlds", usualWorlds(), "number of random worlds that TestRandomWorlds checks")
	seed   = flag.Uint64("seed", 0, "first seed of TestRandomWorlds; 0 for the current time")
)

// usualWorlds returns a number of worlds that takes some seconds. With the race detector it would
// take a minute, and the planner has no concurrency that the detector could check.
func usualWorlds() int {
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return 300
	}
	return 3000
}

// newPlan returns the planner under test.
func newPlan() planner { return Plan }

// TestRandomWorlds lets random maintenances drain random nodes while pods, nodes, maintenances and
// leaders change, and checks every result. For a world that fails it prints the smallest script
// that still fails.
func TestRandomWorlds(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	// Each part checks every fourth seed, in parallel with the other parts.
	const parts = 4
	for part := range uint64(parts) {
		t.Run(fmt.Sprintf("part %d", part+1), func(t *testing.T) {
			t.Parallel()
			for i := part; i < uint64(*worlds) && !t.Failed(); i += parts {
				s := writeScript(rand.New(rand.NewPCG(first+i, 0)))
				if v := run(s, Plan); v != nil {
					small, v := shrink(s, v, newPlan)
					t.Errorf("seed %d fails (alone: -seed %d -worlds 1). The smallest script that fails:\n%s%v",
						first+i, first+i, small, v)
				}
			}
		})
	}
}
