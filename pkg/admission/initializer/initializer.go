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

// Self describes where the server runs.
type Self struct {
	// NodeName is the node of the pod of this server; empty when it does not run as a pod.
	NodeName string
}

// WantsMaintenanceInformers is implemented by plugins that read our own API.
type WantsMaintenanceInformers interface {
	// SetMaintenanceInformers sets the informers of our API. They are started after all plugins are
	// initialized.
	SetMaintenanceInformers(informers.SharedInformerFactory)
	admission.InitializationValidator
}

// WantsServerIdentity is implemented by plugins that treat requests of the server itself
// differently.
type WantsServerIdentity interface {
	// SetServerIdentity sets the identity, whose content may become available only after
	// initialization.
	SetServerIdentity(*identity.Server)
	admission.InitializationValidator
}

// WantsEventRecorder is implemented by plugins that write events into the host cluster.
type WantsEventRecorder interface {
	// SetEventRecorder sets the recorder.
	SetEventRecorder(events.EventRecorder)
	admission.InitializationValidator
}

// WantsSelf is implemented by plugins that need to know where the server runs.
type WantsSelf interface {
	// SetSelf sets the description of this server.
	SetSelf(Self)
	admission.InitializationValidator
}

// Initializer implements admission.PluginInitializer.
type Initializer struct {
	Informers informers.SharedInformerFactory
	Identity  *identity.Server
	Recorder  events.EventRecorder
	Self      Self
}

var _ admission.PluginInitializer = Initializer{}

// Initialize sets the dependencies that a plugin wants.
func (i Initializer) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(WantsMaintenanceInformers); ok {
		wants.SetMaintenanceInformers(i.Informers)
	}
	if wants, ok := plugin.(WantsServerIdentity); ok {
		wants.SetServerIdentity(i.Identity)
	}
	if wants, ok := plugin.(WantsEventRecorder); ok {
		wants.SetEventRecorder(i.Recorder)
	}
	if wants, ok := plugin.(WantsSelf); ok {
		wants.SetSelf(i.Self)
	}
}
