// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestCheck(t *testing.T) {
	tests := map[string]struct {
		manifests string
		count     int
		want      []string
	}{
		"objects of Kubernetes kinds and of Haulout kinds": {
			manifests: "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n---\n" +
				"apiVersion: maintenance.haulout.dev/v1alpha1\nkind: NodeMaintenance\nmetadata:\n  name: a\n",
			count: 2,
		},
		"no manifest": {want: []string{"no objects found"}},
		"a kind that does not exist": {
			manifests: "apiVersion: v1\nkind: Nomespace\n",
			want:      []string{`no kind "Nomespace"`, "no objects found"},
		},
		"a field that does not exist": {
			manifests: "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\nspec:\n  prots: []\n",
			want:      []string{`unknown field "spec.prots"`, "no objects found"},
		},
		"a duplicate object": {
			manifests: "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n---\n" +
				"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n",
			count: 2,
			want:  []string{"Namespace /a is defined twice"},
		},
		"a Deployment that tolerates nodes in maintenance": {
			manifests: "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\n  namespace: b\nspec:\n" +
				"  selector: {}\n  template:\n    spec:\n      containers: []\n      tolerations:\n" +
				"      - {key: maintenance.haulout.dev/held, operator: Exists}\n",
			count: 1,
			want:  []string{"Deployment.apps b/a tolerates maintenance.haulout.dev/held"},
		},
		"a Deployment that tolerates every taint": {
			manifests: "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: a\n  namespace: b\nspec:\n" +
				"  selector: {}\n  template:\n    spec:\n      containers: []\n      tolerations:\n" +
				"      - {operator: Exists}\n",
			count: 1,
			want:  []string{"Deployment.apps b/a tolerates maintenance.haulout.dev/held"},
		},
		"a Role that allows every verb": {
			manifests: "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata:\n  name: a\n" +
				"  namespace: b\nrules:\n- {apiGroups: [\"\"], resources: [pods], verbs: [get]}\n" +
				"- {apiGroups: [\"\"], resources: [pods], verbs: [\"*\"]}\n",
			count: 1,
			want:  []string{"Role.rbac.authorization.k8s.io b/a: rules[1]"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			count, errs := check(strings.NewReader(test.manifests))
			if count != test.count || len(errs) != len(test.want) {
				t.Fatalf("got %d objects and %v, want %d and %q", count, errs, test.count, test.want)
			}
			for i, want := range test.want {
				is.True(t, strings.Contains(errs[i].Error(), want), "got %q, want it to contain %q", errs[i], want)
			}
		})
	}
}
