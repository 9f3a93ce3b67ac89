// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// TestRun runs the controller, so that only events cause syncs.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two"), newMaintenance("m", planning(upTo(1000))),
			newPod("low", "one", 10), newPod("high", "two", 5000))
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.run(2)
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

// TestSilentAuthorizerDelaysNoOtherDrain covers an authorizer that does not respond for one of two
// users. With a single worker, the drain of the other user continues. The drain of the first user
// continues when the authorizer responds.
func TestSilentAuthorizerDelaysNoOtherDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const silent, nodeWorkers = "silent", 16
		objects := []runtime.Object{
			newNode("free", inPool("free")), newPod("p", "free", 0), newMaintenance("goes-on", selecting("free")),
		}
		for i := range 2 * nodeWorkers {
			name := fmt.Sprintf("%s-%02d", silent, i)
			objects = append(objects, newNode(name,
				inPool(name)), newPod(name, name, 0), newMaintenance(name, selecting(name),
				func(nm *v1alpha1.NodeMaintenance) { nm.Spec.RequestedBy.Username = silent }))
		}
		f := newFixture(t)
		f.rights.silent, f.rights.answer = silent, make(chan struct{})
		for _, o := range objects {
			f.create(o)
		}
		start := time.Now()
		go f.run(1)
		f.ticking("the pod of the other user has an Evacuation",
			func() bool { return slices.Equal(f.evacuating(), []string{"p"}) })
		close(f.rights.answer)
		f.ticking("all pods are asked to leave", func() bool { return len(f.evacuating()) == 1+2*nodeWorkers })
		// An access review times out after ten seconds. The drain must not wait for that.
		if took := time.Since(start); took >= 10*time.Second {
			t.Errorf("the drain took %s", took)
		}
	})
}

// run runs the node and the nodemaintenance controllers until the test ends.
func (f *fixture) run(workers int) {
	var wg sync.WaitGroup
	wg.Go(func() { f.nodes.Run(f.ctx, workers) })
	wg.Go(func() { f.Controller.rights.Run(f.ctx) })
	wg.Go(func() { f.Controller.Run(f.ctx, workers) })
	wg.Wait()
}

// ticking waits for a condition while the clock advances.
func (f *fixture) ticking(what string, condition func() bool) {
	f.t.Helper()
	f.eventually(what, func() bool {
		f.wait(debounce)
		synctest.Wait() // a write of the test must not meet one of the controllers
		return condition()
	})
}
