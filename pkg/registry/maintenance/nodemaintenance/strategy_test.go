// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authentication/user"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/maintenance/status"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestCreate(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	for name, test := range map[string]struct {
		stage      maintenance.NodeMaintenanceStage
		finalizers []string
		wantStages []maintenance.NodeMaintenanceStage
		want       []string
	}{
		"without a stage it is Idle and has no finalizer": {wantStages: []maintenance.NodeMaintenanceStage{idle}},
		"in Idle the completion finalizer of a client is dropped, others are kept": {
			stage: idle, finalizers: []string{completion, "example.com/mine"},
			wantStages: []maintenance.NodeMaintenanceStage{idle}, want: []string{"example.com/mine"},
		},
		"in Cordon it has the finalizer": {
			stage: cordon, wantStages: []maintenance.NodeMaintenanceStage{cordon}, want: []string{completion},
		},
		"in Drain it has entered Cordon and Drain": {
			stage: drain, finalizers: []string{"example.com/mine"},
			wantStages: []maintenance.NodeMaintenanceStage{cordon, drain},
			want:       []string{"example.com/mine", completion},
		},
		"in Complete it has the finalizer": {
			stage: complete, finalizers: []string{completion}, wantStages: []maintenance.NodeMaintenanceStage{complete},
			want: []string{completion},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			in := newMaintenance(t, "a", atStage(test.stage), func(nm *v1alpha1.NodeMaintenance) {
				nm.Finalizers = test.finalizers
				nm.Spec.RequestedBy = &authenticationv1.UserInfo{Username: "mallory"}
				nm.Status.ObservedGeneration = 7
				nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{
					{NodeRef: v1alpha1.NodeReference{Name: "n"}},
				}
				nm.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.NodeMaintenanceStageComplete}}
				nm.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Mine"}}
			})
			out := r.mustCreate(ann, in)
			wantStages(t, out, test.wantStages...)
			stagesOf(t, out, start, start)
			wantFinalizers(t, out, test.want...)
			if !reflect.DeepEqual(out.Spec.RequestedBy, annInfo()) {
				t.Errorf("requestedBy is %v, want ann with groups and extra", out.Spec.RequestedBy)
			}
			if out.Generation != 1 || out.Status.ObservedGeneration != 0 || out.Status.NodeStatuses != nil {
				t.Errorf("generation %d and status %v, want 1 and no status of the client", out.Generation, out.Status)
			}
			if want := v1alpha1.NotObserved(metav1.NewTime(start).Rfc3339Copy()); !apiequality.Semantic.DeepEqual(out.Status.Conditions, []metav1.Condition{want}) {
				t.Errorf("got conditions %+v, want that the object is not observed", out.Status.Conditions)
			}
			if stored := r.get("a"); !apiequality.Semantic.DeepEqual(stored, out) {
				t.Errorf("stored %v differs from the response %v", stored, out)
			}
		})
	}
}

func TestCreateRefusesWithPathAndType(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	for name, test := range map[string]struct {
		modify func(*v1alpha1.NodeMaintenance)
		want   []string
	}{
		"no selector": {
			modify: func(nm *v1alpha1.NodeMaintenance) { nm.Spec.NodeSelector = nil },
			want:   []string{"spec.nodeSelector FieldValueRequired"},
		},
		"an unknown stage": {modify: atStage("Sleep"), want: []string{"spec.stage FieldValueNotSupported"}},
		"an unknown pod type": {
			modify: func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.DrainPlan = []v1alpha1.DrainPlanEntry{{PodType: "Bare"}}
			},
			want: []string{"spec.drainPlan[0].podType FieldValueNotSupported"},
		},
		"a reason of 1025 bytes": {
			modify: func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Reason = strings.Repeat("x", 1025) },
			want:   []string{"spec.reason FieldValueTooLong"},
		},
		"a name that is not a DNS subdomain": {
			modify: func(nm *v1alpha1.NodeMaintenance) { nm.Name = "A_b" },
			want:   []string{"metadata.name FieldValueInvalid"},
		},
		"a plan in the wrong order": {
			modify: func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.DrainPlan = []v1alpha1.DrainPlanEntry{{PodPriority: 20}, {PodPriority: 10}}
			},
			want: []string{"spec.drainPlan[1] FieldValueInvalid"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newRegistry(t, etcd).create(ann, newMaintenance(t, "a", test.modify))
			if got := causes(err); !apierrors.IsInvalid(err) || !slices.Equal(got, test.want) {
				t.Errorf("causes are %q, want %q: %v", got, test.want, err)
			}
		})
	}
}

// causes returns the path and the type of each cause: the validation tags and the handwritten code
// together must report each mistake only once.
func causes(err error) []string {
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Details == nil {
		return nil
	}
	var all []string
	for _, cause := range status.ErrStatus.Details.Causes {
		all = append(all, cause.Field+" "+string(cause.Type))
	}
	return all
}

func TestStageChanges(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	for name, test := range map[string]struct {
		from, to maintenance.NodeMaintenanceStage
		want     []maintenance.NodeMaintenanceStage
	}{
		"Idle to Cordon":      {idle, cordon, []maintenance.NodeMaintenanceStage{idle, cordon}},
		"Idle to Drain":       {idle, drain, []maintenance.NodeMaintenanceStage{idle, cordon, drain}},
		"Idle to Complete":    {idle, complete, []maintenance.NodeMaintenanceStage{idle, complete}},
		"Cordon to Drain":     {cordon, drain, []maintenance.NodeMaintenanceStage{cordon, drain}},
		"Cordon to Complete":  {cordon, complete, []maintenance.NodeMaintenanceStage{cordon, complete}},
		"Drain to Complete":   {drain, complete, []maintenance.NodeMaintenanceStage{cordon, drain, complete}},
		"Cordon to Idle":      {cordon, idle, nil},
		"Drain to Cordon":     {drain, cordon, nil},
		"Complete to Drain":   {complete, drain, nil},
		"Complete to Idle":    {complete, idle, nil},
		"Drain to an unknown": {drain, "Sleep", nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			r.mustCreate(ann, newMaintenance(t, "a", atStage(test.from)))
			r.clock.SetTime(start.Add(time.Hour))
			out, err := r.update(bob, "a", setStage(test.to))
			if test.want == nil {
				if got := causes(err); !apierrors.IsInvalid(err) || len(got) != 1 ||
					!strings.HasPrefix(got[0], "spec.stage ") {
					t.Errorf("causes are %q, want one at spec.stage: %v", got, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantStages(t, out, test.want...)
			last := out.Status.StageStatuses[len(test.want)-1].StartTimestamp.Time
			if !last.Equal(start.Add(time.Hour).Truncate(time.Second)) {
				t.Errorf("the stage was entered at %v, want the time of the request", last)
			}
			wantFinalizers(t, out, completion)
			if out.Generation != 2 || !reflect.DeepEqual(out.Spec.RequestedBy, bobInfo()) {
				t.Errorf("generation %d, requestedBy %v, want 2 and bob", out.Generation, out.Spec.RequestedBy)
			}
		})
	}
}

func TestRequestedBy(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	for name, test := range map[string]struct {
		by     user.Info
		change func(*maintenance.NodeMaintenance)
		want   *authenticationv1.UserInfo
	}{
		"the user who changes the selector": {
			by: bob, change: func(nm *maintenance.NodeMaintenance) { nm.Spec.NodeSelector = poolSelector("red") },
			want: bobInfo(),
		},
		"the user who changes newNodes": {
			by:     bob,
			change: func(nm *maintenance.NodeMaintenance) { nm.Spec.NewNodes = maintenance.NewNodesPolicyJoin },
			want:   bobInfo(),
		},
		"the user who advances the stage": {by: bob, change: setStage(drain), want: bobInfo()},
		"not the user who changes the reason": {
			by: bob, change: func(nm *maintenance.NodeMaintenance) { nm.Spec.Reason = "kernel" }, want: annInfo(),
		},
		"not the user whom a client names": {
			by: bob, change: func(nm *maintenance.NodeMaintenance) { nm.Spec.RequestedBy = bobInfo() }, want: annInfo(),
		},
		"no other user if a client removes the requester": {
			by: bob, change: func(nm *maintenance.NodeMaintenance) { nm.Spec.RequestedBy = nil }, want: annInfo(),
		},
		"not the server, which acts for ann": {by: self, change: setStage(complete), want: annInfo()},
		"a user with the server's name, who is not the server": {
			by: root, change: setStage(complete),
			want: &authenticationv1.UserInfo{
				Username: "system:apiserver", Groups: []string{user.SystemPrivilegedGroup},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			r.mustCreate(ann, newMaintenance(t, "a", atStage(cordon)))
			if out := r.mustUpdate(test.by, "a", test.change); !reflect.DeepEqual(out.Spec.RequestedBy, test.want) {
				t.Errorf("requestedBy is %v, want %v", out.Spec.RequestedBy, test.want)
			}
		})
	}
}

func TestUpdateOfNothingWritesNothing(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	inOne := func(values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values},
			},
		}
	}
	for name, change := range map[string]func(*maintenance.NodeMaintenance){
		"a client cannot set status, requestedBy and the finalizer": func(nm *maintenance.NodeMaintenance) {
			nm.Status = maintenance.NodeMaintenanceStatus{ObservedGeneration: 9}
			nm.Spec.RequestedBy = nil
			nm.Finalizers = nil
		},
		"the same plan in an equivalent form": func(nm *maintenance.NodeMaintenance) {
			nm.Spec.DrainPlan[0].PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			before := r.mustCreate(ann, newMaintenance(t, "a", atStage(drain), func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.DrainPlan = []v1alpha1.DrainPlanEntry{{PodPriority: 10, PodSelector: inOne("a")}}
			}))
			if after := r.mustUpdate(bob, "a", change); !apiequality.Semantic.DeepEqual(before, after) {
				t.Errorf("changed from %v to %v", before, after)
			}
		})
	}
}

func TestUpdateNeedsAResourceVersion(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.mustCreate(ann, newMaintenance(t, "a"))
	_, err := r.update(ann, "a", func(nm *maintenance.NodeMaintenance) { nm.ResourceVersion = "" })
	if got := causes(err); !slices.Equal(got, []string{"metadata.resourceVersion FieldValueInvalid"}) {
		t.Errorf("causes are %q: %v", got, err)
	}
	_, err = r.update(ann, "a", func(nm *maintenance.NodeMaintenance) { nm.ResourceVersion = "1" })
	is.True(t, apierrors.IsConflict(err), "an old version gives %v, want a conflict", err)
}

func TestCompletionFinalizer(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	for name, test := range map[string]struct {
		stage  maintenance.NodeMaintenanceStage
		by     user.Info
		change func(*maintenance.NodeMaintenance)
		want   []string
	}{
		"a client removes it in Cordon": {stage: cordon, by: bob, change: setFinalizers(), want: []string{completion}},
		"a client replaces it in Drain": {
			stage: drain, by: bob, change: setFinalizers("example.com/mine"),
			want: []string{"example.com/mine", completion},
		},
		"a client removes it in Complete": {
			stage: complete, by: bob, change: setFinalizers(), want: []string{completion},
		},
		"a user with the server's name removes it": {
			stage: complete, by: root, change: setFinalizers(), want: []string{completion},
		},
		"the server removes it in Drain":    {stage: drain, by: self, change: setFinalizers(), want: []string{completion}},
		"the server removes it in Complete": {stage: complete, by: self, change: setFinalizers()},
		"a client adds it in Idle":          {stage: idle, by: bob, change: setFinalizers(completion)},
		"the server removes it and advances to Complete": {
			stage: drain, by: self,
			change: func(nm *maintenance.NodeMaintenance) { setStage(complete)(nm); setFinalizers()(nm) },
			want:   []string{completion},
		},
		"a client removes it and advances from Idle to Drain": {
			stage: idle, by: bob,
			change: func(nm *maintenance.NodeMaintenance) { setStage(drain)(nm); setFinalizers()(nm) },
			want:   []string{completion},
		},
		"a client adds its own finalizer in Idle": {
			stage: idle, by: bob, change: setFinalizers("example.com/mine"), want: []string{"example.com/mine"},
		},
		"a client drops it together with Cordon to Drain": {
			stage: cordon, by: bob,
			change: func(nm *maintenance.NodeMaintenance) { setStage(drain)(nm); setFinalizers()(nm) },
			want:   []string{completion},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			r.mustCreate(ann, newMaintenance(t, "a", atStage(test.stage)))
			wantFinalizers(t, r.mustUpdate(test.by, "a", test.change), test.want...)
		})
	}
	t.Run("it is not added again once the server has removed it", func(t *testing.T) {
		r := newRegistry(t, etcd)
		r.mustCreate(ann, newMaintenance(t, "a", atStage(complete)))
		r.mustUpdate(self, "a", setFinalizers())
		wantFinalizers(t, r.mustUpdate(bob, "a", setFinalizers(completion)))
		wantFinalizers(t, r.mustUpdate(bob, "a", func(nm *maintenance.NodeMaintenance) { nm.Spec.Reason = "x" }))
	})
}

func TestStatusUpdate(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	t.Run("it changes the status alone", func(t *testing.T) {
		r := newRegistry(t, etcd)
		before := r.mustCreate(ann, newMaintenance(t, "a", atStage(drain)))
		after := must.Get(r.updateStatus("a", func(nm *maintenance.NodeMaintenance) {
			nm.Spec.Stage = complete
			nm.Spec.RequestedBy = nil
			nm.Labels = map[string]string{"a": "b"}
			nm.Finalizers = nil
			nm.Status.ObservedGeneration = 1
		}))(t)
		if after.Status.ObservedGeneration != 1 || after.Generation != 1 {
			t.Errorf("observedGeneration %d, generation %d, want 1 and 1",
				after.Status.ObservedGeneration, after.Generation)
		}
		if !apiequality.Semantic.DeepEqual(after.Spec, before.Spec) || after.Labels != nil {
			t.Errorf("spec or labels changed: %v", after)
		}
		wantFinalizers(t, after, completion)
	})
	t.Run("a main update keeps the status", func(t *testing.T) {
		r := newRegistry(t, etcd)
		r.mustCreate(ann, newMaintenance(t, "a", atStage(drain)))
		must.Get(r.updateStatus("a", func(nm *maintenance.NodeMaintenance) {
			nm.Status.ObservedGeneration = 1
		}))(t)
		out := r.mustUpdate(ann, "a", func(nm *maintenance.NodeMaintenance) {
			nm.Status = maintenance.NodeMaintenanceStatus{}
		})
		if out.Status.ObservedGeneration != 1 {
			t.Errorf("the status is %v", out.Status)
		}
		wantStages(t, out, cordon, drain)
	})
	for name, test := range map[string]struct {
		change func(*maintenance.NodeMaintenance)
		want   []string
	}{
		"a negative counter": {
			change: func(nm *maintenance.NodeMaintenance) {
				nm.Status.NodeStatuses = []maintenance.NodeMaintenanceNodeStatus{
					{NodeRef: maintenance.NodeReference{Name: "n"}, PodsBlocked: -1},
				}
			},
			want: []string{"status.nodeStatuses[0].podsBlocked FieldValueInvalid"},
		},
		"a message of 129 bytes": {
			change: func(nm *maintenance.NodeMaintenance) {
				nm.Status.NodeStatuses = []maintenance.NodeMaintenanceNodeStatus{{
					NodeRef: maintenance.NodeReference{Name: "n"}, DrainMessage: strings.Repeat("x", 129),
				}}
			},
			want: []string{"status.nodeStatuses[0].drainMessage FieldValueTooLong"},
		},
		"a nameless node": {
			change: func(nm *maintenance.NodeMaintenance) {
				nm.Status.NodeStatuses = []maintenance.NodeMaintenanceNodeStatus{{}}
			},
			want: []string{"status.nodeStatuses[0].nodeRef.name FieldValueRequired"},
		},
		"two conditions of a type": {
			change: func(nm *maintenance.NodeMaintenance) {
				c := metav1.Condition{
					Type: "Drained", Status: metav1.ConditionTrue, Reason: "X",
					LastTransitionTime: metav1.NewTime(start),
				}
				nm.Status.Conditions = []metav1.Condition{c, c}
			},
			want: []string{"status.conditions[1] FieldValueDuplicate"},
		},
		"another newest node": {
			change: func(nm *maintenance.NodeMaintenance) {
				nm.Status.NewestNodeTimestamp = ptr.To(metav1.NewTime(start.Add(time.Hour)))
			},
			want: []string{"status.newestNodeTimestamp FieldValueInvalid"},
		},
		"removed stages": {
			change: func(nm *maintenance.NodeMaintenance) {
				nm.Status.StageStatuses = nm.Status.StageStatuses[:1]
			},
			want: []string{"status.stageStatuses FieldValueInvalid"},
		},
	} {
		t.Run("it refuses "+name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			r.mustCreate(ann, newMaintenance(t, "a", atStage(drain)))
			_, err := r.updateStatus("a", test.change)
			if got := causes(err); !slices.Equal(got, test.want) {
				t.Errorf("causes are %q, want %q: %v", got, test.want, err)
			}
		})
	}
	t.Run("it creates nothing", func(t *testing.T) {
		r := newRegistry(t, etcd)
		_, _, err := r.storage.Status.Update(r.ctx(self, "status"), "a",
			rest.DefaultUpdatedObjectInfo(newMaintenance(t, "a")), rest.ValidateAllObjectFunc,
			rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{})
		is.True(t, apierrors.IsNotFound(err), "got %v, want not found", err)
	})
}

func TestServerSideApplyDoesNotOwnWhatIsReset(t *testing.T) {
	strategy := NewStrategy(registrytest.Scheme, nil, func() string { return "" }, nil, nil)
	for name, test := range map[string]struct {
		reset map[fieldpath.APIVersion]*fieldpath.Set
		want  string
	}{
		"main":   {strategy.GetResetFields(), `{"f:spec":{".":{},"f:reason":{}}}`},
		"status": {status.New(&genericregistry.Store{}, &StatusStrategy{strategy}).GetResetFields(), `{"f:status":{".":{},"f:observedGeneration":{}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			manager := must.Get(managedfields.NewDefaultFieldManager(managedfields.NewDeducedTypeConverter(),
				registrytest.Scheme, registrytest.Scheme, registrytest.Scheme,
				v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenance"), v1alpha1.SchemeGroupVersion, "",
				fieldpath.NewExcludeFilterSetMap(test.reset)))(t)
			live := &v1alpha1.NodeMaintenance{
				TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeMaintenance"},
			}
			applied := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "NodeMaintenance",
				"metadata": map[string]any{"name": "a"},
				"spec":     map[string]any{"reason": "x", "requestedBy": map[string]any{"username": "ann"}},
				"status":   map[string]any{"observedGeneration": int64(3)},
			}}
			out := must.Get(manager.Apply(live, applied, "kubectl", false))(t)
			accessor := out.(*v1alpha1.NodeMaintenance)
			if fields := accessor.ManagedFields; len(fields) != 1 ||
				string(fields[0].FieldsV1.GetRawBytes()) != test.want {
				t.Errorf("managed fields are %v, want one entry %s", fields, test.want)
			}
		})
	}
}
