/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

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
