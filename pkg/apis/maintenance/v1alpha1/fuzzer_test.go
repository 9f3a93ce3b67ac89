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
				versioned.DrainPlan[i] = v1alpha1.DrainPlanEntry{PodSelector: e.PodSelector, PodPriority: e.PodPriority, PodType: v1alpha1.PodType(e.PodType)}
			}
			fillVersionedSpec(&versioned, c)
			spec.Stage = maintenance.NodeMaintenanceStage(versioned.Stage)
			spec.NewNodes = maintenance.NewNodesPolicy(versioned.NewNodes)
			spec.OnExcludedNode = maintenance.ExcludedNodePolicy(versioned.OnExcludedNode)
			spec.DrainPlan = make([]maintenance.DrainPlanEntry, len(versioned.DrainPlan))
			for i, e := range versioned.DrainPlan {
				spec.DrainPlan[i] = maintenance.DrainPlanEntry{PodSelector: e.PodSelector, PodPriority: e.PodPriority, PodType: maintenance.PodType(e.PodType)}
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
