// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package initializer passes dependencies to the admission plugins. The generic initializer of the
// API server library already passes the host cluster: its client and informers through
// WantsExternalKubeClientSet and WantsExternalKubeInformerFactory, its authorizer through
// WantsAuthorizer.
package initializer

import (
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/tools/events"

	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/identity"
)

// Dependencies are what the plugins of Haulout need beside the host cluster.
type Dependencies struct {
	// Informers are the informers of our API. They are started after all plugins are initialized.
	Informers informers.SharedInformerFactory
	// Identity recognizes the server itself. Its content may become available only after
	// initialization.
	Identity *identity.Server
	// Recorder writes events into the host cluster.
	Recorder events.EventRecorder
	// NodeName is the node of the pod of this server; empty when it does not run as a pod.
	NodeName string
}

// WantsDependencies is implemented by the plugins of Haulout.
type WantsDependencies interface {
	// SetDependencies passes the dependencies, of which the plugin takes what it needs.
	SetDependencies(Dependencies)
	admission.InitializationValidator
}

var _ admission.PluginInitializer = Dependencies{}

// Initialize implements admission.PluginInitializer.
func (d Dependencies) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(WantsDependencies); ok {
		wants.SetDependencies(d)
	}
}
