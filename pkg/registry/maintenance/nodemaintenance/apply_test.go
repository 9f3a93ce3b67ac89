// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/applyconfiguration"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/golden"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	// gitOps is the field manager of Flux, plugin that of our kubectl plugin.
	gitOps = "kustomize-controller"
	plugin = "haulout-plugin"
)

// fieldManager returns the field manager of the server, which its handlers run before the storage.
func fieldManager(t *testing.T, r *registry) *managedfields.FieldManager {
	t.Helper()
	scheme := registrytest.Scheme
	return must.Get(managedfields.NewDefaultFieldManager(applyconfiguration.NewTypeConverter(scheme), scheme, scheme, scheme,
		v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenance"), maintenance.SchemeGroupVersion, "",
		fieldpath.NewExcludeFilterSetMap(r.storage.NodeMaintenance.GetResetFields())))(t)
}

// apply applies a manifest server-side, as the handlers do.
func (r *registry) apply(t *testing.T, manifest *unstructured.Unstructured, manager string, force bool) (*maintenance.NodeMaintenance, error) {
	t.Helper()
	fields := fieldManager(t, r)
	merge := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		return fields.Apply(old, manifest.DeepCopy(), manager, force)
	})
	out, _, err := r.storage.NodeMaintenance.Update(r.ctx(ann, ""), manifest.GetName(), merge, rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{FieldManager: manager})
	if err != nil {
		return nil, err
	}
	return out.(*maintenance.NodeMaintenance), nil
}

// patch changes an object as a merge patch of another client does.
func (r *registry) patch(t *testing.T, name, manager string, change func(*maintenance.NodeMaintenance)) *maintenance.NodeMaintenance {
	t.Helper()
	fields := fieldManager(t, r)
	merge := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		changed := old.DeepCopyObject().(*maintenance.NodeMaintenance)
		change(changed)
		return fields.Update(old, changed, manager)
	})
	out, _, err := r.storage.NodeMaintenance.Update(r.ctx(ann, ""), name, merge, rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{FieldManager: manager})
	must.True(t, err == nil, "update: %v", err)
	return out.(*maintenance.NodeMaintenance)
}

// exampleWith returns the example of a plan with the first n entries of its plan, without a plan if
// n is 0.
func exampleWith(t *testing.T, n int) *unstructured.Unstructured {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join("..", "..", "..", "..", "artifacts", "examples", "maintenance-with-plan.yaml")))(t)
	manifest := &unstructured.Unstructured{}
	must.Do(t, yaml.Unmarshal(text, &manifest.Object))
	plan, _, err := unstructured.NestedSlice(manifest.Object, "spec", "drainPlan")
	must.True(t, err == nil && len(plan) > 12, "the example has %d entries, error %v", len(plan), err)
	if n == 0 {
		unstructured.RemoveNestedField(manifest.Object, "spec", "drainPlan")
	} else {
		must.Do(t, unstructured.SetNestedSlice(manifest.Object, plan[:min(n, len(plan))], "spec", "drainPlan"))
	}
	return manifest
}

const whole = 1000

// TestApplyDrifts applies manifests that omit what the server adds, as a GitOps tool does.
func TestApplyDrifts(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	for name, test := range map[string]struct {
		entries int
		// conflict is the field for which a second manager gets a conflict, "" without one.
		conflict string
	}{
		"no plan":            {0, ""},
		"the whole plan":     {whole, ""},
		"a part of the plan": {2, ".spec.drainPlan"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			manifest := exampleWith(t, test.entries)
			first := must.Get(r.apply(t, manifest, gitOps, true))(t)
			must.Get(r.updateStatus(manifest.GetName(), func(nm *maintenance.NodeMaintenance) { nm.Status.ObservedGeneration = 1 }))(t)
			stored := r.get(manifest.GetName())
			again := must.Get(r.apply(t, manifest, gitOps, true))(t)
			if diff := cmp.Diff(stored.Spec, again.Spec); diff != "" || again.Generation != first.Generation {
				t.Errorf("applied twice: got generation %d, then %d, and the difference (-first +second):\n%s",
					first.Generation, again.Generation, diff)
			}
			is.Equal(t, again.ResourceVersion, stored.ResourceVersion, "the resource version after a second write")

			_, err := r.apply(t, manifest, "second", false)
			var conflict *apierrors.StatusError
			switch {
			case test.conflict == "":
				is.True(t, err == nil, "a second manager: %v", err)
			case !errors.As(err, &conflict) || !apierrors.IsConflict(err) || len(conflict.ErrStatus.Details.Causes) != 1:
				t.Errorf("a second manager: got error %v, want a conflict", err)
			default:
				is.Equal(t, conflict.ErrStatus.Details.Causes[0].Field, test.conflict, "the conflict of a second manager")
			}
			forced := must.Get(r.apply(t, manifest, "second", true))(t)
			is.Equal(t, forced.Generation, first.Generation, "the generation after a forced apply")
		})
	}
}

// TestGitOpsKeepsWhatOthersSet pauses a maintenance by hand that a GitOps tool applies.
func TestGitOpsKeepsWhatOthersSet(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	manifest := exampleWith(t, whole)
	first := must.Get(r.apply(t, manifest, gitOps, true))(t)
	golden.GitOps(t, "nodemaintenance-example", answer(t, first))
	paused := r.patch(t, manifest.GetName(), plugin, func(nm *maintenance.NodeMaintenance) { nm.Spec.Paused = true })
	golden.GitOps(t, "nodemaintenance-example-paused", answer(t, paused))
	again := must.Get(r.apply(t, manifest, gitOps, true))(t)
	is.True(t, again.Spec.Paused, "a manifest without spec.paused has resumed the maintenance")
	must.Do(t, unstructured.SetNestedField(manifest.Object, false, "spec", "paused"))
	again = must.Get(r.apply(t, manifest, gitOps, true))(t)
	is.True(t, !again.Spec.Paused, "a manifest with paused: false has not resumed the maintenance")
}

// TestRequestedByIsNoDrift applies a manifest with a requester, which the server ignores.
func TestRequestedByIsNoDrift(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	manifest := exampleWith(t, whole)
	must.Do(t, unstructured.SetNestedField(manifest.Object, "mallory", "spec", "requestedBy", "username"))
	nm := must.Get(r.apply(t, manifest, gitOps, true))(t)
	is.Equal(t, nm.Spec.RequestedBy.Username, ann.Name, "the requester")
	owned := slices.ContainsFunc(nm.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return strings.Contains(string(entry.FieldsV1.GetRawBytes()), "requestedBy")
	})
	is.True(t, !owned, "a client owns spec.requestedBy: %+v", nm.ManagedFields)
}

// TestAnswersForGitOps writes the answers of the server, without a controller, on which test/gitops
// runs the health checks of GitOps tools.
func TestAnswersForGitOps(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	for _, stage := range []maintenance.NodeMaintenanceStage{idle, cordon, drain} {
		nm := r.mustCreate(ann, newMaintenance(t, strings.ToLower(string(stage)), atStage(stage)))
		golden.GitOps(t, "nodemaintenance-created-"+string(stage), answer(t, nm))
	}
	ready := func(nm *maintenance.NodeMaintenance) {
		nm.Status.ObservedGeneration = nm.Generation
		nm.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Idle", Message: "Announced",
			ObservedGeneration: nm.Generation, LastTransitionTime: metav1.NewTime(start).Rfc3339Copy(),
		}}
	}
	must.Get(r.updateStatus("idle", ready))(t)
	golden.GitOps(t, "nodemaintenance-changed", answer(t, r.mustUpdate(ann, "idle", setStage(drain))))

	for name, change := range map[string]func(*maintenance.NodeMaintenance){
		"refusal-stage": setStage(cordon),
		"refusal-plan":  func(nm *maintenance.NodeMaintenance) { nm.Spec.DrainPlan[0].PodPriority-- },
	} {
		_, err := r.update(ann, "drain", change)
		var refusal *apierrors.StatusError
		must.True(t, errors.As(err, &refusal), "%s: got error %v", name, err)
		golden.GitOps(t, name, refusal.ErrStatus)
	}
}

// answer returns an object as clients get it, with constant values in place of those that differ in
// each run.
func answer(t *testing.T, nm *maintenance.NodeMaintenance) *v1alpha1.NodeMaintenance {
	t.Helper()
	out := &v1alpha1.NodeMaintenance{}
	must.Do(t, registrytest.Scheme.Convert(nm, out, nil))
	out.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenance"))
	out.UID, out.ResourceVersion = types.UID("uid-"+out.Name), "1"
	out.CreationTimestamp = metav1.NewTime(start).Rfc3339Copy()
	for i := range out.ManagedFields {
		out.ManagedFields[i].Time = &out.CreationTimestamp
	}
	return out
}
