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

package evacuation

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/applyconfiguration"
	"haulout.dev/haulout/pkg/registry/registrytest"
)

// applier is another manager that applies to an Evacuation, as the API server carries it out.
type applier struct {
	t      *testing.T
	fields *managedfields.FieldManager
	live   *maintenance.Evacuation
}

func newApplier(t *testing.T) *applier {
	t.Helper()
	scheme := registrytest.Scheme
	fields, err := managedfields.NewDefaultFieldManager(
		applyconfiguration.NewTypeConverter(scheme), scheme, scheme, scheme,
		v1alpha1.SchemeGroupVersion.WithKind("Evacuation"), maintenance.SchemeGroupVersion, "", nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	return &applier{t: t, fields: fields}
}

// create goes the way of a request: the field manager comes before admission.
func (a *applier) create(f *fixture, r request, runs int) {
	a.t.Helper()
	r.object = a.fields.UpdateNoErrors(&v1alpha1.Evacuation{}, r.object, "creator").(*maintenance.Evacuation)
	for range runs {
		if _, err := f.admit(r); err != nil {
			a.t.Fatal(err)
		}
	}
	if err := managedfields.ValidateManagedFields(r.object.ManagedFields); err != nil {
		a.t.Fatal(err)
	}
	a.live = r.object
	a.live.UID, a.live.ResourceVersion = "stored", "1"
}

func (a *applier) apply(labels map[string]any) {
	a.t.Helper()
	metadata := map[string]any{"name": a.live.Name, "namespace": a.live.Namespace}
	if labels != nil {
		metadata["labels"] = labels
	}
	applied, err := a.fields.Apply(a.live, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "Evacuation", "metadata": metadata,
	}}, "other", false)
	if err != nil {
		a.t.Fatal(err)
	}
	a.live = applied.(*maintenance.Evacuation)
}

func TestLabelsOfThePodOutliveTheWithdrawalOfAnotherManager(t *testing.T) {
	many := map[string]string{}
	for i := range 500 {
		many[fmt.Sprintf("k%05d", i)] = "v"
	}
	tests := map[string]struct {
		labels  map[string]string
		applied map[string]any
		runs    int
	}{
		"which had its own label": {map[string]string{"app": "web"}, map[string]any{"ticket": "7"}, 1},
		"which had one of them, too": {
			labels:  map[string]string{"app": "web", "tier": "front"},
			applied: map[string]any{"ticket": "7", "app": "web"},
			runs:    1,
		},
		"after admission ran twice":              {map[string]string{"app": "web"}, map[string]any{"ticket": "7"}, 2},
		"although there are too many to list":    {many, map[string]any{"ticket": "7"}, 1},
		"of a pod that has no labels of its own": {nil, map[string]any{"ticket": "7"}, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil, nil, newPod(func(p *corev1.Pod) { p.Labels = tt.labels }))
			a := newApplier(t)
			a.create(f, request{user: server, object: newEvacuation()}, tt.runs)
			owners := len(a.live.ManagedFields)
			a.apply(tt.applied)
			if a.live.Labels["ticket"] != "7" {
				t.Fatalf("the label was not applied: %v", a.live.Labels)
			}
			a.apply(nil)
			if !maps.Equal(a.live.Labels, tt.labels) {
				t.Errorf("%d labels are left, %v, want the %d of the pod",
					len(a.live.Labels), a.live.Labels, len(tt.labels))
			}
			if owners > 2 {
				t.Errorf("%d managers own fields after the creation, want the creator and admission", owners)
			}
			for _, entry := range a.live.ManagedFields {
				if size := len(entry.FieldsV1.GetRawBytes()); size > maxOwnershipBytes+1000 {
					t.Errorf("the list of what %s owns takes %d bytes", entry.Manager, size)
				}
			}
		})
	}
}

// TestObjectsWithoutManagersGetNone: the first apply makes one manager of all fields then.
func TestObjectsWithoutManagersGetNone(t *testing.T) {
	f := newFixture(t, nil, nil, newPod())
	evacuation := newEvacuation()
	if _, err := f.admit(request{user: server, object: evacuation}); err != nil {
		t.Fatal(err)
	}
	if len(evacuation.ManagedFields) > 0 {
		t.Errorf("got %v", evacuation.ManagedFields)
	}
	a := newApplier(t)
	a.live = evacuation
	a.live.UID, a.live.ResourceVersion = "stored", "1"
	a.apply(map[string]any{"ticket": "7"})
	a.apply(nil)
	if a.live.Labels["app"] != "web" || len(a.live.Finalizers) != 1 {
		t.Errorf("labels %v, finalizers %v", a.live.Labels, a.live.Finalizers)
	}
}
