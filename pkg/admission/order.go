// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package admission defines the admission plugins of the server and their order.
package admission

import (
	"slices"

	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"haulout.dev/haulout/pkg/admission/plugin/evacuation"
	"haulout.dev/haulout/pkg/admission/plugin/nodemaintenance"
	"haulout.dev/haulout/pkg/admission/plugin/nodetask"
	"haulout.dev/haulout/pkg/admission/plugin/rollout"
	"haulout.dev/haulout/pkg/host/rights"
)

// OwnPlugins are the plugins of Haulout, in the order in which they run.
func OwnPlugins() []string {
	return []string{nodemaintenance.PluginName, rollout.PluginName, nodetask.PluginName, evacuation.PluginName}
}

// Configure registers Haulout's plugins and places them before the policies and webhooks of the
// cluster, so that these get complete objects. The namespace lifecycle check remains first. The
// last two arguments are used when the plugins are created, after flag parsing: nodes are the rules
// for the plugins that check rights to nodes, evacuators returns the classes of the enabled built-in
// evacuators.
func Configure(o *genericoptions.AdmissionOptions, nodes *rights.Rules, evacuators func() []string) {
	nodemaintenance.Register(o.Plugins, nodes)
	rollout.Register(o.Plugins, nodes)
	nodetask.Register(o.Plugins, nodes)
	evacuation.Register(o.Plugins, evacuators)
	at := max(slices.Index(o.RecommendedPluginOrder, mutatingpolicy.PluginName), 0)
	o.RecommendedPluginOrder = slices.Insert(o.RecommendedPluginOrder, at, OwnPlugins()...)
}
