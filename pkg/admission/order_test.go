/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package admission

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"haulout.dev/haulout/pkg/admission/plugin/nodemaintenance"
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
	if !slices.Equal(o.RecommendedPluginOrder, want) {
		t.Errorf("order is %q, want %q", o.RecommendedPluginOrder, want)
	}
	if registered := sets.New(o.Plugins.Registered()...); !registered.Equal(sets.New(want...)) {
		t.Errorf("registered are %q, want %q", sets.List(registered), want)
	}
	if errs := o.Validate(); len(errs) > 0 {
		t.Errorf("the options are not valid: %v", errs)
	}
}
