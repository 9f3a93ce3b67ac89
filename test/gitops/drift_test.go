// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package gitops

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fluxcd/pkg/ssa"
	ssaerrors "github.com/fluxcd/pkg/ssa/errors"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"sigs.k8s.io/yaml"
)

// usedElsewhere has the objects that are not in healthOf.
var usedElsewhere = map[string]bool{
	"nodemaintenance-example": true, "nodemaintenance-example-paused": true,
	"refusal-stage": true, "refusal-plan": true,
}

// example returns the manifest of which testdata has the server's answer.
func example(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "artifacts", "examples", "maintenance-with-plan.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &object.Object); err != nil {
		t.Fatal(err)
	}
	return object
}

// keepEntries keeps some entries of the plan of a manifest; none means that it has no plan.
func keepEntries(t *testing.T, manifest *unstructured.Unstructured, n int) *unstructured.Unstructured {
	t.Helper()
	manifest = manifest.DeepCopy()
	plan, _, err := unstructured.NestedSlice(manifest.Object, "spec", "drainPlan")
	if err != nil || len(plan) < n {
		t.Fatalf("the example has %d entries, error %v", len(plan), err)
	}
	if n == 0 {
		unstructured.RemoveNestedField(manifest.Object, "spec", "drainPlan")
	} else if err := unstructured.SetNestedSlice(manifest.Object, plan[:n], "spec", "drainPlan"); err != nil {
		t.Fatal(err)
	}
	return manifest
}

// TestDriftInArgoCD computes the patch that Argo CD computes by default for a kind that it does not
// know: a patch that changes something is a drift.
func TestDriftInArgoCD(t *testing.T) {
	live := load(t, "nodemaintenance-example")
	paused := load(t, "nodemaintenance-example-paused")
	whole := example(t)
	for name, test := range map[string]struct {
		manifest, live *unstructured.Unstructured
		drifts         bool
	}{
		"the whole plan":            {whole, live, false},
		"no plan":                   {keepEntries(t, whole, 0), live, false},
		"a part of the plan":        {keepEntries(t, whole, 2), live, true},
		"a drain paused by hand":    {whole, paused, false},
		"a manifest that continues": {withPaused(t, whole, false), paused, true},
	} {
		t.Run(name, func(t *testing.T) {
			manifest, err := json.Marshal(test.manifest)
			if err != nil {
				t.Fatal(err)
			}
			stored, err := json.Marshal(test.live)
			if err != nil {
				t.Fatal(err)
			}
			patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(manifest, manifest, stored)
			if err != nil {
				t.Fatal(err)
			}
			if drifts := string(patch) != "{}"; drifts != test.drifts {
				t.Errorf("got the patch %s, want one that changes something: %t", patch, test.drifts)
			}
		})
	}
}

func withPaused(t *testing.T, manifest *unstructured.Unstructured, paused bool) *unstructured.Unstructured {
	t.Helper()
	manifest = manifest.DeepCopy()
	if err := unstructured.SetNestedField(manifest.Object, paused, "spec", "paused"); err != nil {
		t.Fatal(err)
	}
	return manifest
}

// TestFluxKeepsWhatThePluginHasSet checks that Flux does not take over the fields of the plugin,
// whose manager is haulout-plugin, but those of kubectl: it removes what it has taken over and git
// does not have. docs/gitops.md says that a pause by the plugin stays.
func TestFluxKeepsWhatThePluginHasSet(t *testing.T) {
	const flux = "kustomize-controller"
	plugin := load(t, "nodemaintenance-example-paused")
	kubectl := plugin.DeepCopy()
	entries := kubectl.GetManagedFields()
	for i := range entries {
		if entries[i].Manager == "haulout-plugin" {
			entries[i].Manager = "kubectl-edit"
		}
	}
	kubectl.SetManagedFields(entries)
	for name, test := range map[string]struct {
		live *unstructured.Unstructured
		// owner is the manager that has spec.paused afterwards.
		owner string
		want  []string
	}{
		"plugin":  {plugin, "haulout-plugin", []string{"haulout-plugin", flux}},
		"kubectl": {kubectl, flux, []string{flux}},
	} {
		t.Run(name, func(t *testing.T) {
			// kustomize-controller cleans up with these managers.
			patches, err := ssa.PatchReplaceFieldsManagers(test.live, []ssa.FieldManager{
				{Name: "kubectl", OperationType: metav1.ManagedFieldsOperationUpdate},
			}, flux)
			if err != nil || len(patches) > 1 {
				t.Fatalf("got the patches %v, error %v, want at most one", patches, err)
			}
			after := test.live.GetManagedFields()
			if len(patches) == 1 {
				after = patches[0].Value
			}
			var managers []string
			for _, entry := range after {
				managers = append(managers, entry.Manager)
				var fields map[string]map[string]any
				if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err != nil {
					t.Fatal(err)
				}
				if _, paused := fields["f:spec"]["f:paused"]; paused != (entry.Manager == test.owner) {
					t.Errorf("%s owns spec.paused: %t", entry.Manager, paused)
				}
			}
			slices.Sort(managers)
			if diff := cmp.Diff(test.want, managers); diff != "" {
				t.Errorf("the managers (-want +got):\n%s", diff)
			}
		})
	}
}

// TestForceRecreatesAMaintenance checks that Flux with force takes a refusal of the server for an
// immutable field: it deletes the object and creates it again. docs/gitops.md warns of that.
func TestForceRecreatesAMaintenance(t *testing.T) {
	for _, name := range []string{"refusal-stage", "refusal-plan"} {
		var refusal metav1.Status
		text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &refusal); err != nil {
			t.Fatal(err)
		}
		answer := &apierrors.StatusError{ErrStatus: refusal}
		if !apierrors.IsInvalid(answer) || !ssaerrors.IsImmutableError(answer) {
			t.Errorf("%s: Flux with force retries after %v, want that it recreates the object", name, answer)
		}
	}
}

// TestExclusions reads the exclusions as Argo CD does: all three lists must match.
func TestExclusions(t *testing.T) {
	var exclusions []struct {
		APIGroups []string `json:"apiGroups"`
		Kinds     []string `json:"kinds"`
		Clusters  []string `json:"clusters"`
	}
	if err := yaml.UnmarshalStrict([]byte(argoCD(t, "resource.exclusions")), &exclusions); err != nil {
		t.Fatal(err)
	}
	excludes := func(apiGroup, kind string) bool {
		for _, exclusion := range exclusions {
			matches := func(globs []string, value string) bool {
				return slices.ContainsFunc(globs, func(glob string) bool {
					ok, err := path.Match(glob, value)
					return err == nil && ok
				})
			}
			if matches(exclusion.APIGroups, apiGroup) && slices.Contains(exclusion.Kinds, kind) &&
				matches(exclusion.Clusters, "cluster.example") {
				return true
			}
		}
		return false
	}
	if !excludes(group, "Evacuation") {
		t.Error("Argo CD watches Evacuations")
	}
	if excludes(group, "NodeMaintenance") || excludes("apps", "Deployment") {
		t.Error("Argo CD ignores more than Evacuations")
	}
}

// TestManifestOfThePage checks that the manifest has fields of the API only, those of the server's
// answer or spec.paused.
func TestManifestOfThePage(t *testing.T) {
	manifest := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(block(t, "NodeMaintenance"), &manifest.Object); err != nil {
		t.Fatal(err)
	}
	live := load(t, "nodemaintenance-example")
	if manifest.GroupVersionKind() != live.GroupVersionKind() {
		t.Errorf("the manifest is a %s, want a %s", manifest.GroupVersionKind(), live.GroupVersionKind())
	}
	spec, _, err := unstructured.NestedMap(manifest.Object, "spec")
	if err != nil {
		t.Fatal(err)
	}
	known, _, err := unstructured.NestedMap(live.Object, "spec")
	if err != nil {
		t.Fatal(err)
	}
	for field := range spec {
		if _, ok := known[field]; !ok {
			t.Errorf("the manifest has the field spec.%s, which the API does not know", field)
		}
	}
}
