// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// TestNewLeaderGoesOnReleasing removes nodes from the selector, and starts a new leader before
// these nodes are released.
func TestNewLeaderGoesOnReleasing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("two", inPool("green")), newPod("p", "one", 0),
			newMaintenance("m", selecting("blue", "green")))
		f.step("m")
		f.wait(time.Minute)
		f.step("m")
		f.wantEvacuating("p")

		nm := f.nm("m")
		selecting("green")(nm)
		nm.Generation++
		if _, err := f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.cached()
		f.syncOnce("m")
		f.cached()
		if got := f.nodeStatus("m", "one"); !v1alpha1.IsBeingReleased(&got) {
			t.Fatalf("got status %+v of a node that the selector leaves out, want it to be released", got)
		}
		f.restart()
		if got := f.selection.NodesOf("m"); len(got) != 1 || got[0].Name != "two" {
			t.Errorf("the new leader selects %d nodes, want node two", len(got))
		}
		f.step("m")
		f.wantEvacuating()
		f.wantCordon("one", false)
	})
}
