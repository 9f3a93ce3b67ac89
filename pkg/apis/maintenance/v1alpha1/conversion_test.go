// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestFieldLabels(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	for name, test := range map[string]struct {
		kind, field string
		known       bool
	}{
		"a maintenance by name":            {"NodeMaintenance", "metadata.name", true},
		"a maintenance by stage":           {"NodeMaintenance", "spec.stage", true},
		"a maintenance by its shutdown":    {"NodeMaintenance", "nodeOfShutdown", true},
		"a maintenance by reason":          {"NodeMaintenance", "spec.reason", false},
		"a maintenance by namespace":       {"NodeMaintenance", "metadata.namespace", false},
		"an evacuation by node":            {"Evacuation", "spec.nodeName", true},
		"an evacuation by pod":             {"Evacuation", "spec.podRef.name", true},
		"an evacuation by its evacuator":   {"Evacuation", "status.activeEvacuatorClass", true},
		"an evacuation by what blocks it":  {"Evacuation", "status.blocked", true},
		"an evacuation by its pod's UID":   {"Evacuation", "spec.podRef.uid", false},
		"an evacuation by name":            {"Evacuation", "metadata.name", true},
		"an evacuation by namespace":       {"Evacuation", "metadata.namespace", true},
		"an evacuation by a field's start": {"Evacuation", "spec", false},
	} {
		t.Run(name, func(t *testing.T) {
			label, value, err := scheme.ConvertFieldLabel(v1alpha1.SchemeGroupVersion.WithKind(test.kind), test.field,
				"x")
			if test.known != (err == nil) {
				t.Fatalf("error is %v, want one: %v", err, !test.known)
			}
			if test.known && (label != test.field || value != "x") {
				t.Errorf("converted to %s=%s", label, value)
			}
		})
	}
}
