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
		// A newer server has stored it.
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
	t.Run("the error lists what is allowed", func(t *testing.T) {
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
	const targets = "status.nodeStatuses[0].drainTargets"
	for name, test := range map[string]struct {
		old, status maintenance.NodeMaintenanceStatus
		want        []string
	}{
		"stages that stay": {old: stages(stage("Cordon")), status: stages(stage("Cordon"))},
		"a stage more":     {old: stages(stage("Cordon")), status: stages(stage("Cordon"), stage("Drain"))},
		"a stage less": {
			old: stages(stage("Cordon"), stage("Drain")), status: stages(stage("Cordon")),
			want: []string{"status.stageStatuses FieldValueInvalid"},
		},
		"another time": {
			old: stages(stage("Cordon")),
			status: stages(maintenance.StageStatus{
				Name: "Cordon", StartTimestamp: &metav1.Time{Time: time.Unix(9, 0)},
			}),
			want: []string{"status.stageStatuses FieldValueInvalid"},
		},
		"a stage twice": {
			old: stages(stage("Cordon")), status: stages(stage("Cordon"), stage("Cordon")),
			want: []string{"status.stageStatuses[1].name FieldValueDuplicate"},
		},
		"the newest node is recorded": {old: stages(), status: newest(5)},
		"the newest node stays":       {old: newest(5), status: newest(5)},
		"the newest node changes": {
			old: newest(5), status: newest(6), want: []string{"status.newestNodeTimestamp FieldValueInvalid"},
		},
		"the newest node falls": {
			old: newest(5), status: newest(4), want: []string{"status.newestNodeTimestamp FieldValueInvalid"},
		},
		"the newest node is removed": {
			old: newest(5), status: stages(), want: []string{"status.newestNodeTimestamp FieldValueInvalid"},
		},
		"progress moves on": {old: progress(5), status: progress(6)},
		"progress falls": {
			old: progress(5), status: progress(4), want: []string{"status.lastProgressTimestamp FieldValueInvalid"},
		},
		"progress is removed": {
			old: progress(5), status: stages(), want: []string{"status.lastProgressTimestamp FieldValueInvalid"},
		},
		"a stage without time": {
			old: stages(), status: stages(maintenance.StageStatus{Name: "Idle"}),
			want: []string{"status.stageStatuses[0].startTimestamp FieldValueRequired"},
		},
		"a node twice": {
			old: stages(), status: named("a", "b", "a"),
			want: []string{"status.nodeStatuses[2].nodeRef.name FieldValueDuplicate"},
		},
		"a name that no node can have": {
			old: stages(), status: named("A_b"),
			want: []string{"status.nodeStatuses[0].nodeRef.name FieldValueInvalid"},
		},
		"a target twice": {
			old: stages(), status: node("1", target("Default", 10, "x"), target("Default", 20, "x")),
			want: []string{targets + "[1] FieldValueDuplicate"},
		},
		"a selector that is none": {
			old: stages(), status: node("1", target("Default", 10, "-")),
			want: []string{targets + "[0].podSelector.matchLabels FieldValueInvalid"},
		},
		"the same targets": {old: node("1", target("Default", 10)), status: node("1", target("Default", 10))},
		"a higher target":  {old: node("1", target("Default", 10)), status: node("1", target("Default", 20))},
		"one target more": {
			old: node("1", target("Default", 10)), status: node("1", target("Default", 10), target("Static", 1)),
		},
		"a lower target": {
			old: node("1", target("Default", 10)), status: node("1", target("Default", 9)),
			want: []string{targets + " FieldValueInvalid"},
		},
		"a target less": {
			old: node("1", target("Default", 10), target("Static", 1)), status: node("1", target("Static", 1)),
			want: []string{targets + " FieldValueInvalid"},
		},
		"no target any more": {
			old: node("1", target("Default", 10)), status: node("1"), want: []string{targets + " FieldValueInvalid"},
		},
		"all pods instead of some": {
			old: node("1", target("Default", 10, "x")), status: node("1", target("Default", 10)),
		},
		"some pods instead of all": {
			old: node("1", target("Default", 10)), status: node("1", target("Default", 10, "x")),
			want: []string{targets + " FieldValueInvalid"},
		},
		"all pods of less priority": {
			old: node("1", target("Default", 10, "x")), status: node("1", target("Default", 9)),
			want: []string{targets + " FieldValueInvalid"},
		},
		"pods of another type": {
			old: node("1", target("Default", 10)), status: node("1", target("Static", 10)),
			want: []string{targets + " FieldValueInvalid"},
		},
		"a node that was recreated": {old: node("1", target("Default", 10)), status: node("2")},
		"a node that left":          {old: node("1", target("Default", 10)), status: stages()},
		"a condition":               {old: stages(), status: condition(func(*metav1.Condition) {})},
		"a condition without reason": {
			old: stages(), status: condition(func(c *metav1.Condition) { c.Reason = "" }),
			want: []string{"status.conditions[0].reason FieldValueRequired"},
		},
		"a condition of unknown status": {
			old: stages(), status: condition(func(c *metav1.Condition) { c.Status = "Maybe" }),
			want: []string{"status.conditions[0].status FieldValueNotSupported"},
		},
		"a condition without time": {
			old: stages(), status: condition(func(c *metav1.Condition) { c.LastTransitionTime = metav1.Time{} }),
			want: []string{"status.conditions[0].lastTransitionTime FieldValueRequired"},
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
		nm.Status, old.Status = node("1"), node("1", target("Default", 10))
		nm.Spec.Stage = maintenance.NodeMaintenanceStageComplete
		old.Spec.Stage = maintenance.NodeMaintenanceStageComplete
		expect(t, ValidateNodeMaintenanceStatusUpdate(nm, old))
		nm.Status = node("1", target("Default", 9))
		expect(t, ValidateNodeMaintenanceStatusUpdate(nm, old), targets+" FieldValueInvalid")
	})
}
