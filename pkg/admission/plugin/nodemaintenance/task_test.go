// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/testing/is"
)

const rebooter = "reboot.example.com"

func withTask(nm *maintenance.NodeMaintenance) {
	nm.Spec.Task = &maintenance.NodeMaintenanceTask{Worker: rebooter}
}

func TestRightToAssignWorkers(t *testing.T) {
	blue := pools("blue")
	for name, test := range map[string]struct {
		request request
		assigns bool
		want    bool
	}{
		"a new one":                     {request{by: bob, nm: maintain(blue, withTask)}, false, false},
		"a new one with the right":      {request{by: bob, nm: maintain(blue, withTask)}, true, true},
		"without a task":                {request{by: bob, nm: maintain(blue)}, false, true},
		"the next stage":                {request{by: bob, nm: maintain(blue, withTask), old: maintain(blue, withTask, atStage("Idle"))}, false, false},
		"the next stage with the right": {request{by: bob, nm: maintain(blue, withTask), old: maintain(blue, withTask, atStage("Idle"))}, true, true},
		"to complete":                   {request{by: bob, nm: maintain(blue, withTask, atStage("Complete")), old: maintain(blue, withTask)}, false, true},
		"to delete":                     {request{by: bob, old: maintain(blue, withTask)}, false, true},
	} {
		h := may("blue-1", "blue-2")
		if test.assigns {
			h.assigns = []string{rebooter}
		}
		f := newFixture(t, h, twoPools)
		ctx, _ := f.context(test.request)
		err := f.validate(ctx, test.request)
		if test.want {
			is.True(t, err == nil, "%s: %v", name, err)
			continue
		}
		is.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), `user "bob" cannot assign workers "reboot.example.com"`), "%s: got %v", name, err)
	}
}

// TestNodesOfATask has more nodes than the state of their work has room for.
func TestNodesOfATask(t *testing.T) {
	h := may("")
	h.assigns = []string{rebooter}
	for nodes, want := range map[int]string{2600: "", 3000: "spec.nodeSelector: Invalid value: selects 3002 nodes, too many for a task: at most 27"} {
		cluster := manyNodes(nodes)
		for _, node := range cluster {
			h.allowed[node.Name] = true
		}
		f := newFixture(t, h, cluster)
		r := request{by: bob, nm: maintain(pools("blue"), withTask, withDefaults(t))}
		ctx, _ := f.context(r)
		err := f.validate(ctx, r)
		is.True(t, want == "" && err == nil || want != "" && apierrors.IsInvalid(err) && strings.Contains(err.Error(), want), "%d nodes: got %v", nodes, err)
	}
}

func TestNodesHaveNoTasks(t *testing.T) {
	f := newFixture(t, may(), twoPools)
	own := request{by: blue1, nm: shutdown(withTask)}
	f.expect(own, "spec.task")
	own.nm = shutdown(func(nm *maintenance.NodeMaintenance) {
		nm.Spec.DrainPlan = []maintenance.DrainPlanEntry{{PodType: "Default", Behavior: ptr.To(maintenance.DrainBehaviorSkip)}}
	})
	f.expect(own, "spec.drainPlan[0].behavior")
}
