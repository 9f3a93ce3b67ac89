// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/identity"
	"haulout.dev/haulout/pkg/registry/maintenance/evacuation"
	"haulout.dev/haulout/pkg/registry/maintenance/nodemaintenance"
	"haulout.dev/haulout/pkg/registry/maintenance/nodetask"
	"haulout.dev/haulout/pkg/registry/maintenance/rollout"
)

// ExtraConfig is the configuration of the Haulout server in addition to that of a generic server.
type ExtraConfig struct {
	// Identity recognizes the server's own user. It learns this user when the authenticator is
	// complete.
	Identity *identity.Server
	// MaintenanceInformers watch Haulout's own API through the loopback client, for admission on
	// every replica.
	MaintenanceInformers informers.SharedInformerFactory
	// NewestNode returns the creation time of the newest node of the host cluster; nil means that
	// the server has no host cluster.
	NewestNode nodemaintenance.NewestNode
	// Previewer creates previews of maintenances.
	Previewer nodemaintenance.Previewer
	// EvacuatorStartDeadline is the time after which the next evacuator may become active if the
	// active one has not sent its first report.
	EvacuatorStartDeadline time.Duration
	// Controllers act on the host cluster; if nil, the server only stores objects.
	Controllers *Controllers
}

// Config is the configuration of the server.
type Config struct {
	GenericConfig *genericapiserver.RecommendedConfig
	ExtraConfig   ExtraConfig
}

type completedConfig struct {
	generic genericapiserver.CompletedConfig
	extra   *ExtraConfig
}

// CompletedConfig is a configuration from which a server can be created; only Complete returns one.
type CompletedConfig struct {
	*completedConfig
}

// Complete sets the derived fields. It returns an error if the server could not recognize its own
// requests.
func (c *Config) Complete() (CompletedConfig, error) {
	completed := completedConfig{generic: c.GenericConfig.Complete(), extra: &c.ExtraConfig}
	auth := c.GenericConfig.Authentication.Authenticator
	if err := c.ExtraConfig.Identity.Learn(auth, c.GenericConfig.LoopbackClientConfig.BearerToken); err != nil {
		return CompletedConfig{}, err
	}
	return CompletedConfig{&completed}, nil
}

// Server is the Haulout API server.
type Server struct {
	GenericAPIServer *genericapiserver.GenericAPIServer
}

// New creates the server, its storage and its hooks. Nothing runs before
// GenericAPIServer.PrepareRun().RunWithContext.
func (c CompletedConfig) New() (*Server, error) {
	generic, err := c.generic.New("haulout-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	// A server without controllers does not read the Lease.
	noLeader := func() string { return "" }
	outdated := noLeader
	if c.extra.Controllers != nil {
		noLeader, outdated = c.extra.Controllers.NoLeader, c.extra.Controllers.Outdated
	}
	newest := c.extra.NewestNode
	if newest == nil {
		newest = func() (*metav1.Time, bool) { return nil, true }
	}
	options, isServer, realTime := c.generic.RESTOptionsGetter, c.extra.Identity.Is, clock.RealClock{}
	maintenances, err := nodemaintenance.NewStorage(options, nodemaintenance.NewStrategy(Scheme, isServer, noLeader, newest, realTime), c.extra.Previewer)
	if err != nil {
		return nil, err
	}
	evacuations, err := evacuation.NewStorage(options, evacuation.NewStrategy(Scheme, isServer, c.extra.EvacuatorStartDeadline, realTime))
	if err != nil {
		return nil, err
	}
	rollouts, err := rollout.NewStorage(options, rollout.NewStrategy(Scheme, noLeader, newest, realTime))
	if err != nil {
		return nil, err
	}
	tasks, err := nodetask.NewStorage(options, nodetask.NewStrategy(Scheme, isServer, realTime), noLeader, outdated)
	if err != nil {
		return nil, err
	}
	group := genericapiserver.NewDefaultAPIGroupInfo(maintenance.GroupName, Scheme, ParameterCodec, Codecs)
	group.VersionedResourcesStorageMap[v1alpha1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"nodemaintenances":               maintenances.NodeMaintenance,
		"nodemaintenances/status":        maintenances.Status,
		"nodemaintenances/preview":       maintenances.Preview,
		"nodemaintenancerollouts":        rollouts.Rollout,
		"nodemaintenancerollouts/status": rollouts.Status,
		"nodetasks":                      tasks.NodeTask,
		"nodetasks/status":               tasks.Status,
		"evacuations":                    evacuations.Evacuation,
		"evacuations/status":             evacuations.Status,
	}
	if err := generic.InstallAPIGroup(&group); err != nil {
		return nil, err
	}
	if err := c.addHooks(generic); err != nil {
		return nil, err
	}
	return &Server{GenericAPIServer: generic}, nil
}

// addHooks adds the hooks that start informers and controllers. A post-start hook must return
// immediately, and an error that it returns ends the process.
func (c CompletedConfig) addHooks(server *genericapiserver.GenericAPIServer) error {
	own := c.extra.MaintenanceInformers
	if err := server.AddPostStartHook("start-maintenance-informers", func(hook genericapiserver.PostStartHookContext) error {
		own.StartWithContext(hook)
		return nil
	}); err != nil {
		return err
	}
	if err := server.AddReadyzChecks(healthz.NamedCheck("maintenance-informer-sync", healthz.NewInformerSyncHealthz(own).Check)); err != nil {
		return fmt.Errorf("watch the informers of our own API: %w", err)
	}
	if c.extra.Controllers == nil {
		return nil
	}
	return c.extra.Controllers.addTo(server)
}
