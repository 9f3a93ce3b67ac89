// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// SetDefaults_NodeMaintenanceRolloutSpec limits a rollout without limits to one node at a time.
func SetDefaults_NodeMaintenanceRolloutSpec(spec *NodeMaintenanceRolloutSpec) {
	if len(spec.Limits) == 0 {
		spec.Limits = []RolloutLimit{{MaxUnavailable: ptr.To(intstr.FromInt32(1))}}
	}
}
