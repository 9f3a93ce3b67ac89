// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// TestInstigatorThatApplies has another instigator apply server-side to an Evacuation that the
// server made, and withdraw by applying less.
func TestInstigatorThatApplies(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	pod := cluster.PodOn(t, namespace, "pod", pool, nodes[0])
	// It never allows its only pod to leave.
	cluster.MustKubectl(t, "", "create", "poddisruptionbudget", "pod", "-n", namespace, "--selector=app=pod",
		"--min-available=1")
	drainNodes(t, pool, nodes...)
	made := evacuationFor(t, pod, "it is made", isOurs)
	const theirs = v1alpha1.FinalizerInstigatorPrefix + "other.example.com"
	for _, step := range []struct{ name, metadata string }{
		{"asks", fmt.Sprintf(`,"labels":{"ticket":"7"},"finalizers":[%q]`, theirs)},
		{"asks again", fmt.Sprintf(`,"labels":{"ticket":"7"},"finalizers":[%q]`, theirs)},
		{"withdraws", ""},
	} {
		e, err := cluster.As(t).Haulout.MaintenanceV1alpha1().Evacuations(namespace).Patch(
			t.Context(), made.Name, types.ApplyPatchType,
			fmt.Appendf(nil, `{"apiVersion":%q,"kind":"Evacuation","metadata":{"name":%q%s}}`,
				v1alpha1.SchemeGroupVersion, made.Name, step.metadata),
			metav1.PatchOptions{FieldManager: "other"},
		)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		asks := step.metadata != ""
		if !isOurs(e) || slices.Contains(e.Finalizers, theirs) != asks || (e.Labels["ticket"] == "7") != asks ||
			e.Labels["app"] != "pod" {
			t.Errorf("%s: finalizers are %q and labels %v", step.name, e.Finalizers, e.Labels)
		}
	}
}
