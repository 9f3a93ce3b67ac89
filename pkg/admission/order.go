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

// Package admission defines the admission plugins of the server and their order.
package admission

import (
	"slices"

	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"haulout.dev/haulout/pkg/admission/plugin/evacuation"
	"haulout.dev/haulout/pkg/admission/plugin/nodemaintenance"
)

// OwnPlugins are the plugins of Haulout, in the order in which they run.
func OwnPlugins() []string {
	return []string{nodemaintenance.PluginName, evacuation.PluginName}
}

// Configure registers our plugins and orders them before the policies and webhooks of the cluster,
// so that those see complete objects. The namespace lifecycle check stays first. Both arguments are
// read when the plugins are created, after flag parsing: nodes configures the plugin for
// NodeMaintenances, evacuators returns the classes of the enabled built-in evacuators.
func Configure(o *genericoptions.AdmissionOptions, nodes *nodemaintenance.Config, evacuators func() []string) {
	nodemaintenance.Register(o.Plugins, nodes)
	evacuation.Register(o.Plugins, evacuators)
	at := max(slices.Index(o.RecommendedPluginOrder, mutatingpolicy.PluginName), 0)
	o.RecommendedPluginOrder = slices.Insert(o.RecommendedPluginOrder, at, OwnPlugins()...)
}
