// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package haulout

import (
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// shipped is the folder of the shipped manifests.
var shipped = filepath.Join("..", "..", "..", "..", "artifacts", "overlays", "development")

func TestLoadShippedManifests(t *testing.T) {
	manifests, err := Load(shipped, 12345)
	if err != nil {
		t.Fatal(err)
	}
	kinds := func(objects []*unstructured.Unstructured) (found []string) {
		for _, object := range objects {
			found = append(found, object.GetKind())
		}
		slices.Sort(found)
		return slices.Compact(found)
	}
	prepared := []string{
		"ClusterRole", "ClusterRoleBinding", "FlowSchema", "Namespace", "NetworkPolicy", "ResourceQuota", "Role",
		"RoleBinding", "ServiceAccount", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	}
	if got, want := kinds(manifests.Prepare), prepared; !slices.Equal(got, want) {
		t.Errorf("got %v to prepare, want %v", got, want)
	}
	if got, want := kinds(manifests.Register), []string{"APIService", "Service"}; !slices.Equal(got, want) {
		t.Errorf("got %v to register, want %v", got, want)
	}
	for _, object := range manifests.Register {
		if object.GetKind() != "APIService" {
			continue
		}
		if port, _, _ := unstructured.NestedInt64(object.Object, "spec", "service", "port"); port != 12345 {
			t.Errorf("got port %d in the APIService, want 12345", port)
		}
		for _, field := range []string{"caBundle", "insecureSkipTLSVerify"} {
			if _, found, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", field); found {
				t.Errorf(
					"the manifest sets %s: it would overwrite the value of the server, or disable the verification",
					field,
				)
			}
		}
	}
}

// TestNoShippedRoleGrantsMaintenanceStatus fails if a role grants access to the status of
// maintenances. The planner reads the targets in the status, so a user with write access to the
// status could drain nodes without permission to delete the nodes.
func TestNoShippedRoleGrantsMaintenanceStatus(t *testing.T) {
	manifests, err := Load(shipped, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range manifests.Prepare {
		rules, _, _ := unstructured.NestedSlice(object.Object, "rules")
		for _, rule := range rules {
			resources, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "resources")
			groups, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "apiGroups")
			verbs, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "verbs")
			if slices.Contains(resources, "nodemaintenances/status") || slices.Contains(resources, "*") ||
				slices.Contains(resources, "*/status") {
				t.Errorf("%s grants %v of %v", object.GetName(), verbs, resources)
			}
			if slices.Contains(groups, "*") || slices.Contains(verbs, "*") {
				t.Errorf("%s grants all verbs or groups for %v in %v", object.GetName(), resources, groups)
			}
		}
	}
}

func TestAvailable(t *testing.T) {
	service := func(bundle string, conditions ...any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"spec":   map[string]any{"caBundle": bundle},
			"status": map[string]any{"conditions": conditions},
		}}
	}
	condition := func(status string) map[string]any {
		return map[string]any{"type": "Available", "status": status, "reason": "Reason", "message": "message"}
	}
	tests := map[string]struct {
		service *unstructured.Unstructured
		want    bool
	}{
		"available":                         {service("Y2E=", condition("True")), true},
		"available, but without a caBundle": {service("", condition("True")), false},
		"not available":                     {service("Y2E=", condition("False")), false},
		"not reconciled yet":                {service("Y2E="), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := available(test.service); (err == nil) != test.want {
				t.Errorf("got error %v, want available: %t", err, test.want)
			}
		})
	}
}
