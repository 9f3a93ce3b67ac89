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
)

// FuzzValidate writes generated maintenances as a user who may delete the nodes of the pool blue
// only. Whatever is admitted must hold and release no other nodes. Which nodes a selector selects
// is decided as for pods with node affinity.
func FuzzValidate(f *testing.F) {
	const blue = `{"apiVersion":"maintenance.haulout.dev/v1alpha1","kind":"NodeMaintenance","metadata":{"name":"a"},` +
		`"spec":{"stage":"Drain","nodeSelector":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"pool","operator":"In","values":["blue"]}]}]}}}`
	const notBlue = `{"apiVersion":"maintenance.haulout.dev/v1alpha1","kind":"NodeMaintenance","metadata":{"name":"a"},` +
		`"spec":{"stage":"Cordon","reason":"r","nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"NotIn","values":["blue-1"]}]}]}}}`
	f.Add([]byte(blue), []byte(notBlue), byte(0))
	f.Add([]byte(blue), []byte(blue), byte(4))
	f.Add([]byte(notBlue), []byte(""), byte(1))
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme).UniversalDecoder(maintenance.SchemeGroupVersion)
	read := func(data []byte) *maintenance.NodeMaintenance {
		obj, _, err := decoder.Decode(data, nil, nil)
		nm, ok := obj.(*maintenance.NodeMaintenance)
		if err != nil || !ok || len(validation.ValidateNodeMaintenance(nm)) > 0 {
			return nil
		}
		nm.Status = maintenance.NodeMaintenanceStatus{}
		return nm
	}
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
		fixture := newFixture(t, may("blue-1", "blue-2"), twoPools)
		ctx, _ := fixture.context(request{by: bob, nm: nm, old: old})
		if err := fixture.validate(ctx, request{by: bob, nm: nm, old: old}); err != nil {
			return
		}
		if old != nil && apiequality.Semantic.DeepEqual(nm.Spec, old.Spec) {
			return // the write has no effect on nodes
		}
		for _, m := range []*maintenance.NodeMaintenance{nm, old} {
			for _, name := range touched(t, m) {
				if name != "blue-1" && name != "blue-2" {
					t.Fatalf("%s may not delete node %s, but may write\n%+v\nin place of\n%+v", bob.Name, name, nm, old)
				}
			}
		}
	})
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
	if err != nil {
		t.Fatalf("a valid selector cannot be used: %v", err)
	}
	for _, node := range twoPools {
		if selector.Match(node) && !slices.Contains(names, node.Name) {
			names = append(names, node.Name)
		}
	}
	return names
}
