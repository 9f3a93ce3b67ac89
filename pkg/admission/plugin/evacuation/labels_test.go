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
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
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
	fields := must.Get(managedfields.NewDefaultFieldManager(applyconfiguration.NewTypeConverter(scheme), scheme, scheme,
		scheme, v1alpha1.SchemeGroupVersion.WithKind("Evacuation"), maintenance.SchemeGroupVersion, "", nil))(t)
	return &applier{t: t, fields: fields}
}

// create runs the field manager before admission, as the API server does.
func (a *applier) create(f *fixture, r request, runs int) {
	a.t.Helper()
	r.object = a.fields.UpdateNoErrors(&v1alpha1.Evacuation{}, r.object, "creator").(*maintenance.Evacuation)
	for range runs {
		must.Get(f.admit(r))(a.t)
	}
	must.Do(a.t, managedfields.ValidateManagedFields(r.object.ManagedFields))
	a.live = r.object
	a.live.UID, a.live.ResourceVersion = "stored", "1"
}

func (a *applier) apply(labels map[string]any) {
	a.t.Helper()
	metadata := map[string]any{"name": a.live.Name, "namespace": a.live.Namespace}
	if labels != nil {
		metadata["labels"] = labels
	}
	applied := must.Get(a.fields.Apply(a.live, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "Evacuation", "metadata": metadata,
	}}, "other", false))(a.t)
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
		"the manager has applied its own label": {map[string]string{"app": "web"}, map[string]any{"ticket": "7"}, 1},
		"the manager has also applied a label of the pod": {
			map[string]string{"app": "web", "tier": "front"}, map[string]any{"ticket": "7", "app": "web"}, 1,
		},
		"admission runs twice":                                {map[string]string{"app": "web"}, map[string]any{"ticket": "7"}, 2},
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
			must.True(t, a.live.Labels["ticket"] == "7", "got labels %v, want the applied one", a.live.Labels)
			a.apply(nil)
			if !maps.Equal(a.live.Labels, tt.labels) {
				t.Errorf("got %d labels, %v, want the %d of the pod", len(a.live.Labels), a.live.Labels, len(tt.labels))
			}
			is.True(t, owners <= 2, "got %d managers after the creation, want at most two: the creator and admission", owners)
			for _, entry := range a.live.ManagedFields {
				if size := len(entry.FieldsV1.GetRawBytes()); size > maxOwnershipBytes+1000 {
					t.Errorf("got %d bytes of fields of manager %s, want at most %d",
						size, entry.Manager, maxOwnershipBytes+1000)
				}
			}
		})
	}
}

// TestAdmitAddsNoManagerToAnObjectWithoutManagers creates an object without managedFields: the
// first apply then adds one manager for all fields.
func TestAdmitAddsNoManagerToAnObjectWithoutManagers(t *testing.T) {
	f := newFixture(t, nil, nil, newPod())
	evacuation := newEvacuation()
	must.Get(f.admit(request{user: server, object: evacuation}))(t)
	is.True(t, len(evacuation.ManagedFields) == 0, "got managedFields %v, want none", evacuation.ManagedFields)
	a := newApplier(t)
	a.live = evacuation
	a.live.UID, a.live.ResourceVersion = "stored", "1"
	a.apply(map[string]any{"ticket": "7"})
	a.apply(nil)
	if a.live.Labels["app"] != "web" || len(a.live.Finalizers) != 1 {
		t.Errorf("got labels %v and finalizers %v, want app=web and one finalizer", a.live.Labels, a.live.Finalizers)
	}
}
