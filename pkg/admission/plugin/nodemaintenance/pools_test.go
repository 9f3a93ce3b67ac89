// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// poolLabel is the label that node sets. Its prefix does not matter here: the flags are checked
// elsewhere.
const poolLabel = "pool"

// takenBy adds nodes to the status that the maintenance has taken through a pool.
func takenBy(pool string, nodes ...string) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) {
		index := slices.Index(nm.Status.Pools, pool)
		if index < 0 {
			index, nm.Status.Pools = len(nm.Status.Pools), append(nm.Status.Pools, pool)
		}
		for _, name := range nodes {
			nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, maintenance.NodeMaintenanceNodeStatus{
				NodeRef: maintenance.NodeReference{Name: name}, PoolIndex: ptr.To(int32(index)),
			})
		}
	}
}

// refers sets the index of the pool of all nodes in the status, even to one that no pool has.
func refers(index int32) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) {
		for i := range nm.Status.NodeStatuses {
			nm.Status.NodeStatuses[i].PoolIndex = &index
		}
	}
}

func TestAuthorizationByPool(t *testing.T) {
	ofBlue, complete := maintain(pools("blue")), atStage("Complete")
	// red-1 was in pool blue when the maintenance took it.
	held := takenBy("blue", "blue-1", "red-1")
	both := maintain(pools("blue", "red"), held)
	for name, test := range map[string]struct {
		may     []string
		request request
		// refused are the nodes that the error names; nil if there is no error.
		refused []string
	}{
		"create for the pool":                    {[]string{"nodepools/blue"}, request{nm: ofBlue}, nil},
		"create for another pool":                {[]string{"nodepools/red"}, request{nm: ofBlue}, []string{"blue-1", "blue-2"}},
		"create for both pools":                  {[]string{"nodepools/red", "nodepools/blue"}, request{nm: maintain(pools("blue", "red"))}, nil},
		"create for one of two pools":            {[]string{"nodepools/blue"}, request{nm: maintain(pools("blue", "red"))}, []string{"red-1"}},
		"create for nodes by name":               {[]string{"nodes/blue-1", "nodes/blue-2"}, request{nm: ofBlue}, nil},
		"create for one of two nodes by name":    {[]string{"nodes/blue-1"}, request{nm: ofBlue}, []string{"blue-2"}},
		"create for the control plane":           {[]string{"nodepools/blue"}, request{nm: maintain(pools("cp"))}, []string{"master"}},
		"create for the control plane, its pool": {[]string{"nodepools/cp"}, request{nm: maintain(pools("cp"))}, []string{"master"}},
		"create for the control plane by name":   {[]string{"nodes/master"}, request{nm: maintain(pools("cp"))}, nil},
		"complete a node that has left the pool": {[]string{"nodepools/blue"}, request{nm: maintain(pools("blue", "red"), held, complete), old: both}, nil},
		"delete a node that has left the pool":   {[]string{"nodepools/blue"}, request{old: both}, nil},
		"delete when it has ended":               {[]string{"nodepools/blue"}, request{old: maintain(pools("blue", "red"), held, complete)}, nil},
		"exclude a node that has left the pool":  {[]string{"nodepools/blue"}, request{nm: maintain(pools("blue"), held), old: both}, nil},
		"keep a node that has left the pool": {
			[]string{"nodepools/blue"}, request{nm: maintain(pools("blue", "red"), held, because("x")), old: both}, []string{"red-1"},
		},
		"complete a node that is in the pool now": {
			[]string{"nodepools/red", "nodepools/blue"}, request{nm: maintain(pools("red"), takenBy("green", "red-1"), complete), old: maintain(pools("red"), takenBy("green", "red-1"))}, nil,
		},
		"complete a node that the maintenance did not take through the pool": {
			[]string{"nodepools/blue"}, request{nm: maintain(pools("blue", "red"), holding("red-1"), complete), old: maintain(pools("blue", "red"), holding("red-1"))}, []string{"red-1"},
		},
		"delete with a taken node that does not exist": {[]string{"nodepools/blue"}, request{old: maintain(pools("blue"), takenBy("blue", "gone"))}, nil},
		"delete with a new node of the name": {[]string{"nodepools/blue"}, request{old: maintain(pools("blue"), takenBy("blue", "red-1"), func(nm *maintenance.NodeMaintenance) {
			nm.Status.NodeStatuses[0].NodeRef.UID = "earlier"
		})}, []string{"red-1"}},
		"delete with an index behind the pools": {[]string{"nodepools/blue"}, request{old: maintain(pools("blue"), takenBy("blue", "red-1"), refers(1))}, []string{"red-1"}},
		"delete with a negative index":          {[]string{"nodepools/blue"}, request{old: maintain(pools("blue"), takenBy("blue", "red-1"), refers(-1))}, []string{"red-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := may()
			h.maintains = test.may
			f := newFixture(t, h, append(slices.Clone(twoPools), node("master", "cp", "control-plane")))
			f.plugin.Rules = rights.Rules{PoolLabel: poolLabel}
			test.request.by = bob
			ctx, _ := f.context(test.request)
			err := f.validate(ctx, test.request)
			if test.refused == nil {
				must.Do(t, err)
			} else {
				want := " of the nodes (" + strings.Join(test.refused, ", ") + ")"
				is.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), want), "got %v, want Forbidden with %q", err, want)
			}
			for i, about := range h.maintainAsked {
				is.True(t, !strings.HasPrefix(about, "nodepools/") || !slices.Contains(h.maintainAsked[:i], about), "asked twice about %s", about)
			}
		})
	}
}

// lists adds a node to the status, for a reason, with the given number of drain targets.
func lists(name string, reason v1alpha1.NodeStatusReason, targets int) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) {
		nm.UID = "uid-a"
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, maintenance.NodeMaintenanceNodeStatus{
			NodeRef: maintenance.NodeReference{Name: name}, Reason: maintenance.NodeStatusReason(reason),
			DrainTargets: make([]maintenance.DrainPlanEntry, targets),
		})
	}
}

// TestNodesThatWereNeverTaken has an operator of pool blue whose maintenance selects a further node
// by an ordinary label, which the operator may not maintain. It must not keep the operator from
// ending the maintenance.
func TestNodesThatWereNeverTaken(t *testing.T) {
	annotated := node("green-1", "green")
	annotated.Annotations = map[string]string{
		v1alpha1.AnnotationCordonedBy: marks.Mark{Storage: "s", Maintenances: marks.Owners{"a": "uid-a"}}.Encode().(string),
	}
	complete, cordon := atStage("Complete"), atStage("Cordon")
	held := finalizers(v1alpha1.FinalizerMaintenanceCompletion)
	third := func(reason v1alpha1.NodeStatusReason, modifiers ...func(*maintenance.NodeMaintenance)) *maintenance.NodeMaintenance {
		return build.With(maintain(pools("blue", "red"), takenBy("blue", "blue-1", "blue-2"), lists("red-1", reason, 0), held), modifiers...)
	}
	selects := func(names ...string) func(*maintenance.NodeMaintenance) {
		return func(nm *maintenance.NodeMaintenance) { nm.Spec.NodeSelector = pools(names...) }
	}
	const refused, gone = v1alpha1.NodeStatusNotAuthorized, v1alpha1.NodeStatusGone
	for name, test := range map[string]struct {
		request request
		// refused is the node that the error names; "" if there is no error.
		refused string
	}{
		"complete":                    {request{nm: third(refused, complete), old: third(refused)}, ""},
		"delete":                      {request{old: third(refused)}, ""},
		"pause":                       {request{nm: third(refused, paused), old: third(refused)}, ""},
		"resume":                      {request{nm: third(refused), old: third(refused, paused)}, ""},
		"remove it from the selector": {request{nm: third(refused, selects("blue")), old: third(refused)}, ""},
		"widen the selector, keep it": {request{nm: third(refused), old: third(refused, selects("red"))}, "red-1"},
		"begin to drain, keep it":     {request{nm: third(refused), old: third(refused, cordon)}, "red-1"},
		"complete, no sync has seen it": {
			request{nm: maintain(pools("blue", "red"), takenBy("blue", "blue-1"), complete), old: maintain(pools("blue", "red"), takenBy("blue", "blue-1"))}, "red-1",
		},
		"complete, it waits for another reason": {
			request{nm: third(v1alpha1.NodeStatusNotCordoned, complete), old: third(v1alpha1.NodeStatusNotCordoned)}, "red-1",
		},
		"complete, it has targets": {
			request{
				nm:  maintain(pools("blue", "red"), lists("red-1", refused, 1), complete),
				old: maintain(pools("blue", "red"), lists("red-1", refused, 1)),
			}, "red-1",
		},
		"delete, the annotations of the node name the maintenance": {
			request{old: maintain(pools("blue", "green"), takenBy("blue", "blue-1"), lists("green-1", refused, 0))}, "green-1",
		},
		"delete, it does not exist any more":  {request{old: maintain(pools("blue"), lists("gone", refused, 0))}, ""},
		"delete, the server knows that, too":  {request{old: maintain(pools("blue"), lists("gone", gone, 0))}, ""},
		"delete, a new node has its name":     {request{old: third(gone, func(nm *maintenance.NodeMaintenance) { nm.Status.NodeStatuses[2].NodeRef.UID = "earlier" })}, "red-1"},
		"delete after the end":                {request{old: third(refused, complete, finalizers())}, ""},
		"delete, matched only since the end":  {request{old: maintain(pools("blue", "red"), takenBy("blue", "blue-1"), complete)}, ""},
		"delete, matched only before the end": {request{old: maintain(pools("blue", "red"), takenBy("blue", "blue-1"), complete, held)}, "red-1"},
	} {
		t.Run(name, func(t *testing.T) {
			h := may()
			h.maintains = []string{"nodepools/blue"}
			f := newFixture(t, h, append(slices.Clone(twoPools), annotated))
			f.plugin.Rules = rights.Rules{PoolLabel: poolLabel}
			test.request.by = bob
			ctx, _ := f.context(test.request)
			err := f.validate(ctx, test.request)
			if test.refused == "" {
				must.Do(t, err)
				return
			}
			is.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), "("+test.refused+")"), "got %v, want Forbidden with %s", err, test.refused)
		})
	}
}

// TestOneQuestionForThePoolOfAWrite has a write that concerns hundreds of nodes of a pool that
// leave and stay.
func TestOneQuestionForThePoolOfAWrite(t *testing.T) {
	var nodes []*corev1.Node
	for i := range 1200 {
		n := node(fmt.Sprintf("n-%04d", i), "blue")
		n.Labels["half"] = fmt.Sprint(i % 2)
		nodes = append(nodes, n)
	}
	h := may()
	h.maintains = []string{"nodepools/blue"}
	f := newFixture(t, h, nodes)
	f.plugin.Rules = rights.Rules{PoolLabel: poolLabel}
	half := maintain(pools("blue"))
	half.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions = append(half.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions,
		corev1.NodeSelectorRequirement{Key: "half", Operator: corev1.NodeSelectorOpIn, Values: []string{"1"}})
	r := request{by: bob, nm: half, old: maintain(pools("blue"))}
	ctx, _ := f.context(r)
	must.Do(t, f.validate(ctx, r))
	is.Slices(t, f.host.asked, []string{""}, "asked about delete")
	is.Slices(t, f.host.maintainAsked, []string{"nodes/", "nodepools/blue"}, "asked about maintain")
}

func TestErrorsNameTheRightsThatAreSufficient(t *testing.T) {
	for name, test := range map[string]struct {
		rules       rights.Rules
		hidden      string
		has, hasNot []string
	}{
		"without pools": {
			has:    []string{`user "bob" may not maintain 2 of the nodes (blue-1, blue-2)`, `"delete" on nodes`, `"maintain" on nodes of maintenance.haulout.dev`},
			hasNot: []string{"nodepools"},
		},
		"with pools": {
			rules: rights.Rules{PoolLabel: "example.com/pool"},
			has:   []string{`"delete" on nodes`, `"maintain" on nodes of maintenance.haulout.dev`, `"maintain" on nodepools`, "label example.com/pool", "name of a pool"},
		},
		"with pools of the nodes": {
			rules: rights.Rules{PoolLabel: poolLabel}, has: []string{`"maintain" on nodepools`, "the label pool; here blue)"},
		},
		"with pools of nodes that the user may not get": {
			rules: rights.Rules{PoolLabel: poolLabel}, hidden: "blue-1 blue-2", has: []string{"2 of the nodes,", "name of a pool"}, hasNot: []string{"blue"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may(), twoPools)
			f.plugin.Rules = test.rules
			for _, node := range strings.Fields(test.hidden) {
				f.host.hidden[node] = true
			}
			r := request{by: bob, nm: maintain(pools("blue"))}
			ctx, _ := f.context(r)
			err := f.validate(ctx, r)
			must.True(t, apierrors.IsForbidden(err), "got %v, want Forbidden", err)
			for _, part := range test.has {
				is.True(t, strings.Contains(err.Error(), part), "got %q, want %q in it", err, part)
			}
			for _, part := range test.hasNot {
				is.True(t, !strings.Contains(err.Error(), part), "got %q, want no %q in it", err, part)
			}
		})
	}
}

// withDefaults completes the drain plan.
func withDefaults(t *testing.T) func(*maintenance.NodeMaintenance) {
	t.Helper()
	return func(nm *maintenance.NodeMaintenance) {
		versioned := &v1alpha1.NodeMaintenance{}
		must.Do(t, v1alpha1.Convert_maintenance_NodeMaintenance_To_v1alpha1_NodeMaintenance(nm, versioned, nil))
		v1alpha1.SetObjectDefaults_NodeMaintenance(versioned)
		must.Do(t, v1alpha1.Convert_v1alpha1_NodeMaintenance_To_maintenance_NodeMaintenance(versioned, nm, nil))
	}
}

// TestStatusWithPoolsMustFit has as many nodes as a cluster may have, with the default plan. An
// operator of pools may maintain all of them, unless there are hundreds of pools with long names.
func TestStatusWithPoolsMustFit(t *testing.T) {
	for name, test := range map[string]struct {
		pools  int
		delete bool
		fits   bool
	}{
		"one pool":                      {pools: 1, fits: true},
		"128 pools":                     {pools: 128, fits: true},
		"500 pools":                     {pools: 500},
		"the user may delete all nodes": {pools: 500, delete: true, fits: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := may()
			var names []string
			for i := range test.pools {
				names = append(names, fmt.Sprintf("%063d", i))
				h.maintains = append(h.maintains, "nodepools/"+names[i])
			}
			var nodes []*corev1.Node
			for i := range 5000 {
				nodes = append(nodes, node(fmt.Sprintf("n-%04d", i), names[i%test.pools]))
				nodes[i].UID = types.UID(fmt.Sprint(i))
			}
			if test.delete {
				h = may(append(allOf(nodes), "")...)
			}
			f := newFixture(t, h, nodes)
			f.plugin.Rules = rights.Rules{PoolLabel: poolLabel}
			r := request{by: bob, nm: maintain(pools(names...), withDefaults(t))}
			ctx, _ := f.context(r)
			err := f.validate(ctx, r)
			is.True(t, test.fits == (err == nil) && (err == nil || apierrors.IsInvalid(err)), "got %v", err)
		})
	}
}
