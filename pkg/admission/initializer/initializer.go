// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package initializer passes dependencies to the admission plugins. The generic initializer of the
// API server library already passes the dependencies of the host cluster: the client and informers
// through WantsExternalKubeClientSet and WantsExternalKubeInformerFactory, and the authorizer
// through WantsUnconditionalAuthorizer.
package initializer

import (
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/tools/events"

	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/identity"
)

// Dependencies has the dependencies of Haulout's plugins, except those of the host cluster.
type Dependencies struct {
	// Informers are the informers of Haulout's API. They are started after all plugins are
	// initialized.
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
	// SetDependencies passes the dependencies. The plugin keeps the dependencies that it needs.
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
