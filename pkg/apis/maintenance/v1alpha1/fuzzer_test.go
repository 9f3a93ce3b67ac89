// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/randfill"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// fuzzFuncs returns the functions for the types that have defaults, internal and versioned. The
// functions set the defaults of the random objects, since otherwise defaulting would change the
// objects in a round trip.
func fuzzFuncs(serializer.CodecFactory) []any {
	return []any{
		func(spec *maintenance.NodeMaintenanceSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			versioned := v1alpha1.NodeMaintenanceSpec{DrainPlan: make([]v1alpha1.DrainPlanEntry, len(spec.DrainPlan))}
			for i, e := range spec.DrainPlan {
				versioned.DrainPlan[i] = v1alpha1.DrainPlanEntry{
					PodSelector: e.PodSelector, PodPriority: e.PodPriority, PodType: v1alpha1.PodType(e.PodType),
					Behavior: (*v1alpha1.DrainBehavior)(e.Behavior), WaitSeconds: e.WaitSeconds,
				}
			}
			fillVersionedSpec(&versioned, c)
			spec.Stage = maintenance.NodeMaintenanceStage(versioned.Stage)
			spec.NewNodes = maintenance.NewNodesPolicy(versioned.NewNodes)
			spec.OnExcludedNode = maintenance.ExcludedNodePolicy(versioned.OnExcludedNode)
			spec.DrainPlan = make([]maintenance.DrainPlanEntry, len(versioned.DrainPlan))
			for i, e := range versioned.DrainPlan {
				spec.DrainPlan[i] = maintenance.DrainPlanEntry{
					PodSelector: e.PodSelector, PodPriority: e.PodPriority, PodType: maintenance.PodType(e.PodType),
					Behavior: (*maintenance.DrainBehavior)(e.Behavior), WaitSeconds: e.WaitSeconds,
				}
			}
		},
		func(spec *v1alpha1.NodeMaintenanceSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			fillVersionedSpec(spec, c)
		},
		func(entry *maintenance.DrainPlanEntry, c randfill.Continue) {
			c.FillNoCustom(entry)
			entry.PodType = pick(c, maintenance.PodTypeDefault, maintenance.PodTypeDaemonSet, maintenance.PodTypeStatic)
		},
		func(entry *v1alpha1.DrainPlanEntry, c randfill.Continue) {
			c.FillNoCustom(entry)
			entry.PodType = pick(c, v1alpha1.PodTypeDefault, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic)
		},
		func(task *maintenance.NodeMaintenanceTask, c randfill.Continue) {
			c.FillNoCustom(task)
			task.Stage = pick(c, "Drain", maintenance.NodeTaskStageCordon)
			task.ClaimDeadlineSeconds, task.ProgressDeadlineSeconds, task.VerifyDeadlineSeconds = ptr.To(c.Int31()), ptr.To(c.Int31()), ptr.To(c.Int31())
		},
		func(task *v1alpha1.NodeMaintenanceTask, c randfill.Continue) {
			c.FillNoCustom(task)
			task.Stage = pick(c, v1alpha1.NodeTaskStageDrain, v1alpha1.NodeTaskStageCordon)
			task.ClaimDeadlineSeconds, task.ProgressDeadlineSeconds, task.VerifyDeadlineSeconds = ptr.To(c.Int31()), ptr.To(c.Int31()), ptr.To(c.Int31())
		},
		func(spec *maintenance.NodeMaintenanceRolloutSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.Stage = pick(c, maintenance.RolloutStageIdle, maintenance.RolloutStageRoll, maintenance.RolloutStageComplete)
			spec.WhenClosed = pick[maintenance.RolloutClosedPolicy](c, "Finish", "Withdraw")
			spec.ProgressDeadlineSeconds = ptr.To(c.Int31())
			spec.Limits = append(spec.Limits, maintenance.RolloutLimit{MaxDomains: ptr.To(c.Int31()), TopologyKey: "zone"})
		},
		func(spec *v1alpha1.NodeMaintenanceRolloutSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.Stage = pick(c, v1alpha1.RolloutStageIdle, v1alpha1.RolloutStageRoll, v1alpha1.RolloutStageComplete)
			spec.WhenClosed = pick(c, v1alpha1.RolloutClosedFinish, v1alpha1.RolloutClosedWithdraw)
			spec.ProgressDeadlineSeconds = ptr.To(c.Int31())
			spec.Limits = append(spec.Limits, v1alpha1.RolloutLimit{MaxDomains: ptr.To(c.Int31()), TopologyKey: "zone"})
		},
		func(hold *maintenance.RolloutHold, c randfill.Continue) {
			c.FillNoCustom(hold)
			hold.Stops = pick[maintenance.RolloutHoldScope](c, "Starts", "Drains")
		},
		func(hold *v1alpha1.RolloutHold, c randfill.Continue) {
			c.FillNoCustom(hold)
			hold.Stops = pick(c, v1alpha1.RolloutHoldStarts, v1alpha1.RolloutHoldDrains)
		},
		func(spec *maintenance.EvacuationSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.ProgressDeadlineSeconds = ptr.To(c.Int31())
		},
		func(spec *v1alpha1.EvacuationSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			spec.ProgressDeadlineSeconds = ptr.To(c.Int31())
		},
		func(status *maintenance.EvacuationStatus, c randfill.Continue) {
			c.FillNoCustom(status)
			status.EvacuationCancellationPolicy = pick(c, maintenance.EvacuationCancellationPolicyAllow, maintenance.EvacuationCancellationPolicyForbid)
		},
		func(status *v1alpha1.EvacuationStatus, c randfill.Continue) {
			c.FillNoCustom(status)
			status.EvacuationCancellationPolicy = pick(c, v1alpha1.EvacuationCancellationPolicyAllow, v1alpha1.EvacuationCancellationPolicyForbid)
		},
	}
}

// fillVersionedSpec sets the stage of a spec and completes its plan like defaulting. Defaulting
// does not change a plan that is out of order, as most random plans are.
func fillVersionedSpec(spec *v1alpha1.NodeMaintenanceSpec, c randfill.Continue) {
	spec.Stage = pick(c, v1alpha1.NodeMaintenanceStageIdle, v1alpha1.NodeMaintenanceStageCordon, v1alpha1.NodeMaintenanceStageDrain,
		v1alpha1.NodeMaintenanceStageComplete)
	spec.OnExcludedNode = pick(c, "", v1alpha1.ExcludedNodeContinue, v1alpha1.ExcludedNodeWait)
	spec.NewNodes = pick(c, v1alpha1.NewNodesPolicyIgnore, v1alpha1.NewNodesPolicyJoin)
	spec.DrainPlan = spec.DrainPlan[:min(len(spec.DrainPlan), c.Intn(4))]
	v1alpha1.SetDefaults_NodeMaintenanceSpec(spec)
}

func pick[T any](c randfill.Continue, values ...T) T {
	return values[c.Intn(len(values))]
}
