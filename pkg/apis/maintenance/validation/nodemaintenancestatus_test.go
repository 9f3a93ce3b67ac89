// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestValidateStageTransitions(t *testing.T) {
	stages := []v1alpha1.NodeMaintenanceStage{"Idle", "Cordon", "Drain", "Complete"}
	allowed := map[string]bool{
		"Idle Cordon":     true,
		"Idle Drain":      true,
		"Idle Complete":   true,
		"Cordon Drain":    true,
		"Cordon Complete": true,
		"Drain Complete":  true,
		// A newer server has stored this value.
		"Paused Complete": true,
	}
	for _, from := range append(stages, "Paused") {
		for _, to := range stages {
			t.Run(string(from+" to "+to), func(t *testing.T) {
				errs := ValidateNodeMaintenanceUpdate(nodeMaintenance(t, withStage(to)),
					nodeMaintenance(t, withStage(from)))
				if from == to || allowed[string(from+" "+to)] {
					expect(t, errs)
					return
				}
				expect(t, errs, "spec.stage FieldValueInvalid")
			})
		}
	}
	t.Run("the error lists the allowed values", func(t *testing.T) {
		errs := ValidateNodeMaintenanceUpdate(nodeMaintenance(t, withStage("Idle")),
			nodeMaintenance(t, withStage("Cordon")))
		if text := errs.ToAggregate().Error(); !strings.Contains(text,
			"the stage can only change from Cordon to Drain or Complete") {
			t.Errorf("the error is %q", text)
		}
	})
}

func TestValidateNodeMaintenanceStatusUpdate(t *testing.T) {
	at := metav1.NewTime(time.Unix(1, 0))
	stage := func(name maintenance.NodeMaintenanceStage) maintenance.StageStatus {
		return maintenance.StageStatus{Name: name, StartTimestamp: at.DeepCopy()}
	}
	stages := func(s ...maintenance.StageStatus) maintenance.NodeMaintenanceStatus {
		return maintenance.NodeMaintenanceStatus{StageStatuses: s}
	}
	target := func(podType maintenance.PodType, priority int32, app ...string) maintenance.DrainPlanEntry {
		e := maintenance.DrainPlanEntry{PodType: podType, PodPriority: priority}
		if len(app) > 0 {
			e.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app[0]}}
		}
		return e
	}
	node := func(uid types.UID, targets ...maintenance.DrainPlanEntry) maintenance.NodeMaintenanceStatus {
		return maintenance.NodeMaintenanceStatus{NodeStatuses: []maintenance.NodeMaintenanceNodeStatus{{
			NodeRef: maintenance.NodeReference{Name: "n", UID: uid}, DrainTargets: targets,
		}}}
	}
	named := func(names ...string) maintenance.NodeMaintenanceStatus {
		var status maintenance.NodeMaintenanceStatus
		for _, name := range names {
			status.NodeStatuses = append(status.NodeStatuses, maintenance.NodeMaintenanceNodeStatus{
				NodeRef: maintenance.NodeReference{Name: name},
			})
		}
		return status
	}
	condition := func(modify func(*metav1.Condition)) maintenance.NodeMaintenanceStatus {
		c := metav1.Condition{
			Type: "Drained", Status: metav1.ConditionTrue, Reason: "DrainComplete", LastTransitionTime: at,
		}
		modify(&c)
		return maintenance.NodeMaintenanceStatus{Conditions: []metav1.Condition{c}}
	}
	newest := func(seconds int64) maintenance.NodeMaintenanceStatus {
		return maintenance.NodeMaintenanceStatus{NewestNodeTimestamp: ptr.To(metav1.Unix(seconds, 0))}
	}
	progress := func(seconds int64) maintenance.NodeMaintenanceStatus {
		return maintenance.NodeMaintenanceStatus{LastProgressTimestamp: ptr.To(metav1.Unix(seconds, 0))}
	}
	lost := func(status maintenance.NodeMaintenanceStatus) maintenance.NodeMaintenanceStatus {
		status.NodeStatuses[0].Reason = maintenance.NodeStatusReason(v1alpha1.NodeStatusTooManyMaintenances)
		return status
	}
	const targets = "status.nodeStatuses[0].drainTargets"
	ten, fell := node("1", target("Default", 10)), []string{targets + " FieldValueInvalid"}
	for name, test := range map[string]struct {
		old, status maintenance.NodeMaintenanceStatus
		want        []string
	}{
		"stages that stay":    {stages(stage("Cordon")), stages(stage("Cordon")), nil},
		"an additional stage": {stages(stage("Cordon")), stages(stage("Cordon"), stage("Drain")), nil},
		"a missing stage": {
			stages(stage("Cordon"), stage("Drain")),
			stages(stage("Cordon")),
			[]string{"status.stageStatuses FieldValueInvalid"},
		},
		"another time": {
			stages(stage("Cordon")),
			stages(maintenance.StageStatus{Name: "Cordon", StartTimestamp: &metav1.Time{Time: time.Unix(9, 0)}}),
			[]string{"status.stageStatuses FieldValueInvalid"},
		},
		"a stage twice": {
			stages(stage("Cordon")),
			stages(stage("Cordon"), stage("Cordon")),
			[]string{"status.stageStatuses[1].name FieldValueDuplicate"},
		},
		"the newest node is recorded":   {stages(), newest(5), nil},
		"the newest node stays":         {newest(5), newest(5), nil},
		"the newest node changes":       {newest(5), newest(6), []string{"status.newestNodeTimestamp FieldValueInvalid"}},
		"the newest node becomes older": {newest(5), newest(4), []string{"status.newestNodeTimestamp FieldValueInvalid"}},
		"the newest node is removed":    {newest(5), stages(), []string{"status.newestNodeTimestamp FieldValueInvalid"}},
		"progress is updated":           {progress(5), progress(6), nil},
		"progress falls":                {progress(5), progress(4), []string{"status.lastProgressTimestamp FieldValueInvalid"}},
		"progress is removed":           {progress(5), stages(), []string{"status.lastProgressTimestamp FieldValueInvalid"}},
		"a stage without time": {
			stages(),
			stages(maintenance.StageStatus{Name: "Idle"}),
			[]string{"status.stageStatuses[0].startTimestamp FieldValueRequired"},
		},
		"a node twice": {
			stages(), named("a", "b", "a"), []string{"status.nodeStatuses[2].nodeRef.name FieldValueDuplicate"},
		},
		"an invalid node name": {
			stages(), named("A_b"), []string{"status.nodeStatuses[0].nodeRef.name FieldValueInvalid"},
		},
		"a target twice": {
			stages(),
			node("1", target("Default", 10, "x"), target("Default", 20, "x")),
			[]string{targets + "[1] FieldValueDuplicate"},
		},
		"an invalid selector": {
			stages(),
			node("1", target("Default", 10, "-")),
			[]string{targets + "[0].podSelector.matchLabels FieldValueInvalid"},
		},
		"the same targets":    {ten, ten, nil},
		"no targets any more": {ten, node("1"), fell},
		"no targets on a node that older maintenances have": {ten, lost(node("1")), nil},
		"a higher target":           {ten, node("1", target("Default", 20)), nil},
		"an additional target":      {ten, node("1", target("Default", 10), target("Static", 1)), nil},
		"a lower target":            {ten, node("1", target("Default", 9)), fell},
		"a missing target":          {node("1", target("Default", 10), target("Static", 1)), node("1", target("Static", 1)), fell},
		"all targets are removed":   {ten, node("1"), fell},
		"all pods instead of some":  {node("1", target("Default", 10, "x")), ten, nil},
		"some pods instead of all":  {ten, node("1", target("Default", 10, "x")), fell},
		"all pods of less priority": {node("1", target("Default", 10, "x")), node("1", target("Default", 9)), fell},
		"pods of another type":      {ten, node("1", target("Static", 10)), fell},
		"a node that was recreated": {ten, node("2"), nil},
		"a node that left":          {ten, stages(), nil},
		"a condition":               {stages(), condition(func(*metav1.Condition) {}), nil},
		"a condition without reason": {
			stages(),
			condition(func(c *metav1.Condition) { c.Reason = "" }),
			[]string{"status.conditions[0].reason FieldValueRequired"},
		},
		"a condition of unknown status": {
			stages(),
			condition(func(c *metav1.Condition) { c.Status = "Maybe" }),
			[]string{"status.conditions[0].status FieldValueNotSupported"},
		},
		"a condition without time": {
			stages(),
			condition(func(c *metav1.Condition) { c.LastTransitionTime = metav1.Time{} }),
			[]string{"status.conditions[0].lastTransitionTime FieldValueRequired"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			nm, old := nodeMaintenance(t), nodeMaintenance(t)
			nm.Status, old.Status = test.status, test.old
			expect(t, ValidateNodeMaintenanceStatusUpdate(nm, old), test.want...)
		})
	}
	t.Run("a completed maintenance drops its targets", func(t *testing.T) {
		nm, old := nodeMaintenance(t), nodeMaintenance(t)
		nm.Status, old.Status = node("1"), ten
		nm.Spec.Stage = maintenance.NodeMaintenanceStageComplete
		old.Spec.Stage = maintenance.NodeMaintenanceStageComplete
		expect(t, ValidateNodeMaintenanceStatusUpdate(nm, old))
		nm.Status = node("1", target("Default", 9))
		expect(t, ValidateNodeMaintenanceStatusUpdate(nm, old), targets+" FieldValueInvalid")
	})
}
