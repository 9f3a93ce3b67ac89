// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	wildSteps = 110
	calmSteps = 600
)

// run runs a world: first wildly, then calmly until all rollouts are done. It returns the first
// fault; "" if there is none.
func run(seed uint64, off rules) *world {
	w := newWorld(seed, off)
	w.snapshots = []*view{w.snapshot()}
	for range wildSteps {
		w.stepWildly()
		if w.fault != "" {
			return w
		}
	}
	w.calmDown()
	for range calmSteps {
		w.stepCalmly()
		if w.fault != "" || w.isOver() {
			return w
		}
	}
	w.failf("stuck: %s", w.unfinished())
	return w
}

func (w *world) stepWildly() {
	w.now++
	w.disturb()
	if w.chance(.8) {
		w.drainAndRelease(false)
	}
	if w.chance(.8) {
		caches := &w.view
		if w.chance(.4) {
			caches = pick(w, w.snapshots)
		}
		w.stepTasks(caches, false)
	}
	w.work(false)
	w.shutDown()
	w.note()
	order := w.rng.Perm(len(w.rollouts))
	for _, i := range order {
		caches := &w.view
		if lag := pick(w, []int{0, 0, 0, 1, 2}); lag > 0 {
			caches = w.snapshots[max(0, len(w.snapshots)-lag)]
		}
		w.reconcile(w.rollouts[i].name, caches, w.chance(.2))
	}
	w.snapshots = append(w.snapshots, w.snapshot())
	w.snapshots = w.snapshots[max(0, len(w.snapshots)-3):]
}

// calmDown ends all disturbances.
func (w *world) calmDown() {
	for _, n := range w.nodes {
		n.ready, n.foreign = true, false
	}
	for _, r := range w.rollouts {
		r.holds, r.closed, r.maxFailed = map[string]v1alpha1.RolloutHoldScope{}, false, 99
		r.version++
	}
	for _, m := range w.maintenances {
		if m.owner == "" && !m.shutdown && m.drains() {
			m.complete = w.now
		}
	}
}

func (w *world) stepCalmly() {
	w.now++
	w.forget()
	w.drainAndRelease(true)
	w.stepTasks(&w.view, true)
	w.work(true)
	w.shutDown()
	w.note()
	for _, r := range w.rollouts {
		w.reconcile(r.name, &w.view, false)
	}
}

// isOver reports whether all rollouts are done, and nothing is left over.
func (w *world) isOver() bool { return w.unfinished() == "" }

// unfinished describes what is left to do.
func (w *world) unfinished() string {
	for _, n := range w.nodes {
		if len(n.cordon) > 0 {
			return fmt.Sprintf("%s is cordoned for %v", n.name, slices.Sorted(maps.Keys(n.cordon)))
		}
	}
	for _, t := range w.tasks {
		return fmt.Sprintf("%s has a task in state %s", t.name, t.state)
	}
	for _, r := range w.rollouts {
		if len(r.current) > 0 {
			return fmt.Sprintf("%s runs %v", r.name, slices.Sorted(maps.Keys(r.current)))
		}
		for _, n := range w.nodes {
			if r.rolls() && r.has(n) && r.goalOf(n) != TooNew && !w.isFinished(r, n) {
				return fmt.Sprintf("%s is not done by %s", n.name, r.name)
			}
		}
	}
	return ""
}

// search runs n worlds, or fewer if one has a fault. It returns the first one with a fault.
func search(n uint64, off rules) (seed uint64, found *world, starts, works int64) {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
		taken atomic.Uint64
		end   atomic.Uint64
	)
	end.Store(n)
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for i := taken.Add(1) - 1; i < end.Load(); i = taken.Add(1) - 1 {
				w := run(i, off)
				mu.Lock()
				starts, works = starts+int64(w.starts), works+int64(w.works)
				if w.fault != "" && i < end.Load() {
					end.Store(i)
					found = w
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return end.Load(), found, starts, works
}

// TestWorlds runs rollouts in random worlds, and finds no fault. E2E_FULL=1 runs 100,000 worlds.
func TestWorlds(t *testing.T) {
	t.Parallel()
	n := uint64(2000)
	if value := os.Getenv("E2E_FULL"); value != "" && must.Get(strconv.ParseBool(value))(t) {
		n = 100_000
	}
	seed, w, starts, works := search(n, nil)
	if w != nil {
		t.Fatalf("world %d, step %d: %s", seed, w.now, w.fault)
	}
	t.Logf("%d worlds, %d starts, %d works", n, starts, works)
	is.True(t, starts > int64(n) && works > int64(n), "the worlds do too little: %d starts, %d works", starts, works)
}

// TestWorldsFindMissingRules switches off one rule after the other. The worlds find each.
func TestWorldsFindMissingRules(t *testing.T) {
	t.Parallel()
	for rule, what := range map[string]string{
		"fence":    "the announcement has no resourceVersion",
		"announce": "announced nodes are not counted",
		"live":     "nodes are not read live before a start",
		"gate":     "a release does not wait for a claimed task",
		"grant":    "a claim is granted without a live look",
		"inhands":  "nodes in Verifying, Failed and Done are drained",
		"agent":    "the shutdown of a node waits for its worker",
		"pause":    "paused drains go on",
		"wait":     "jobs are evicted although the plan waits for them",
		"cp":       "control-plane nodes are not limited",
		"dom":      "maxDomains is not kept",
		"ghost":    "a task without a node takes no place",
		"renewed":  "a node that was registered again is counted by the labels that it has",
		"gone":     "a vanished node keeps its unit open",
		"width":    "all units start at the same time",
		"halt":     "failures do not halt",
		"soak":     "nodes that soak are not counted",
		"skip":     "nodes are taken that users have cordoned",
		"person":   "nodes are taken that users work on",
		"cluster":  "--max-unavailable-nodes is not kept",
	} {
		t.Run(rule, func(t *testing.T) {
			const most = 1000
			seed, w, _, _ := search(most, rules{rule: true})
			if w == nil {
				t.Fatalf("%d worlds do not find that %s", most, what)
			}
			t.Logf("world %d, step %d: %s", seed, w.now, w.fault)
		})
	}
}
