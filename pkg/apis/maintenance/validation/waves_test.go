// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"testing"

	"haulout.dev/haulout/pkg/apis/maintenance"
)

func TestWavesAreThoseOfThePlan(t *testing.T) {
	for name, test := range map[string]struct {
		entries []int32
		refused string
	}{
		"none":                           {},
		"waves that have pods":           {entries: []int32{0, 2}},
		"a wave that is not in the plan": {entries: []int32{1, 3}, refused: "status.waves[1].entry"},
		"one twice":                      {entries: []int32{1, 1}, refused: "status.waves[1].entry"},
		"another order than the plan":    {entries: []int32{1, 0}, refused: "status.waves[1].entry"},
		"a wave with a negative index":   {entries: []int32{-1}, refused: "status.waves[0].entry"},
	} {
		t.Run(name, func(t *testing.T) {
			old := &maintenance.NodeMaintenance{Spec: maintenance.NodeMaintenanceSpec{DrainPlan: make([]maintenance.DrainPlanEntry, 3)}}
			nm := old.DeepCopy()
			for _, entry := range test.entries {
				nm.Status.Waves = append(nm.Status.Waves, maintenance.NodeMaintenanceWave{Entry: entry})
			}
			errs := ValidateNodeMaintenanceStatusUpdate(nm, old)
			if test.refused == "" && len(errs) > 0 || test.refused != "" && (len(errs) != 1 || errs[0].Field != test.refused) {
				t.Errorf("got the errors %v, want one about %q", errs, test.refused)
			}
		})
	}
}
