// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"haulout.dev/haulout/pkg/admission/plugin/nodemaintenance"
	"haulout.dev/haulout/pkg/testing/is"
)

// The library's list is pinned: a plugin that it adds needs a thought about its place, about RBAC,
// and about clusters that do not know it.
func TestOrder(t *testing.T) {
	o := genericoptions.NewAdmissionOptions()
	Configure(o, &nodemaintenance.Config{}, func() []string { return nil })
	want := []string{
		"NamespaceLifecycle", "NodeMaintenance", "Evacuation", "MutatingAdmissionPolicy", "MutatingAdmissionWebhook",
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
