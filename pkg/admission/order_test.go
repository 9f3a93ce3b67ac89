// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/testing/is"
)

// TestOrder fails if the plugin list of the library changes. Before you add a new plugin, check
// which RBAC rules it needs, and whether it works in clusters that do not serve its API.
func TestOrder(t *testing.T) {
	o := genericoptions.NewAdmissionOptions()
	Configure(o, &rights.Rules{}, func() []string { return nil })
	want := []string{
		"NamespaceLifecycle", "NodeMaintenance", "NodeMaintenanceRollout", "NodeTask", "Evacuation", "MutatingAdmissionPolicy", "MutatingAdmissionWebhook",
		"ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook",
	}
	is.Slices(t, o.RecommendedPluginOrder, want, "order")
	if registered := sets.New(o.Plugins.Registered()...); !registered.Equal(sets.New(want...)) {
		t.Errorf("registered are %q, want %q", sets.List(registered), want)
	}
	if errs := o.Validate(); len(errs) > 0 {
		t.Errorf("the options are not valid: %v", errs)
	}
}
