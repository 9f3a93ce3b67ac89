// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// causes returns a text with the reason and the field of each cause of a refused request.
func causes(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var status apierrors.APIStatus
	must.True(t, apierrors.IsInvalid(err) && errors.As(err, &status), "got %v, want it to be invalid", err)
	var got []string
	for _, cause := range status.Status().Details.Causes {
		got = append(got, string(cause.Type)+" "+cause.Field)
	}
	slices.Sort(got)
	return got
}

func expectCauses(t *testing.T, err error, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := causes(t, err); !slices.Equal(got, want) {
		t.Errorf("refused for %q, want %q (%v)", got, want, err)
	}
}

func TestCreate(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	ctx, warnings := registrytest.WithWarnings(request(t, ann, "create", "", ""))
	in := newEvacuation(
		active("last.example.com"), message("mine"), forbid, condition("Complete", "PodDeleted"),
		func(e *maintenance.Evacuation) {
			e.Name = ""
			e.Spec.ProgressDeadlineSeconds = ptr.To[int32](30)
		},
	)
	obj := must.Get(r.Evacuation.Create(ctx, in, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}))(t)
	got := obj.(*maintenance.Evacuation)
	is.Equal(t, got.Name, name, "the name")
	if st := got.Status; st.ActiveEvacuatorClass != "first.example.com" || st.ActiveEvacuatorCompleted ||
		st.EvacuationProgressTimestamp != nil ||
		!st.ActiveEvacuatorSince.Equal(ptr.To(metav1.NewTime(start).Rfc3339Copy())) ||
		!strings.Contains(st.Message, "first.example.com is active") || st.EvacuationCancellationPolicy != "Allow" ||
		!equality.Semantic.DeepEqual(st.Conditions, notObserved()) {
		t.Errorf("the status is %+v, want that of a new object whose first evacuator is active", st)
	}
	is.Equal(t, got.Generation, 1, "the generation")
	if got.Spec.NodeName != "node-7" || got.Labels["app"] != "web" {
		t.Errorf("the fields that admission set are lost: node %q, labels %v", got.Spec.NodeName, got.Labels)
	}
	want := []maintenance.Evacuator{
		{EvacuatorClass: "first.example.com", Priority: 20000},
		{EvacuatorClass: "deployment.apps.k8s.io", Priority: 10000, Role: "controller"},
		{EvacuatorClass: "last.example.com", Priority: 5},
	}
	if !slices.Equal(got.Spec.Evacuators, want) {
		t.Errorf("the evacuators are %v, want them in the order in which they become active", got.Spec.Evacuators)
	}
	if len(warnings.Texts()) != 1 {
		t.Errorf("warnings are %q, want one of the short deadline", warnings.Texts())
	}
	if _, err := r.create(ann, newEvacuation()); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second one for the same pod: got %v, want that it exists", err)
	}
}

// notObserved returns the conditions of a new Evacuation.
func notObserved() []metav1.Condition {
	return []metav1.Condition{v1alpha1.NotObserved(metav1.NewTime(start).Rfc3339Copy())}
}

func TestCreateKeepsManagedFields(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	for name, test := range map[string]struct {
		user       user.Info
		evacuators []maintenance.Evacuator
	}{
		"of the server, for a pod without evacuators": {user: server},
		"of the server, for a pod with an evacuator": {
			user: server, evacuators: []maintenance.Evacuator{{EvacuatorClass: "a.example.com", Priority: 1}},
		},
		"of a user": {user: ann},
	} {
		t.Run(name, func(t *testing.T) {
			in := newEvacuation(
				forPod("web-"+strconv.Itoa(len(name))), withEvacuators(test.evacuators...),
				func(e *maintenance.Evacuation) {
					e.ManagedFields = []metav1.ManagedFieldsEntry{
						{Manager: "haulout-controllers", Operation: metav1.ManagedFieldsOperationUpdate},
					}
				},
			)
			got := must.Get(r.create(test.user, in))(t)
			is.True(t, len(got.ManagedFields) == 1, "got managed fields %v, want the one entry that was sent", got.ManagedFields)
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	spec := func(change func(*maintenance.EvacuationSpec)) mod {
		return func(e *maintenance.Evacuation) { change(&e.Spec) }
	}
	one := func(class string, priority int32, role maintenance.EvacuatorRole) mod {
		return withEvacuators(maintenance.Evacuator{EvacuatorClass: class, Priority: priority, Role: role})
	}
	many := make([]maintenance.Evacuator, 17)
	for i := range many {
		many[i].EvacuatorClass = string(rune('a'+i)) + ".example.com"
	}
	tests := map[string]struct {
		mod  mod
		want []string
	}{
		"another name": {
			mod:  func(e *maintenance.Evacuation) { e.Name = "other" },
			want: []string{"FieldValueInvalid metadata.name"},
		},
		"no pod name": {
			mod:  func(e *maintenance.Evacuation) { e.Name, e.Spec.PodRef.Name = "", "" },
			want: []string{"FieldValueRequired spec.podRef.name"},
		},
		"no pod UID": {
			mod:  func(e *maintenance.Evacuation) { e.Name, e.Spec.PodRef.UID = "", "" },
			want: []string{"FieldValueRequired spec.podRef.uid"},
		},
		"no pod reference": {
			mod:  func(e *maintenance.Evacuation) { e.Name, e.Spec.PodRef = "", maintenance.PodReference{} },
			want: []string{"FieldValueRequired spec.podRef.name", "FieldValueRequired spec.podRef.uid"},
		},
		"an invalid pod name": {
			mod:  func(e *maintenance.Evacuation) { e.Name, e.Spec.PodRef.Name = "", "Web_1" },
			want: []string{"FieldValueInvalid spec.podRef.name"},
		},
		"no instigator": {mod: finalizers(), want: []string{"FieldValueRequired metadata.finalizers"}},
		"a finalizer that is not an instigator's": {
			mod: finalizers(instigator, "example.com/other"), want: []string{"FieldValueForbidden metadata.finalizers[1]"},
		},
		"more than 16 KiB of labels": {
			mod: func(e *maintenance.Evacuation) {
				for i := range 1000 {
					e.Labels[fmt.Sprintf("label-%04d", i)] = "x"
				}
			},
			want: []string{"FieldValueForbidden metadata"},
		},
		"a deadline of 0": {
			mod:  spec(func(s *maintenance.EvacuationSpec) { s.ProgressDeadlineSeconds = ptr.To[int32](0) }),
			want: []string{"FieldValueInvalid spec.progressDeadlineSeconds"},
		},
		"a deadline of more than a day": {
			mod:  spec(func(s *maintenance.EvacuationSpec) { s.ProgressDeadlineSeconds = ptr.To[int32](86401) }),
			want: []string{"FieldValueInvalid spec.progressDeadlineSeconds"},
		},
		"seventeen evacuators": {mod: withEvacuators(many...), want: []string{"FieldValueTooMany spec.evacuators"}},
		"a class of 55 characters": {
			mod:  one(strings.Repeat("a", 43)+".example.com", 1, ""),
			want: []string{"FieldValueTooLong spec.evacuators[0].evacuatorClass"},
		},
		"a class that is not a domain": {
			mod: one("A_b", 1, ""), want: []string{"FieldValueInvalid spec.evacuators[0].evacuatorClass"},
		},
		"no class": {mod: one("", 1, ""), want: []string{"FieldValueRequired spec.evacuators[0].evacuatorClass"}},
		"a negative priority": {
			mod: one("a.example.com", -1, ""), want: []string{"FieldValueInvalid spec.evacuators[0].priority"},
		},
		"a priority too high": {
			mod: one("a.example.com", 100001, ""), want: []string{"FieldValueInvalid spec.evacuators[0].priority"},
		},
		"an unknown role": {
			mod: one("a.example.com", 10000, "boss"), want: []string{"FieldValueNotSupported spec.evacuators[0].role"},
		},
		"a class twice": {
			mod: withEvacuators(maintenance.Evacuator{EvacuatorClass: "a.example.com", Priority: 1},
				maintenance.Evacuator{EvacuatorClass: "a.example.com", Priority: 2}),
			want: []string{"FieldValueDuplicate spec.evacuators[1]"},
		},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			_, err := r.create(ann, newEvacuation(tt.mod))
			expectCauses(t, err, tt.want...)
		})
	}
}

func TestUpdate(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	tests := map[string]struct {
		mods []mod
		want []string
	}{
		"an instigator is added":         {mods: []mod{finalizers(instigator, "evacuation.coordination.k8s.io/instigator_a")}},
		"the last instigator is removed": {mods: []mod{finalizers()}},
		"labels change":                  {mods: []mod{func(e *maintenance.Evacuation) { e.Labels = nil }}},
		"the status is ignored": {
			mods: []mod{active("first.example.com"), message("x"), condition("Complete", "PodDeleted")},
		},
		"the deadline changes": {
			mods: []mod{func(e *maintenance.Evacuation) { e.Spec.ProgressDeadlineSeconds = ptr.To[int32](5) }},
			want: []string{"FieldValueForbidden spec"},
		},
		"an invalid finalizer": {
			mods: []mod{finalizers(instigator, "evacuation.coordination.k8s.io/instigator_")},
			want: []string{"FieldValueInvalid metadata.finalizers", "FieldValueForbidden metadata.finalizers[1]"},
		},
		"another pod, for the server itself": {
			mods: []mod{func(e *maintenance.Evacuation) { e.Spec.PodRef.UID = "other" }},
			want: []string{"FieldValueForbidden spec"},
		},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			created := r.mustCreate()
			got, err := r.update(server, tt.mods...)
			expectCauses(t, err, tt.want...)
			if err == nil && !equality.Semantic.DeepEqual(got.Status, created.Status) {
				t.Errorf("the status became %+v", got.Status)
			}
		})
	}
}

func TestUpdateNeedsTheResourceVersion(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	evacuation := r.mustCreate()
	evacuation.ResourceVersion = ""
	_, _, err := r.Status.Update(request(t, server, "update", "status", name), name,
		rest.DefaultUpdatedObjectInfo(evacuation), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false,
		&metav1.UpdateOptions{})
	expectCauses(t, err, "FieldValueInvalid metadata.resourceVersion")
}

func TestDeletion(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	exists := func(r *registry) (*maintenance.Evacuation, bool) {
		obj, err := r.Evacuation.Get(request(r.t, server, "get", "", name), name, &metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, false
		}
		if err != nil {
			r.t.Fatal(err)
		}
		return obj.(*maintenance.Evacuation), true
	}
	tests := map[string]struct {
		prepare func(*registry)
		delete  func(*registry)
	}{
		"an Evacuation that was just created": {prepare: func(*registry) {}, delete: (*registry).delete},
		"an Evacuation with an active evacuator": {
			prepare: func(r *registry) {
				r.mustUpdateStatus(server, active("first.example.com"))
				r.mustUpdateStatus(ann, forbid)
			},
			delete: (*registry).delete,
		},
		"a complete Evacuation": {
			prepare: func(r *registry) { r.mustUpdateStatus(server, condition("Complete", "PodDeleted")) },
			delete:  (*registry).delete,
		},
		"all of a namespace": {
			prepare: func(*registry) {},
			delete: func(r *registry) {
				must.Get(r.Evacuation.DeleteCollection(request(r.t, ann, "deletecollection", "", ""),
					rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, &metainternalversion.ListOptions{}))(r.t)
			},
		},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			r.mustCreate()
			tt.prepare(r)
			tt.delete(r)
			got, ok := exists(r)
			must.True(t, ok && got.DeletionTimestamp != nil, "with an instigator it should be marked as deleted, got %v", got)
			if _, err := r.update(ann,
				finalizers(instigator, "evacuation.coordination.k8s.io/instigator_late")); !apierrors.IsInvalid(err) {
				t.Errorf("an instigator joins a deleted one: got %v", err)
			}
			must.Get(r.update(server, finalizers()))(t)
			if got, ok := exists(r); ok {
				t.Errorf("without finalizers it should be gone, got %v", got)
			}
		})
	}
}

func TestFieldSelectors(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.CachedRESTOptions(maintenance.Resource("evacuations")))
	r.mustCreate()
	r.mustUpdateStatus(server, completed)
	r.mustUpdateStatus(server, active("deployment.apps.k8s.io"))
	r.mustUpdateStatus(server, condition("Blocked", "PodDisruptionBudget"))
	r.mustCreate(forPod("web-2"), func(e *maintenance.Evacuation) { e.Spec.NodeName = "node-8" })
	r.mustCreate(forPod("web-3"))

	tests := map[string]struct {
		selector string
		want     []string
	}{
		"by name":                  {"metadata.name=" + name, []string{"web-1"}},
		"by namespace":             {"metadata.namespace=blue", []string{"web-1", "web-2", "web-3"}},
		"by another namespace":     {"metadata.namespace=red", nil},
		"by node":                  {"spec.nodeName=node-7", []string{"web-1", "web-3"}},
		"by node, without a match": {"spec.nodeName=node-9", nil},
		"by other nodes":           {"spec.nodeName!=node-7", []string{"web-2"}},
		"by pod":                   {"spec.podRef.name=web-2", []string{"web-2"}},
		"by active evacuator":      {"status.activeEvacuatorClass=deployment.apps.k8s.io", []string{"web-1"}},
		"by the first evacuator":   {"status.activeEvacuatorClass=first.example.com", []string{"web-2", "web-3"}},
		"by no active evacuator":   {"status.activeEvacuatorClass=", nil},
		"by blocked":               {"status.blocked=true", []string{"web-1"}},
		"by not blocked":           {"status.blocked=false", []string{"web-2", "web-3"}},
		"by node and not blocked":  {"spec.nodeName=node-7,status.blocked=false", []string{"web-3"}},
		"by all fields, with a match": {
			selector: "spec.nodeName=node-7,status.blocked=true,status.activeEvacuatorClass=deployment.apps.k8s.io",
			want:     []string{"web-1"},
		},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			obj := must.Get(r.Evacuation.List(request(t, ann, "list", "", ""),
				&metainternalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie(tt.selector)}))(t)
			var got []string
			for _, item := range obj.(*maintenance.EvacuationList).Items {
				got = append(got, item.Spec.PodRef.Name)
			}
			is.Slices(t, got, tt.want)
		})
	}
}

func TestWatchByActiveEvacuator(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.CachedRESTOptions(maintenance.Resource("evacuations")))
	created := r.mustCreate()
	w := must.Get(r.Evacuation.Watch(request(t, ann, "watch", "", ""), &metainternalversion.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(maintenance.FieldActiveEvacuatorClass, "first.example.com"),
		ResourceVersion: created.ResourceVersion,
	}))(t)
	defer w.Stop()
	next := func(want watch.EventType) {
		t.Helper()
		select {
		case event := <-w.ResultChan():
			must.True(t, event.Type == want, "got %v, want %v", event, want)
		case <-time.After(30 * time.Second):
			t.Fatalf("no event, want %v", want)
		}
	}
	r.mustCreate(forPod("web-2"))
	r.mustUpdateStatus(server, active("first.example.com"))
	next(watch.Added)
	r.mustUpdateStatus(server, message("x"))
	next(watch.Modified)
	r.mustUpdateStatus(ann, completed)
	next(watch.Modified)
	r.mustUpdateStatus(server, active("deployment.apps.k8s.io"))
	next(watch.Deleted)
}

func TestResetFields(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	has := func(sets map[fieldpath.APIVersion]*fieldpath.Set, field string) bool {
		set := sets["maintenance.haulout.dev/v1alpha1"]
		return set != nil && set.Has(fieldpath.MakePathOrDie(field))
	}
	if sets := r.Evacuation.GetResetFields(); !has(sets, "status") || has(sets, "spec") {
		t.Errorf("the main endpoint resets %v", sets)
	}
	if sets := r.Status.GetResetFields(); has(sets, "status") || !has(sets, "spec") || !has(sets, "metadata") {
		t.Errorf("the status endpoint resets %v", sets)
	}
}

func TestNames(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	if got := r.Evacuation.ShortNames(); !slices.Equal(got, []string{"evac"}) {
		t.Errorf("short names are %q", got)
	}
	if got := r.Evacuation.GetSingularName(); got != "evacuation" {
		t.Errorf("the singular is %q", got)
	}
	is.True(t, r.Evacuation.NamespaceScoped(), "not namespaced")
}
