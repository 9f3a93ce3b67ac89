// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// SameTargets reports whether two states of a maintenance ask the same pods to leave.
func SameTargets(a, b *maintenancev1alpha1.NodeMaintenance) bool {
	return slices.EqualFunc(a.Status.NodeStatuses, b.Status.NodeStatuses, func(x, y maintenancev1alpha1.NodeMaintenanceNodeStatus) bool {
		return x.NodeRef == y.NodeRef && SameEntries(x.DrainTargets, y.DrainTargets)
	})
}
