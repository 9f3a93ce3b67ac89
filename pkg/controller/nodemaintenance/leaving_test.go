// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// TestEvacuationsOfADeselectedNodeAreWithdrawn covers a user who removes a node from the selector
// because the node cannot be written.
func TestEvacuationsOfADeselectedNodeAreWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"))
		f.step("m")
		f.wantEvacuating("p")
		f.state.Troubles.Note("one", "test", "a policy refuses the taint")
		f.wait(2 * time.Minute)
		nm := f.nm("m")
		nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{"green"}
		nm.Generation++
		if _, err := f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.cached()
		if err := f.withdraw(); err != nil {
			t.Fatal(err)
		}
		f.syncOnce("m")
		f.cached()
		if err := f.withdraw(); err != nil {
			t.Fatal(err)
		}
		f.wantEvacuating()
	})
}

// TestSilentAuthorizerOfAPlannedMaintenanceDelaysNoOther covers an authorizer that does not respond
// for the user of a maintenance in stage Idle.
func TestSilentAuthorizerOfAPlannedMaintenanceDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"),
			newMaintenance("planned", createdAt(stageIdle), func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.RequestedBy = &authenticationv1.UserInfo{Username: "slow"}
			}))
		f.advertise = true
		f.rights.silent, f.rights.answer = "slow", make(chan struct{})
		defer close(f.rights.answer)
		f.restart()
		f.step("m")
		f.wantCordon("one", true, "m")
		f.enter("m", stageComplete)
		f.step("m")
		f.wantCordon("one", false)
		f.wantShown("one")
		if nm := f.nm("m"); len(nm.Finalizers) > 0 {
			t.Errorf("maintenance m has not ended, conditions %v", nm.Status.Conditions)
		}
	})
}
