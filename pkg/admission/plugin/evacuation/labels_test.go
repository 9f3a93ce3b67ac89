// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

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

// applier applies changes of another field manager to an Evacuation, as the API server does.
type applier struct {
	t      *testing.T
	fields *managedfields.FieldManager
	live   *maintenance.Evacuation
}

func newApplier(t *testing.T) *applier {
	t.Helper()
	scheme := registrytest.Scheme
	fields, err := managedfields.NewDefaultFieldManager(applyconfiguration.NewTypeConverter(scheme), scheme, scheme,
		scheme, v1alpha1.SchemeGroupVersion.WithKind("Evacuation"), maintenance.SchemeGroupVersion, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return &applier{t: t, fields: fields}
}

// create runs the field manager before admission, as the API server does.
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

func TestLabelsOfThePodStayWhenAnotherManagerStopsApplying(t *testing.T) {
	many := map[string]string{}
	for i := range 500 {
		many[fmt.Sprintf("k%05d", i)] = "v"
	}
	tests := map[string]struct {
		labels  map[string]string
		applied map[string]any
		runs    int
	}{
		"the manager has applied its own label": {
			labels: map[string]string{"app": "web"}, applied: map[string]any{"ticket": "7"}, runs: 1,
		},
		"the manager has also applied a label of the pod": {
			labels:  map[string]string{"app": "web", "tier": "front"},
			applied: map[string]any{"ticket": "7", "app": "web"}, runs: 1,
		},
		"admission runs twice": {
			labels: map[string]string{"app": "web"}, applied: map[string]any{"ticket": "7"}, runs: 2,
		},
		"the pod has more labels than fit into managedFields": {many, map[string]any{"ticket": "7"}, 1},
		"the pod has no labels":                               {nil, map[string]any{"ticket": "7"}, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil, nil, newPod(func(p *corev1.Pod) { p.Labels = tt.labels }))
			a := newApplier(t)
			a.create(f, request{user: server, object: newEvacuation()}, tt.runs)
			owners := len(a.live.ManagedFields)
			a.apply(tt.applied)
			if a.live.Labels["ticket"] != "7" {
				t.Fatalf("got labels %v, want the applied one", a.live.Labels)
			}
			a.apply(nil)
			if !maps.Equal(a.live.Labels, tt.labels) {
				t.Errorf("got %d labels, %v, want the %d of the pod", len(a.live.Labels), a.live.Labels, len(tt.labels))
			}
			if owners > 2 {
				t.Errorf("got %d managers after the creation, want at most two: the creator and admission", owners)
			}
			for _, entry := range a.live.ManagedFields {
				if size := len(entry.FieldsV1.GetRawBytes()); size > maxOwnershipBytes+1000 {
					t.Errorf("got %d bytes of fields of manager %s, want at most %d",
						size, entry.Manager, maxOwnershipBytes+1000)
				}
			}
		})
	}
}

// TestAdmitAddsNoManagerToAnObjectWithoutManagers covers an object without managedFields: the first
// apply then adds one manager of all fields.
func TestAdmitAddsNoManagerToAnObjectWithoutManagers(t *testing.T) {
	f := newFixture(t, nil, nil, newPod())
	evacuation := newEvacuation()
	if _, err := f.admit(request{user: server, object: evacuation}); err != nil {
		t.Fatal(err)
	}
	if len(evacuation.ManagedFields) > 0 {
		t.Errorf("got managedFields %v, want none", evacuation.ManagedFields)
	}
	a := newApplier(t)
	a.live = evacuation
	a.live.UID, a.live.ResourceVersion = "stored", "1"
	a.apply(map[string]any{"ticket": "7"})
	a.apply(nil)
	if a.live.Labels["app"] != "web" || len(a.live.Finalizers) != 1 {
		t.Errorf("got labels %v and finalizers %v, want app=web and one finalizer", a.live.Labels, a.live.Finalizers)
	}
}
