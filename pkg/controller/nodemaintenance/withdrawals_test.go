// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/testing/is"
)

// TestUnwantedEvacuationThatCannotBeWithdrawn covers a policy that refuses the withdrawal of an
// Evacuation whose pod no target covers, on a node that is drained. The maintenance is synced each
// second, as in a busy drain, and the Evacuation changes.
func TestUnwantedEvacuationThatCannotBeWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newMaintenance("m"), newNode("one"), newPod("p", "one", 0, ofDaemonSet))
		f.step("m")
		f.create(ourEvacuation("p", "one"))
		f.cached()
		refused, patches := true, 0
		f.maintenance.PrependReactor("patch", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) {
			patches++
			return refused, nil, apierrors.NewForbidden(v1alpha1.Resource("evacuations"), "p", errors.New("refused by a policy"))
		})
		f.runWithdrawals()
		syncFor := func(d time.Duration) {
			for begun := time.Now(); time.Since(begun) < d; f.wait(time.Second) {
				f.authorized()
				f.syncOnce("m")
				f.enqueueEvacuations("one")
				f.cached()
				_ = f.reconcileNodes()
			}
			synctest.Wait()
		}
		syncFor(2 * loop.VisibleAfter)
		is.True(t, patches > 1 && patches <= 12, "got %d patches in 2 minutes, want a few", patches)
		visible, _ := f.state.Troubles.Visible("one")
		is.Equal(t, len(visible), 1, "visible troubles")
		refused = false
		syncFor(2 * time.Minute)
		f.wantEvacuating()
		visible, _ = f.state.Troubles.Visible("one")
		is.Equal(t, len(visible), 0, "visible troubles after the policy is gone")
	})
}

// runWithdrawals runs the workers that withdraw Evacuations until the test ends.
func (f *fixture) runWithdrawals() {
	ctx, cancel := context.WithCancel(f.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.withdrawals.queue.Run(ctx, withdrawalWorkers, f.withdrawals.sync)
	}()
	f.t.Cleanup(func() {
		cancel()
		<-done
	})
}
