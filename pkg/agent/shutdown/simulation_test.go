// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"haulout.dev/haulout/pkg/agent/state"
)

// simulations is the number of random histories. With the race detector, each history takes five
// times as long.
var simulations = usualSimulations()

func usualSimulations() int {
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return 75
	}
	return 300
}

// TestSimulation causes random events on a machine: shutdowns, cancellations, a restart of logind,
// failures of the API (no response, refusals, hanging requests) or of Haulout alone, a full disk, a
// runtime that fails, a change of the wall clock, actions of users, and a crash of the agent in any
// of its calls. The world fails the test when a rule is broken. At the end all failures are
// removed, and the agent must have undone or finished its work.
func TestSimulation(t *testing.T) {
	var done, released, cancelled, forced, ends, evicted int
	for seed := range uint64(simulations) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, seed)
				simulate(w, rand.New(rand.NewPCG(seed, 2)))
				done++
				w.set(func() {
					evicted += len(w.evicted)
					released, cancelled, forced, ends = released+w.released, cancelled+w.cancelled, forced+w.forced, ends+len(w.ends)
				})
			})
		})
	}
	t.Logf("%d released, %d cancelled, %d forced, %d local runs, %d evictions", released, cancelled, forced, ends, evicted)
	if done < simulations {
		return // -run has selected some simulations
	}
	if released < simulations || cancelled < simulations/2 || ends < simulations/2 || evicted < simulations || forced > released/10 {
		t.Errorf("the histories say too little")
	}
}

// simulate causes random events. It has its own random source, because the processes use that of
// the world.
func simulate(w *world, r *rand.Rand) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.final = r.IntN(5) == 0
	go w.background(ctx)
	w.start()
	for range 40 {
		for range r.IntN(3) {
			w.set(func() {
				before := len(w.pods)
				w.addPod([]int32{0, 0, 1000, 2000001000}[r.IntN(4)], r.IntN(6) == 0)
				if owner := r.IntN(4); len(w.pods) > before && owner > 0 {
					w.pods[before].owner = fmt.Sprintf("owner-%d", owner)
				}
			})
		}
		act(w)
		<-time.After(time.Duration(r.IntN(40000)) * time.Millisecond)
	}
	// Remove all failures.
	w.set(func() { w.mode, w.latency, w.diskFull, w.engineOK, w.crashes = apiUp, 0, false, true, 0 })
	<-time.After(20 * time.Minute)
	synctest.Wait()
	w.check()
	w.mu.Lock()
	p := w.process
	w.mu.Unlock()
	p.kill()
}

// act causes one random event.
func act(w *world) {
	w.mu.Lock()
	choice, f := w.random.IntN(22), w.random.Float64()
	w.mu.Unlock()
	switch choice {
	case 0, 1, 2, 3, 4, 5:
		w.request()
	case 6:
		w.vanish(false)
	case 7:
		w.vanish(true)
	case 8, 9, 10, 11:
		w.set(func() { w.mode = apiMode(f * float64(apiModes)) })
	case 12, 13:
		w.set(func() { w.mode = apiUp })
	case 14:
		w.set(func() { w.latency = time.Duration(f * float64(3*time.Second)) })
	case 15:
		w.set(func() { w.diskFull = f < 0.5 })
	case 16:
		w.set(func() { w.engineOK = f < 0.7 })
	case 17:
		w.jump(time.Duration((f - 0.5) * float64(2*time.Hour)))
	case 18:
		w.set(func() {
			if nm := w.own(); nm != nil && f < 0.3 {
				nm.completed = true // completed by a user
			}
		})
	case 19, 20:
		w.set(func() { w.crashes = f * f * 0.2 })
	default:
		w.set(func() {
			if !w.process.dead && !w.down {
				w.process.crash()
			}
		})
	}
}

// check fails the test if work is unfinished after a long time without failures.
func (w *world) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending {
		w.violation("a shutdown is still pending: %+v", w.disk)
		return
	}
	if w.disk.Phase != state.Armed || w.disk.BootID != w.bootID {
		w.violation("the state is %+v", w.disk)
	}
	if !w.lock {
		w.violation("the lock is not held")
	}
	if !w.kubelet {
		w.violation("the kubelet does not run")
	}
	kept := w.disk.Maintenance
	if w.cordoned != "" && kept == nil {
		w.violation("the node is still cordoned by the agent")
	}
	for _, nm := range w.maintenances {
		if !nm.completed && (kept == nil || *kept != nm.ref) {
			w.violation("%s is still in stage Drain", nm.ref.Name)
		}
	}
	if len(w.disk.Killed) > 0 {
		w.violation("pods were not reported: %+v", w.disk.Killed)
	}
}
