// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
)

func TestNodesReferToPoolsOfTheStatus(t *testing.T) {
	for name, test := range map[string]struct {
		pools   []string
		index   *int32
		refused string
	}{
		"no pools":                           {},
		"a node without a pool":              {pools: []string{"blue"}},
		"the first pool":                     {pools: []string{"blue", "red"}, index: ptr.To[int32](0)},
		"the last pool":                      {pools: []string{"blue", "red"}, index: ptr.To[int32](1)},
		"an index behind the last pool":      {pools: []string{"blue", "red"}, index: ptr.To[int32](2), refused: "status.nodeStatuses[0].poolIndex"},
		"an index without pools":             {index: ptr.To[int32](0), refused: "status.nodeStatuses[0].poolIndex"},
		"a negative index":                   {pools: []string{"blue"}, index: ptr.To[int32](-1), refused: "status.nodeStatuses[0].poolIndex"},
		"a pool without a name":              {pools: []string{"blue", ""}, refused: "status.pools[1]"},
		"a pool that is no value of a label": {pools: []string{strings.Repeat("b", 64)}, refused: "status.pools[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			old := &maintenance.NodeMaintenance{}
			nm := old.DeepCopy()
			nm.Status.Pools = test.pools
			nm.Status.NodeStatuses = []maintenance.NodeMaintenanceNodeStatus{{NodeRef: maintenance.NodeReference{Name: "one"}, PoolIndex: test.index}}
			errs := ValidateNodeMaintenanceStatusUpdate(nm, old)
			if test.refused == "" && len(errs) > 0 || test.refused != "" && (len(errs) != 1 || errs[0].Field != test.refused) {
				t.Errorf("got the errors %v, want one about %q", errs, test.refused)
			}
		})
	}
}
