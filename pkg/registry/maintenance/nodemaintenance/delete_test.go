// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestDeleteIdleIsGoneImmediately(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	for name, options := range map[string]*metav1.DeleteOptions{
		"without options":          {},
		"with a grace period":      {GracePeriodSeconds: ptr.To[int64](30)},
		"in the background":        {PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)},
		"with a grace period of 0": {GracePeriodSeconds: ptr.To[int64](0)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			r.mustCreate(ann, newMaintenance(t, "a"))
			must.Do(t, r.delete(bob, "a", options))
			if left := r.get("a"); left != nil {
				t.Errorf("it is still there: %v", left)
			}
		})
	}
	t.Run("with preconditions", func(t *testing.T) {
		r := newRegistry(t, etcd)
		nm := r.mustCreate(ann, newMaintenance(t, "a"))
		err := r.delete(bob, "a", &metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("other"))},
		})
		is.True(t, apierrors.IsConflict(err), "another UID gives %v, want a conflict", err)
		err = r.delete(bob, "a", &metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &nm.UID, ResourceVersion: &nm.ResourceVersion},
		})
		if err != nil || r.get("a") != nil {
			t.Errorf("its own UID and version give %v and leave %v", err, r.get("a"))
		}
	})
	t.Run("a dry run does not change it", func(t *testing.T) {
		r := newRegistry(t, etcd)
		nm := r.mustCreate(ann, newMaintenance(t, "a"))
		must.Do(t, r.delete(bob, "a", &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
		if left := r.get("a"); !apiequality.Semantic.DeepEqual(left, nm) {
			t.Errorf("changed from %v to %v", nm, left)
		}
	})
	t.Run("it waits for other finalizers and stays Idle", func(t *testing.T) {
		r := newRegistry(t, etcd)
		r.mustCreate(ann, newMaintenance(t, "a"))
		must.Do(t, r.delete(bob, "a", &metav1.DeleteOptions{
			PropagationPolicy: ptr.To(metav1.DeletePropagationForeground),
		}))
		left := r.get("a")
		if left == nil || left.DeletionTimestamp == nil || left.Spec.Stage != idle {
			t.Fatalf("left is %v, want an Idle object that is being deleted", left)
		}
		wantFinalizers(t, left, metav1.FinalizerDeleteDependents)
		r.mustUpdate(bob, "a", setFinalizers())
		if left := r.get("a"); left != nil {
			t.Errorf("it is still there: %v", left)
		}
	})
}

func TestDeleteMovesToCompleteInTheSameWrite(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	cascade := func(p metav1.DeletionPropagation) *metav1.DeleteOptions {
		return &metav1.DeleteOptions{PropagationPolicy: &p}
	}
	for name, test := range map[string]struct {
		stage      maintenance.NodeMaintenanceStage
		options    *metav1.DeleteOptions
		by         *user.DefaultInfo
		wantStages []maintenance.NodeMaintenanceStage
		finalizers []string
		wantBy     string
	}{
		"from Cordon": {
			stage: cordon, options: &metav1.DeleteOptions{}, by: bob,
			wantStages: []maintenance.NodeMaintenanceStage{cordon, complete}, finalizers: []string{completion},
			wantBy: "bob",
		},
		"from Drain": {
			stage: drain, options: &metav1.DeleteOptions{}, by: bob,
			wantStages: []maintenance.NodeMaintenanceStage{cordon, drain, complete}, finalizers: []string{completion},
			wantBy: "bob",
		},
		"from Drain with a grace period": {
			stage: drain, options: &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](60)}, by: bob,
			wantStages: []maintenance.NodeMaintenanceStage{cordon, drain, complete}, finalizers: []string{completion},
			wantBy: "bob",
		},
		"from Drain in the foreground": {
			stage: drain, options: cascade(metav1.DeletePropagationForeground), by: bob,
			wantStages: []maintenance.NodeMaintenanceStage{cordon, drain, complete},
			finalizers: []string{completion, metav1.FinalizerDeleteDependents}, wantBy: "bob",
		},
		"from Drain with orphans": {
			stage: drain, options: cascade(metav1.DeletePropagationOrphan), by: bob,
			wantStages: []maintenance.NodeMaintenanceStage{cordon, drain, complete},
			finalizers: []string{completion, metav1.FinalizerOrphanDependents}, wantBy: "bob",
		},
		"from Drain by the server": {
			stage: drain, options: &metav1.DeleteOptions{}, by: self,
			wantStages: []maintenance.NodeMaintenanceStage{cordon, drain, complete}, finalizers: []string{completion},
			wantBy: "ann",
		},
		"from Complete, without a new stage": {
			stage: complete, options: &metav1.DeleteOptions{}, by: bob,
			wantStages: []maintenance.NodeMaintenanceStage{complete}, finalizers: []string{completion}, wantBy: "ann",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			created := r.mustCreate(ann, newMaintenance(t, "a", atStage(test.stage)))
			watch := must.Get(r.storage.NodeMaintenance.Watch(r.ctx(ann, ""),
				&metainternalversion.ListOptions{ResourceVersion: created.ResourceVersion}))(t)
			defer watch.Stop()
			r.clock.SetTime(start.Add(time.Hour))
			must.Do(t, r.delete(test.by, "a", test.options))
			// The first event of a watch after the creation has all changes.
			event := <-watch.ResultChan()
			nm, ok := event.Object.(*maintenance.NodeMaintenance)
			if !ok || nm.DeletionTimestamp == nil || nm.Spec.Stage != complete {
				t.Fatalf("the first event is %v, want one of an object that is Complete and being deleted", event)
			}
			if nm.Generation != created.Generation+1 {
				t.Errorf("generation is %d, want %d", nm.Generation, created.Generation+1)
			}
			wantStages(t, nm, test.wantStages...)
			wantFinalizers(t, nm, test.finalizers...)
			if nm.Spec.RequestedBy.Username != test.wantBy {
				t.Errorf("requestedBy is %v, want %s", nm.Spec.RequestedBy, test.wantBy)
			}
			if stored := r.get("a"); !apiequality.Semantic.DeepEqual(stored, nm) {
				t.Errorf("there was another write: %v", stored)
			}
		})
	}
}

func TestDeletionEndsWhenTheServerTakesItsFinalizerOff(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.mustCreate(ann, newMaintenance(t, "a", atStage(drain)))
	must.Do(t, r.delete(bob, "a", &metav1.DeleteOptions{}))
	deleting := r.get("a")
	if err := r.delete(bob, "a", &metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete again: %v", err)
	}
	if again := r.get("a"); !apiequality.Semantic.DeepEqual(again.Spec, deleting.Spec) ||
		again.Generation != deleting.Generation {
		t.Errorf("the second deletion changed %v to %v", deleting, again)
	}
	wantFinalizers(t, r.mustUpdate(bob, "a", setFinalizers()), completion)
	for name, change := range map[string]func(*maintenance.NodeMaintenance){
		"stage":    setStage(drain),
		"selector": func(nm *maintenance.NodeMaintenance) { nm.Spec.NodeSelector = poolSelector("red") },
	} {
		if _, err := r.update(bob, "a", change); !apierrors.IsInvalid(err) {
			t.Errorf("changing the %s while deleting gives %v, want invalid", name, err)
		}
	}
	r.mustUpdate(self, "a", setFinalizers())
	if left := r.get("a"); left != nil {
		t.Errorf("it is still there: %v", left)
	}
}

// TestDeletionThatWasInterruptedIsFinishedByTheNext makes the server fail between the two writes
// that delete a maintenance in stage Idle.
func TestDeletionThatWasInterruptedIsFinishedByTheNext(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	created := r.mustCreate(ann, newMaintenance(t, "a"))
	store := r.storage.NodeMaintenance.Store
	inner := store.Storage.Storage
	store.Storage.Storage = undeletable{inner}
	if err := r.delete(bob, "a", &metav1.DeleteOptions{}); !errors.Is(err, errInterrupted) {
		t.Fatalf("error %v, want the interruption", err)
	}
	store.Storage.Storage = inner
	if left := r.get("a"); left == nil || left.DeletionTimestamp == nil || len(left.Finalizers) > 0 {
		t.Fatalf("left is %v, want an object that is being deleted and held by nothing", left)
	}
	must.Do(t, r.delete(self, "a", &metav1.DeleteOptions{
		Preconditions: metav1.NewUIDPreconditions(string(created.UID)),
	}))
	if left := r.get("a"); left != nil {
		t.Errorf("it is still there: %v", left)
	}
}

var errInterrupted = errors.New("interrupted")

// undeletable is a storage that fails to delete.
type undeletable struct {
	storage.Interface
}

func (undeletable) Delete(
	context.Context, string, runtime.Object, *storage.Preconditions, storage.ValidateObjectFunc, runtime.Object,
	storage.DeleteOptions,
) error {
	return errInterrupted
}

func TestDeleteCollection(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	for name, stage := range map[string]maintenance.NodeMaintenanceStage{
		"idle": idle, "drain": drain, "complete": complete,
	} {
		r.mustCreate(ann, newMaintenance(t, name, atStage(stage)))
	}
	must.Get(r.storage.NodeMaintenance.DeleteCollection(r.ctx(bob, ""), rest.ValidateAllObjectFunc,
		&metav1.DeleteOptions{}, nil))(t)
	if left := r.get("idle"); left != nil {
		t.Errorf("the Idle one is still there: %v", left)
	}
	for _, name := range []string{"drain", "complete"} {
		left := r.get(name)
		if left == nil || left.DeletionTimestamp == nil || left.Spec.Stage != complete {
			t.Errorf("%s is %v, want it Complete and being deleted", name, left)
		}
	}
}

func TestDeleteOfAnIdleOneThatMovesToDrainMeanwhile(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.mustCreate(ann, newMaintenance(t, "a"))
	store := r.storage.NodeMaintenance.Store
	inner := store.Storage.Storage
	store.Storage.Storage = &interceptedStorage{Interface: inner, after: func() {
		store.Storage.Storage = inner
		r.mustUpdate(ann, "a", setStage(drain))
	}}
	must.Do(t, r.delete(bob, "a", &metav1.DeleteOptions{}))
	left := r.get("a")
	must.True(t, left != nil, "it is gone, and with it the memory of the nodes it has claimed")
	if left.DeletionTimestamp == nil || left.Spec.Stage != complete {
		t.Errorf("left is %v, want it Complete and being deleted", left)
	}
	wantStages(t, left, idle, cordon, drain, complete)
	wantFinalizers(t, left, completion)
	if !reflect.DeepEqual(left.Spec.RequestedBy, bobInfo()) {
		t.Errorf("requestedBy is %v, want bob", left.Spec.RequestedBy)
	}
}
