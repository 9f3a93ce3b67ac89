// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// TestPoliciesThatTheHostLacks has what kube-apiserver serves in admissionregistration.k8s.io/v1.
func TestPoliciesThatTheHostLacks(t *testing.T) {
	kubernetes135 := sets.New("mutatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings",
		"validatingwebhookconfigurations")
	kubernetes136 := kubernetes135.Union(sets.New("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"))
	for name, test := range map[string]struct {
		served   sets.Set[string]
		enabled  []string
		disabled []string
		// wrong has the words of the error.
		wrong []string
	}{
		"Kubernetes 1.36 has both kinds of policies":       {served: kubernetes136},
		"Kubernetes 1.35 has no MutatingAdmissionPolicies": {served: kubernetes135, disabled: []string{mutatingpolicy.PluginName}},
		"a user enables what Kubernetes 1.35 lacks": {
			served: kubernetes135, enabled: []string{mutatingpolicy.PluginName},
			wrong: []string{"--enable-admission-plugins", mutatingpolicy.PluginName, "mutatingadmissionpolicies"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			options := genericoptions.NewAdmissionOptions()
			before := slices.Clone(options.DisablePlugins)
			options.EnablePlugins = test.enabled
			err := (&hostCluster{policies: test.served}).switchOffMissingPolicies(t.Context(), options)
			if (err != nil) != (test.wrong != nil) {
				t.Fatalf("got error %v, want one: %t", err, test.wrong != nil)
			}
			for _, word := range test.wrong {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("got error %v, want it to name %s", err, word)
				}
			}
			if got := options.DisablePlugins[len(before):]; err == nil && !slices.Equal(got, test.disabled) {
				t.Errorf("got disabled plugins %q, want %q", got, test.disabled)
			}
		})
	}
}
