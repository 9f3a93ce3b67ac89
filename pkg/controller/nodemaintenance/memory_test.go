// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"reflect"
	"slices"
	"testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// wantSameDecision checks that the cached views of nodes do not change the decision about a
// maintenance.
func (f *fixture) wantSameDecision(name string) {
	f.t.Helper()
	nm, exists := f.latest.Get(name)
	if !exists || v1alpha1.IsDone(nm) {
		return
	}
	remembered := f.decisionOf(nm)
	for _, node := range f.nodeList() {
		f.state.DropView(node.Name)
	}
	if fresh := f.decisionOf(nm); !reflect.DeepEqual(remembered, fresh) {
		f.t.Errorf("%s: got %+v with the caches, %+v without", name, remembered, fresh)
	}
}

// seen is the result of gathering and deciding.
type seen struct {
	status  v1alpha1.NodeMaintenanceStatus
	targets map[string][]v1alpha1.DrainPlanEntry
	unasked []string
	// unwanted has the names of Evacuations.
	unwanted []string
}

func (f *fixture) decisionOf(nm *v1alpha1.NodeMaintenance) seen {
	f.t.Helper()
	facts, err := f.gather(f.ctx, nm)
	if err != nil {
		f.t.Fatal(err)
	}
	d, err := decide(facts)
	if err != nil {
		f.t.Fatal(err)
	}
	s := seen{status: *d.status.DeepCopy(), targets: map[string][]v1alpha1.DrainPlanEntry{}}
	for node, targets := range d.plan.Targets {
		s.targets[node] = targets.Entries
	}
	for _, n := range d.counts {
		for _, pod := range n.unasked {
			s.unasked = append(s.unasked, pod.Name)
		}
		for _, e := range n.unwanted {
			s.unwanted = append(s.unwanted, e.Name)
		}
	}
	return s
}

// TestEveryFieldOfANodeStatusIsCompared changes each field, and each field of a nested struct. The
// controller would never write a change of a field that it does not compare.
func TestEveryFieldOfANodeStatusIsCompared(t *testing.T) {
	for _, list := range []reflect.Type{reflect.TypeFor[v1alpha1.NodeMaintenanceNodeStatus](), reflect.TypeFor[v1alpha1.DrainPlanEntry]()} {
		for _, field := range fields(list) {
			a := v1alpha1.NodeMaintenanceNodeStatus{DrainTargets: []v1alpha1.DrainPlanEntry{{}}}
			b := *a.DeepCopy()
			if !sameNodeStatus(&a, &b) {
				t.Fatal("a copy differs")
			}
			value := reflect.ValueOf(&b).Elem()
			if list == reflect.TypeFor[v1alpha1.DrainPlanEntry]() {
				value = reflect.ValueOf(&b.DrainTargets[0]).Elem()
			}
			change(t, value.FieldByIndex(field.Index))
			if sameNodeStatus(&a, &b) {
				t.Errorf("%s.%s is not compared", list.Name(), field.Name)
			}
		}
	}
}

// fields returns the fields of a struct. Instead of a nested struct, it returns the fields of the
// nested struct.
func fields(of reflect.Type) []reflect.StructField {
	var out []reflect.StructField
	for _, field := range reflect.VisibleFields(of) {
		if field.Type.Kind() != reflect.Struct {
			out = append(out, field)
			continue
		}
		for _, inner := range fields(field.Type) {
			inner.Index = append(slices.Clone(field.Index), inner.Index...)
			out = append(out, inner)
		}
	}
	return out
}

// change sets a field to another value.
func change(t *testing.T, field reflect.Value) {
	t.Helper()
	switch field.Kind() {
	case reflect.String:
		field.SetString("changed")
	case reflect.Int32:
		field.SetInt(7)
	case reflect.Slice:
		field.SetZero()
	case reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
	default:
		t.Fatalf("no other value for a %s", field.Kind())
	}
}
