// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	testclock "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/maintenance/nodemaintenance"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/must"
)

// row has the values that both tables have for a maintenance.
type row struct{ status, stage, nodes, pods, blocked string }

// TestTablesAgree has 500 random worlds, in which the status of a maintenance and its Evacuations
// are of the same moment. The table of "kubectl get nodemaintenances" and what the plugin shows
// must have the same values.
func TestTablesAgree(t *testing.T) {
	for seed := range 500 {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		nm, objects := randomMaintenance(r)
		// With two more of them, the plugin shows a table and not the only active maintenance.
		for _, name := range []string{"other-1", "other-2"} {
			other := cordon()
			other.Name = name
			objects = append(objects, other)
		}
		want := shownByServer(t, nm)
		w := newWorld(t, "", objects...)
		must.True(t, w.run(t.Context(), []string{"status"}) == 0, "seed %d: %s", seed, w.err)
		table := w.out.String()
		if got := shownInTable(t, table, nm.Name); got != want {
			t.Fatalf("seed %d: the plugin shows %+v, and kubectl get %+v, of %+v\n%s", seed, got, want, nm.Status, table)
		}
		must.True(t, w.run(t.Context(), []string{"status", nm.Name}) == 0, "seed %d: %s", seed, w.err)
		first, _, _ := strings.Cut(strings.TrimPrefix(w.out.String(), table), "\n")
		must.True(t, strings.Contains(first, want.status), "seed %d: the plugin shows %q, and kubectl get %+v", seed, first, want)
		if v1alpha1.IsDraining(nm) && len(nm.Status.Waves) > 0 {
			wave := nm.Status.Waves[0]
			row := regexp.MustCompile(fmt.Sprintf(`WAVE 1 .* %d of %d gone`, wave.PodsPeak-wave.PodsLeft, wave.PodsPeak))
			must.True(t, row.MatchString(w.out.String()), "seed %d: the status has the wave %+v, and the plugin shows\n%s", seed, wave, w.out)
		}
		before := w.out.String()
		w.run(t.Context(), []string{"blockers", nm.Name})
		blockers := strings.TrimPrefix(w.out.String(), before)
		cannot := ""
		if want.blocked != "0" {
			cannot = want.blocked
		}
		found := regexp.MustCompile(`(?m)^(\d+) pods? cannot leave\.$`).FindStringSubmatch(blockers)
		must.True(t, strings.Join(found[min(1, len(found)):], "") == cannot, "seed %d: %q pods cannot leave, and it shows\n%s", seed, cannot, blockers)
	}
}

// shownByServer returns what the table of the server has.
func shownByServer(t *testing.T, nm *v1alpha1.NodeMaintenance) row {
	t.Helper()
	internal := must.Get(registrytest.Scheme.ConvertToVersion(nm.DeepCopy(), runtime.InternalGroupVersioner))(t)
	convertor := nodemaintenance.NewTableConvertor(testclock.NewFakePassiveClock(now))
	table := must.Get(convertor.ConvertToTable(t.Context(), internal, nil))(t)
	cells := map[string]string{}
	for i, column := range table.ColumnDefinitions {
		cells[column.Name] = fmt.Sprint(table.Rows[0].Cells[i])
	}
	// The plugin shows in a warning that no controller has observed a maintenance.
	stage, _, _ := strings.Cut(cells["Stage"], " (not observed)")
	return row{cells["Status"], stage, cells["Nodes"], strings.Replace(cells["Pods"], "/", " of ", 1), cells["Blocked"]}
}

var gap = regexp.MustCompile(` {2,}`)

// shownInTable returns what a row of the plugin's table has. Without a number of pods it has "-",
// and the server "0/0".
func shownInTable(t *testing.T, text, name string) row {
	t.Helper()
	lines := strings.Split(text, "\n")
	header := gap.Split(strings.TrimSpace(lines[0]), -1)
	for _, line := range lines[1:] {
		cells := map[string]string{}
		for i, cell := range gap.Split(strings.TrimSpace(line), -1) {
			if i < len(header) {
				cells[header[i]] = cell
			}
		}
		if cells["NAME"] != name {
			continue
		}
		pods := cells["PODS GONE"]
		if bar := strings.LastIndex(pods, "] "); bar >= 0 {
			pods = pods[bar+len("] "):]
		}
		if pods == "-" {
			pods = "0 of 0"
		}
		return row{cells["STATUS"], cells["STAGE"], cells["NODES"], pods, cells["BLOCKED"]}
	}
	t.Fatalf("no maintenance %s in\n%s", name, text)
	return row{}
}

// randomMaintenance returns a maintenance with any conditions and counters that agree with the
// Evacuations of its pods.
func randomMaintenance(r *rand.Rand) (*v1alpha1.NodeMaintenance, []runtime.Object) {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	stage := v1alpha1.NodeMaintenanceStage(one("Idle", "Cordon", "Drain", "Drain", "Drain", "Complete"))
	nm := cordon()
	if stage == v1alpha1.NodeMaintenanceStageDrain {
		nm = draining()
	}
	nm.Name, nm.Spec.Stage, nm.Status.NodeStatuses, nm.Status.Waves = "random", stage, nil, nil
	nm.Generation, nm.Status.ObservedGeneration = 2, int64(2-r.IntN(8)/7)
	if stage == v1alpha1.NodeMaintenanceStageIdle || r.IntN(3) == 0 && stage == v1alpha1.NodeMaintenanceStageComplete {
		nm.Finalizers = nil
	}
	status := func() metav1.ConditionStatus { return metav1.ConditionStatus(one("True", "False")) }
	nm.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: status(), Reason: one("Cordoned", "NotAuthorized", "NodeNotCordoned", "NotObserved")},
		{Type: v1alpha1.ConditionDrained, Status: status(), Reason: one("DrainComplete", "DrainInProgress", "NotAuthorized", "TooManyMaintenances")},
		{Type: v1alpha1.ConditionProgressing, Status: status(), Reason: one("Blocked", "Stalled", "SyncFailed", "Waiting", "Draining", "Paused", "Drained")},
	}
	objects := []runtime.Object{nm}
	sum, left := 0, gone(10*time.Second)
	cannotLeave := blocked(v1alpha1.ReasonPodDisruptionBudget, budgetMessage, time.Minute)
	var wave v1alpha1.NodeMaintenanceWave
	for i := range r.IntN(4) {
		node := v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: v1alpha1.NodeReference{Name: fmt.Sprintf("random-%d", i), UID: "x"},
			Reason:  v1alpha1.NodeStatusReason(one("", "", "", "NotAuthorized", "NodeGone", "Releasing")),
		}
		node.PodsPendingEvacuation = int32(r.IntN(3))
		if stage == v1alpha1.NodeMaintenanceStageDrain && node.Reason != v1alpha1.NodeStatusGone && node.Reason != v1alpha1.NodeStatusReleasing {
			node.DrainTargets = targets
			node.PodsEvacuating = int32(r.IntN(4))
			node.PodsBlocked = int32(r.IntN(int(node.PodsEvacuating) + 1))
			ofNode := r.IntN(4)
			node.PodsPeak = node.PodsPendingEvacuation + node.PodsEvacuating + int32(ofNode)
			sum += ofNode
			for pod := range int(node.PodsEvacuating) + ofNode {
				e := evacuation("shop", fmt.Sprintf("pod-%d-%d", i, pod), node.NodeRef.Name)
				switch {
				case pod >= int(node.PodsEvacuating):
					left(e)
				case pod < int(node.PodsBlocked):
					cannotLeave(e)
				}
				objects = append(objects, e)
			}
			if node.Reason == "" {
				wave.PodsLeft += node.PodsPendingEvacuation + node.PodsEvacuating
				wave.PodsPeak += node.PodsPeak
			}
		} else if stage != v1alpha1.NodeMaintenanceStageDrain {
			// Another maintenance drains the node.
			e := evacuation("shop", fmt.Sprintf("other-%d", i), node.NodeRef.Name)
			cannotLeave(e)
			objects = append(objects, e)
		}
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, node)
	}
	if wave.PodsPeak > 0 {
		wave.StartTime = new(before(90 * time.Second))
		nm.Status.Waves = []v1alpha1.NodeMaintenanceWave{wave}
	}
	nm.Status.PodsGone = int32(sum + r.IntN(2)*5)
	if stage == v1alpha1.NodeMaintenanceStageComplete {
		nm.Status.Nodes = int32(r.IntN(4))
		nm.Status.Waves = []v1alpha1.NodeMaintenanceWave{{PodsPeak: 9, PodsLeft: int32(r.IntN(3))}}
	}
	return nm, objects
}
