// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package noderights

import (
	"errors"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	genericinitializer "k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	kubeinformers "k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/admission/initializer"
	listers "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/identity"
)

// Base is the part of an admission plugin that checks rights to nodes.
type Base struct {
	*admission.Handler

	Rules        rights.Rules
	Identity     *identity.Server
	Authorizer   authorizer.UnconditionalAuthorizer
	Nodes        corelisters.NodeLister
	Maintenances listers.NodeMaintenanceLister

	synced []cache.InformerSynced
}

var (
	_ genericinitializer.WantsExternalKubeInformerFactory = &Base{}
	_ genericinitializer.WantsUnconditionalAuthorizer     = &Base{}
	_ initializer.WantsDependencies                       = &Base{}
)

// NewBase returns the part of a plugin for creations, updates and deletions, which must still be
// initialized.
func NewBase(rules rights.Rules) Base {
	return Base{Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete), Rules: rules}
}

// WaitFor adds a cache that must be synced before a request is admitted.
func (b *Base) WaitFor(synced cache.InformerSynced) {
	b.synced = append(b.synced, synced)
	b.SetReadyFunc(func() bool {
		return !slices.ContainsFunc(b.synced, func(synced cache.InformerSynced) bool { return !synced() })
	})
}

// SetExternalKubeInformerFactory sets the informers of the host cluster.
func (b *Base) SetExternalKubeInformerFactory(f kubeinformers.SharedInformerFactory) {
	nodes := f.Core().V1().Nodes()
	b.Nodes = nodes.Lister()
	b.WaitFor(nodes.Informer().HasSynced)
}

// SetUnconditionalAuthorizer sets the authorizer of the host cluster.
func (b *Base) SetUnconditionalAuthorizer(a authorizer.UnconditionalAuthorizer) { b.Authorizer = a }

// SetDependencies sets the informers of Haulout's API and the identity of the server.
func (b *Base) SetDependencies(d initializer.Dependencies) {
	b.Identity = d.Identity
	maintenances := d.Informers.Maintenance().V1alpha1().NodeMaintenances()
	b.Maintenances = maintenances.Lister()
	b.WaitFor(maintenances.Informer().HasSynced)
}

// ValidateInitialization returns an error about a missing dependency.
func (b *Base) ValidateInitialization() error {
	switch {
	case b.Nodes == nil:
		return errors.New("the informers of the host cluster are missing")
	case b.Authorizer == nil:
		return errors.New("the authorizer is missing")
	case b.Identity == nil:
		return errors.New("the dependencies of the server are missing")
	}
	return nil
}

// Checker returns a checker with the authorizer and the rules of the plugin.
func (b *Base) Checker(effect string) Checker {
	return Checker{Authorizer: b.Authorizer, Rules: b.Rules, Effect: effect}
}
