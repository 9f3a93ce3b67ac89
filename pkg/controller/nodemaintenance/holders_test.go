// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// numbered returns maintenances m-000, m-001 and so on, each a minute older than the previous one.
func numbered(n int, modify ...func(*v1alpha1.NodeMaintenance)) []apiruntime.Object {
	var objects []apiruntime.Object
	for i := range n {
		objects = append(objects, newMaintenance(fmt.Sprintf("m-%03d", i), append(modify, createdMinute(1000-i))...))
	}
	return objects
}

// shutdownOf makes a maintenance the maintenance of a node's shutdown.
func shutdownOf(node, boot string) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Name = protocol.ShutdownName(node, boot)
		nm.UID = types.UID("uid-" + nm.Name)
		nm.Annotations = map[string]string{v1alpha1.AnnotationBootID: boot}
		nm.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
			},
		}}}
	}
}

// converge reconciles the nodes and syncs the maintenances until neither changes anything.
func (f *fixture) converge() {
	f.t.Helper()
	for range 20 {
		before := f.stored()
		f.authorized()
		if err := f.reconcileNodes(); err != nil {
			f.t.Fatal(err)
		}
		f.cached()
		for _, nm := range f.maintenanceList() {
			f.syncOnce(nm.Name)
		}
		f.cached()
		f.wait(2 * time.Second)
		if f.stored() == before {
			return
		}
	}
	f.t.Fatal("the cluster does not converge")
}

// TestMoreMaintenancesThanMayHoldANode changes the labels of a node so that 52 maintenances select
// it.
func TestMoreMaintenancesThanMayHoldANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := append(numbered(52), newNode("one", inPool("green")), newNode("two"), newPod("p", "one", 0))
		f := newFixture(t, objects...)
		f.converge()
		f.updateNode("one", inPool("blue"))
		f.converge()

		holders := marks.HoldersOf(f.node("one"))
		if len(holders) != protocol.MaxHolders || holders["m-000"] != "" || holders["m-001"] != "" {
			t.Errorf("got %d holders of the node, want the oldest %d, which are not m-000 and m-001", len(holders), protocol.MaxHolders)
		}
		const message = "Not drained: TooManyMaintenances: 50 other maintenances hold the node"
		for name, want := range map[string]bool{"m-000": true, "m-001": true, "m-002": false, "m-051": false} {
			status := f.nodeStatus(name, "one")
			if got := status.DrainMessage == message; got != want {
				t.Errorf("the message of %s for the node is %q, want that of the limit: %t", name, status.DrainMessage, want)
			}
			if got := v1alpha1.IsLeftAlone(&status); got != want {
				t.Errorf("%s leaves the node alone: %t, want %t", name, got, want)
			}
			if got := len(status.DrainTargets) == 0; got != want {
				t.Errorf("the targets of %s for the node are %v, want none: %t", name, status.DrainTargets, want)
			}
		}
		f.wantEvacuating("p")
		f.deletePod("p")
		f.wait(time.Minute)
		f.converge()
		for name, want := range map[string]string{"m-001": v1alpha1.ReasonTooManyMaintenances, "m-051": v1alpha1.ReasonDrainComplete} {
			if got := conditionOf(f.nm(name), v1alpha1.ConditionDrained); got == nil || got.Reason != want {
				t.Errorf("the condition Drained of %s is %v, want the reason %s", name, got, want)
			}
		}

		t.Log("a holder completes: the oldest one that waits takes its place")
		f.enter("m-051", v1alpha1.NodeMaintenanceStageComplete)
		f.converge()
		holders = marks.HoldersOf(f.node("one"))
		if len(holders) != protocol.MaxHolders || holders["m-051"] != "" || holders["m-000"] != "" || holders["m-001"] == "" {
			t.Errorf("got holders %v, want m-001 in place of m-051", holders)
		}
	})
}

// TestTooManyMaintenancesOfANodeWriteItOnce checks that the node is not written again after its
// annotations name the maintenances that hold it, and that its conditions are written.
func TestTooManyMaintenancesOfANodeWriteItOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, append(numbered(51, createdAt(v1alpha1.NodeMaintenanceStageCordon)), newNode("one"), newNode("two"))...)
		f.converge()
		writes := 0
		f.host.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, apiruntime.Object, error) {
			writes++
			return false, nil, nil
		})
		for range 5 {
			if err := f.reconcileNodes(); err != nil {
				t.Fatal(err)
			}
			f.cached()
			f.wait(2 * time.Second)
		}
		if writes > 0 {
			t.Errorf("got %d writes of nodes in 5 rounds without any change, want none", writes)
		}
		hasCondition := func(c corev1.NodeCondition) bool {
			return c.Type == v1alpha1.NodeConditionMaintenanceInProgress
		}
		if !slices.ContainsFunc(f.node("one").Status.Conditions, hasCondition) {
			t.Error("the node does not have the condition of a maintenance")
		}
	})
}

// TestAdvertisedMaintenancesAreLimited covers more maintenances in stage Idle than fit into the
// annotation of a node.
func TestAdvertisedMaintenancesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, append(numbered(60, createdAt(v1alpha1.NodeMaintenanceStageIdle)), newNode("one"))...)
		f.advertise = true
		f.restart()
		f.converge()
		recorded := marks.ReadConditions(f.node("one")).Maintenances
		if _, oldest := recorded["m-059"]; len(recorded) != protocol.MaxHolders || !oldest {
			t.Errorf("got %d maintenances in the annotation, want the oldest %d", len(recorded), protocol.MaxHolders)
		}
	})
}

// TestShutdownHasAPlaceOfItsOwn shuts down a node that 50 maintenances hold.
func TestShutdownHasAPlaceOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := append(numbered(51), newNode("one"), newPod("p", "one", 0),
			newMaintenance("", createdMinute(2000), shutdownOf("one", "boot-1")))
		f := newFixture(t, objects...)
		f.converge()
		name := protocol.ShutdownName("one", "boot-1")
		holders := marks.HoldersOf(f.node("one"))
		if len(holders) != protocol.MaxHolders+1 || holders[name] == "" || holders["m-000"] != "" {
			t.Errorf("got %d holders of the node, want the shutdown and the oldest %d others", len(holders), protocol.MaxHolders)
		}
		if got := f.nodeStatus(name, "one").DrainMessage; strings.Contains(got, v1alpha1.ReasonTooManyMaintenances) {
			t.Errorf("the shutdown does not drain its node: %s", got)
		}
	})
}

// TestEarlierShutdownHasNoPlaceOfItsOwn covers a second shutdown of a node that 50 maintenances
// hold: only the latest shutdown needs no place.
func TestEarlierShutdownHasNoPlaceOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := append(numbered(51), newNode("one"), newPod("p", "one", 0),
			newMaintenance("", createdMinute(2000), shutdownOf("one", "boot-1")),
			newMaintenance("", createdMinute(2001), shutdownOf("one", "boot-2")))
		f := newFixture(t, objects...)
		f.converge()
		holders := marks.HoldersOf(f.node("one"))
		for name, lacksOne := range map[string]bool{protocol.ShutdownName("one", "boot-1"): true, protocol.ShutdownName("one", "boot-2"): false, "m-000": true, "m-050": false} {
			message := f.nodeStatus(name, "one").DrainMessage
			if holds := holders[name] != ""; holds == lacksOne || strings.Contains(message, v1alpha1.ReasonTooManyMaintenances) != lacksOne {
				t.Errorf("%s holds the node: %t, and its message is %q; want that it lacks a place: %t", name, holds, message, lacksOne)
			}
		}
	})
}

// TestPlacesOutliveAnnotations covers a kubelet that erases the annotations which name the holders
// of its node: other maintenances do not get their places.
func TestPlacesOutliveAnnotations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, append(numbered(60), newNode("one"), newPod("p", "one", 0))...)
		f.converge()
		f.updateNode("one", func(node *corev1.Node) { node.Annotations = nil })
		f.cached()
		for i := range 60 {
			name := fmt.Sprintf("m-%03d", i)
			f.syncOnce(name)
			lacksOne := strings.Contains(f.nodeStatus(name, "one").DrainMessage, v1alpha1.ReasonTooManyMaintenances)
			if want := i < 10; lacksOne != want {
				t.Errorf("%s lacks a place: %t, want %t", name, lacksOne, want)
			}
		}
	})
}

// bootNumber returns a boot ID.
func bootNumber(n int) string { return fmt.Sprintf("%08d-2fa1-11d2-883f-0016d3cca427", n) }

func inBoot(bootID string) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Status.NodeInfo.BootID = bootID }
}

// TestLaterShutdownSupersedes covers a node that announces a shutdown while its previous one is not
// complete, and boots for it.
func TestLaterShutdownSupersedes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		earlier, later := protocol.ShutdownName("one", bootNumber(1)), protocol.ShutdownName("one", bootNumber(2))
		f := newFixture(t, newNode("one", inBoot(bootNumber(2))), newNode("two", inBoot(bootNumber(3))),
			newMaintenance("", createdMinute(1), shutdownOf("one", bootNumber(1))),
			newMaintenance("", createdMinute(1), shutdownOf("two", bootNumber(1))),
			newMaintenance("other", createdMinute(1)))
		f.converge()
		f.create(newMaintenance("", createdMinute(2), shutdownOf("one", bootNumber(2))))
		f.converge()
		if got := f.nm(earlier).Spec.Stage; got != v1alpha1.NodeMaintenanceStageDrain {
			t.Errorf("the earlier shutdown is at stage %s before the node goes down for the later one", got)
		}
		f.updateNode("one", inBoot(bootNumber(3)))
		f.converge()
		for name, want := range map[string]v1alpha1.NodeMaintenanceStage{
			earlier: v1alpha1.NodeMaintenanceStageComplete, later: v1alpha1.NodeMaintenanceStageDrain,
			"other": v1alpha1.NodeMaintenanceStageDrain, protocol.ShutdownName("two", bootNumber(1)): v1alpha1.NodeMaintenanceStageDrain,
		} {
			if got := f.nm(name).Spec.Stage; got != want {
				t.Errorf("%s is at stage %s, want %s", name, got, want)
			}
		}
	})
}

// TestShutdownOfAMachineThatDoesNotReturn covers a machine that an autoscaler or a provider of spot
// machines takes away: no agent completes its maintenance.
func TestShutdownOfAMachineThatDoesNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := protocol.ShutdownName("one", bootNumber(1))
		byAgent := func(nm *v1alpha1.NodeMaintenance) {
			nm.CreationTimestamp = metav1.NewTime(informertest.Start)
			nm.Spec.RequestedBy = &authenticationv1.UserInfo{Username: "system:node:one", Groups: []string{user.NodesGroup}}
		}
		f := newFixture(t, newNode("one", inBoot(bootNumber(1))), newNode("two"),
			newMaintenance("", shutdownOf("one", bootNumber(1)), byAgent), newMaintenance("other", createdMinute(1)))
		f.converge()
		must.Do(t, f.host.CoreV1().Nodes().Delete(f.ctx, "one", metav1.DeleteOptions{}))
		f.converge()
		f.wait(goneTime + time.Hour)
		f.converge()
		is.Equal(t, f.nm(name).Spec.Stage, v1alpha1.NodeMaintenanceStageComplete)
		is.Equal(t, f.nm("other").Spec.Stage, v1alpha1.NodeMaintenanceStageDrain)
		nm := f.nm(name)
		nm.Status.StageStatuses = append(nm.Status.StageStatuses, v1alpha1.StageStatus{
			Name: v1alpha1.NodeMaintenanceStageComplete, StartTimestamp: &metav1.Time{Time: f.clock.Now()},
		})
		must.Get(f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm, metav1.UpdateOptions{}))(t)
		f.cached()
		f.wait(goneTime + time.Hour)
		f.syncOnce(name)
		for _, nm := range f.maintenanceList() {
			is.True(t, nm.Name != name, "the maintenance exists two hours after its completion")
		}
	})
}

// TestCancelledShutdownSupersedesNothing: operators work on a node after a reboot, and another
// reboot is requested and cancelled.
func TestCancelledShutdownSupersedesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		earlier, later := protocol.ShutdownName("one", bootNumber(1)), protocol.ShutdownName("one", bootNumber(2))
		f := newFixture(t, newNode("one", inBoot(bootNumber(2))), newMaintenance("", createdMinute(1), shutdownOf("one", bootNumber(1))))
		f.converge()
		f.create(newMaintenance("", createdMinute(2), shutdownOf("one", bootNumber(2))))
		f.converge()
		f.enter(later, v1alpha1.NodeMaintenanceStageComplete)
		f.converge()
		node := f.node("one")
		if got := f.nm(earlier).Spec.Stage; got != v1alpha1.NodeMaintenanceStageDrain || !node.Spec.Unschedulable {
			t.Errorf("the earlier shutdown is at stage %s, and its node is cordoned: %t; want that it holds the node", got, node.Spec.Unschedulable)
		}
	})
}

// TestShutdownsOfUnknownBoots covers a node whose kubelet publishes no comparable boot ID.
func TestShutdownsOfUnknownBoots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("", createdMinute(1), shutdownOf("one", bootNumber(1))),
			newMaintenance("", createdMinute(2), shutdownOf("one", bootNumber(2))))
		f.converge()
		first, second := protocol.ShutdownName("one", bootNumber(1)), protocol.ShutdownName("one", bootNumber(2))
		if got := f.nm(first).Spec.Stage; got != v1alpha1.NodeMaintenanceStageDrain {
			t.Errorf("the first shutdown is at stage %s, and the second may be cancelled", got)
		}
		f.create(newMaintenance("", createdMinute(3), shutdownOf("one", bootNumber(3))))
		f.converge()
		if got := f.nm(first).Spec.Stage; got != v1alpha1.NodeMaintenanceStageComplete {
			t.Errorf("the first shutdown is at stage %s, and the node has gone down for the second", got)
		}
		if got := f.nm(second).Spec.Stage; got != v1alpha1.NodeMaintenanceStageDrain {
			t.Errorf("the second shutdown is at stage %s, and the third may be cancelled", got)
		}
	})
}

// TestCostOfManyMaintenancesOfANode counts the allocations after an event of a node, which causes a
// sync of each of its maintenances.
func TestCostOfManyMaintenancesOfANode(t *testing.T) {
	round := func(n int) (allocations uint64) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, append(numbered(n), newNode("one"), newPod("p", "one", 0))...)
			for range 3 {
				f.authorized()
				if err := f.reconcileNodes(); err != nil {
					t.Fatal(err)
				}
				f.cached()
				for i := range n {
					f.syncOnce(fmt.Sprintf("m-%03d", i))
				}
				f.cached()
				f.wait(2 * time.Second)
			}
			synctest.Wait()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for i := range n {
				f.syncOnce(fmt.Sprintf("m-%03d", i))
			}
			runtime.ReadMemStats(&after)
			allocations = after.Mallocs - before.Mallocs
		})
		return allocations
	}
	few := round(100)
	for _, n := range []int{200, 400} {
		// The number may grow linearly, plus a third: slices and maps grow in steps.
		if many, most := round(n), few*uint64(n)/100*4/3; many > most {
			t.Errorf("a sync of each of %d maintenances of a node takes %d allocations, want at most %d: that of 100 takes %d", n, many, most, few)
		}
	}
}
