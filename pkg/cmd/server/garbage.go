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
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// leastGarbage is how many bytes of garbage pile up at least before Go collects it. GOGC alone is a part of what is in use: the part that a cluster of 5,000
// nodes can afford has a server with little in use collect all the time.
const leastGarbage = 64 << 20

// liveBytes is the metric for what was in use when the last collection ended.
const liveBytes = "/gc/heap/live:bytes"

// pacing sets, after each collection, how much garbage may pile up before the next one.
type pacing struct {
	// least is in bytes, floor and current are in percent of what is in use, as GOGC is.
	least          uint64
	floor, current int

	mu      sync.Mutex
	stopped bool
}

// paceGarbage lets at least so many bytes of garbage pile up, and more if GOGC says so, until the returned function is called. Where GOGC is off it
// changes nothing.
func paceGarbage(least uint64) (stop func()) {
	floor := debug.SetGCPercent(100)
	debug.SetGCPercent(floor)
	if floor < 0 {
		return func() {}
	}
	p := &pacing{least: least, floor: floor, current: floor}
	p.adjust()
	p.await()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stopped = true
		debug.SetGCPercent(floor)
	}
}

// cycle becomes garbage at once, so that its cleanup runs after the next collection. Without a pointer in it the allocator could put it beside
// others that live longer.
type cycle struct {
	_ *byte
}

func (p *pacing) await() {
	runtime.AddCleanup(new(cycle), func(p *pacing) {
		if p.adjust() {
			p.await()
		}
	}, p)
}

// adjust changes GOGC unless it would change by less than a tenth: all goroutines have to halt for that. It says whether to go on.
func (p *pacing) adjust() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return false
	}
	sample := []metrics.Sample{{Name: liveBytes}}
	metrics.Read(sample)
	want := percent(sample[0].Value.Uint64(), p.least, p.floor)
	if diff := math.Abs(float64(want - p.current)); want != p.floor && diff*10 < float64(p.current) || want == p.current {
		return true
	}
	p.current = want
	debug.SetGCPercent(want)
	return true
}

// percent returns what GOGC has to be for least bytes of garbage beside live ones, and not less than floor.
func percent(live, least uint64, floor int) int {
	// A heap that is nearly empty would make it a figure without meaning.
	const smallest = 4 << 20
	return max(floor, int(least*100/max(live, smallest)))
}
