// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"slices"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/testing/must"
)

// FuzzValidate writes generated maintenances as a user who may delete only the nodes of the pool
// blue, and as a user who may maintain this pool. An admitted maintenance must not hold or release
// other nodes. To find the selected nodes, the test uses the node affinity of Kubernetes.
func FuzzValidate(f *testing.F) {
	const blue = `{"apiVersion":"maintenance.haulout.dev/v1alpha1","kind":"NodeMaintenance","metadata":{"name":"a"},` +
		`"spec":{"stage":"Drain","nodeSelector":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"pool","operator":"In","values":["blue"]}]}]}}}`
	const notBlue = `{"apiVersion":"maintenance.haulout.dev/v1alpha1","kind":"NodeMaintenance","metadata":{"name":"a"},` +
		`"spec":{"stage":"Cordon","reason":"r","nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"NotIn","values":["blue-1"]}]}]}}}`
	const unselective = `{"apiVersion":"maintenance.haulout.dev/v1alpha1","kind":"NodeMaintenance","metadata":{"name":"a"},"spec":{"stage":"Cordon","reason":"r"}}`
	f.Add([]byte(blue), []byte(notBlue), byte(0))
	f.Add([]byte(blue), []byte(blue), byte(4))
	f.Add([]byte(notBlue), []byte(""), byte(1))
	f.Add([]byte(blue), []byte(unselective), byte(0))
	read := reader()
	f.Fuzz(func(t *testing.T, written, existing []byte, held byte) {
		nm, old := read(written), read(existing)
		if nm == nil {
			return
		}
		if old != nil {
			for i, node := range twoPools {
				if held&(1<<i) != 0 {
					holding(node.Name)(old)
				}
			}
			nm.Status = old.Status
		}
		ofPool := may()
		ofPool.maintains = []string{"nodepools/blue"}
		admitted := false
		for _, h := range []*host{may("blue-1", "blue-2"), ofPool} {
			fixture := newFixture(t, h, twoPools)
			fixture.plugin.Rules = rights.Rules{PoolLabel: poolLabel}
			ctx, _ := fixture.context(request{by: bob, nm: nm, old: old})
			admitted = fixture.validate(ctx, request{by: bob, nm: nm, old: old}) == nil || admitted
		}
		// A write without a new spec has no effect on nodes.
		if !admitted || old != nil && apiequality.Semantic.DeepEqual(nm.Spec, old.Spec) {
			return
		}
		for _, m := range []*maintenance.NodeMaintenance{nm, old} {
			for _, name := range touched(t, m) {
				if name != "blue-1" && name != "blue-2" {
					t.Fatalf("%s may not maintain node %s, but may write\n%+v\nin place of\n%+v", bob.Name, name, nm, old)
				}
			}
		}
	})
}

// FuzzNodeAgent writes generated maintenances as node blue-1. An admitted maintenance must concern
// only this node, and a maintenance that another user has requested must not change.
func FuzzNodeAgent(f *testing.F) {
	const head = `{"apiVersion":"maintenance.haulout.dev/v1alpha1","kind":"NodeMaintenance","metadata":{"name":"shutdown-blue-1-1b4e28ba",` +
		`"annotations":{"maintenance.haulout.dev/boot-id":"1b4e28ba-2fa1-11d2-883f-0016d3cca427"}},"spec":{"reason":"node shutdown",`
	const byName = `{"matchFields":[{"key":"metadata.name","operator":"In","values":["blue-1"]}]}`
	const own = head + `"stage":"Drain","nodeSelector":{"nodeSelectorTerms":[` + byName + `]}}}`
	const ended = head + `"stage":"Complete","nodeSelector":{"nodeSelectorTerms":[` + byName + `]}}}`
	const wide = head + `"stage":"Drain","nodeSelector":{"nodeSelectorTerms":[` + byName +
		`,{"matchExpressions":[{"key":"pool","operator":"Exists"}]}]}}}`
	f.Add([]byte(own), []byte(""), true)
	f.Add([]byte(wide), []byte(""), true)
	f.Add([]byte(ended), []byte(own), true)
	f.Add([]byte(ended), []byte(own), false)
	f.Add([]byte(wide), []byte(own), true)
	f.Add([]byte(ended), []byte(wide), true)
	read := reader()
	f.Fuzz(func(t *testing.T, written, existing []byte, byNode bool) {
		nm, old := read(written), read(existing)
		if nm == nil {
			return
		}
		if old != nil {
			old.Spec.RequestedBy = requestedBy(bob)
			if byNode {
				old.Spec.RequestedBy = requestedBy(blue1)
			}
			nm.Spec.RequestedBy = old.Spec.RequestedBy
		}
		fixture := newFixture(t, may(), twoPools)
		for _, r := range []request{{by: blue1, nm: nm, old: old}, {by: blue1, old: old}} {
			if r.nm == nil && r.old == nil {
				continue
			}
			ctx, _ := fixture.context(r)
			if err := fixture.validate(ctx, r); err != nil {
				continue
			}
			if old != nil && !byNode {
				t.Fatalf("the node may write\n%+v\nin place of\n%+v\nof another user", r.nm, old)
			}
			for _, m := range []*maintenance.NodeMaintenance{r.nm, old} {
				if names := touched(t, m); m != nil && !slices.Equal(names, []string{"blue-1"}) {
					t.Fatalf("the node may write\n%+v\nin place of\n%+v\nwhich touch the nodes %q", r.nm, old, names)
				}
			}
		}
	})
}

// reader returns a function that parses a maintenance, or returns nil if the API server would
// refuse it.
func reader() func(data []byte) *maintenance.NodeMaintenance {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme).UniversalDecoder(maintenance.SchemeGroupVersion)
	return func(data []byte) *maintenance.NodeMaintenance {
		obj, _, err := decoder.Decode(data, nil, nil)
		nm, ok := obj.(*maintenance.NodeMaintenance)
		// A missing selector is not an error of the validation below: the strategy reports it
		// because of a validation tag.
		if err != nil || !ok || nm.Spec.NodeSelector == nil || len(validation.ValidateNodeMaintenance(nm)) > 0 {
			return nil
		}
		nm.Status = maintenance.NodeMaintenanceStatus{}
		return nm
	}
}

// touched returns the nodes that a maintenance selects or holds.
func touched(t *testing.T, nm *maintenance.NodeMaintenance) []string {
	t.Helper()
	var names []string
	if nm == nil {
		return nil
	}
	for i := range nm.Status.NodeStatuses {
		names = append(names, nm.Status.NodeStatuses[i].NodeRef.Name)
	}
	selector, err := nodeaffinity.NewNodeSelector(nm.Spec.NodeSelector)
	must.True(t, err == nil, "a valid selector cannot be used: %v", err)
	for _, node := range twoPools {
		if selector.Match(node) && !slices.Contains(names, node.Name) {
			names = append(names, node.Name)
		}
	}
	return names
}
