// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/controller/evacuation"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/node"
	"haulout.dev/haulout/pkg/controller/nodemaintenance"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/nodetask"
	"haulout.dev/haulout/pkg/controller/rollout"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/evict"
	"haulout.dev/haulout/pkg/host/rights"
)

type controllerDependencies struct {
	// newClients creates the clients for one term of leadership. They send nothing when mayAct
	// returns an error, and their calls are cancelled soon after the end of the term.
	newClients func(ctx context.Context, mayAct func(grace time.Duration) error) (host.Clients, error)
	recorder   events.EventRecorder
	authorizer authorizer.Authorizer
	liveness   *loop.Tracker
	options    ControllerOptions
	evacuators EvacuatorOptions
	// ownPod is the pod in which this server runs, if any.
	ownPod types.NamespacedName
	// storageID identifies the storage. The node controller writes the ID into each of its node
	// annotations. It only reverts changes whose annotation has this ID or the ID in
	// options.AdoptStorage.
	storageID  string
	nodeRights rights.Rules
	// rawEvictionTTL is how long an Evacuation that was made for an eviction is kept.
	rawEvictionTTL time.Duration
	// caches gets the caches of a term for previews.
	caches *previewCaches
}

// run creates a set of controllers with their caches and runs it until the context ends.
func (d controllerDependencies) run(ctx context.Context, mayAct func(grace time.Duration) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	clients, err := d.newClients(ctx, mayAct)
	if err != nil {
		return fmt.Errorf("create the clients of the controllers: %w", err)
	}
	clients.Recorder = d.recorder
	cluster, err := host.NewCluster(clients, resync)
	if err != nil {
		return err
	}
	selected, err := selection.New(cluster.Nodes.Informer(), cluster.NodeMaintenances.Informer(), clock.RealClock{})
	if err != nil {
		return err
	}
	// The two controllers ask each other. Neither does before it runs.
	var evacuations *evacuation.Controller
	controllers, surges, err := d.builtIn(cluster, selected, func(e *v1alpha1.Evacuation) bool { return evacuations.Asks(e) })
	if err != nil {
		return err
	}
	state, err := nodestate.New(nodestate.Config{
		Cluster: cluster, Selection: selected, Clock: clock.RealClock{}, Evacuators: sets.New(d.evacuators.BuiltIn...),
		DaemonSetBudgetPatience: d.evacuators.DaemonSetBudgetPatience, OwnPod: d.ownPod,
	})
	if err != nil {
		return err
	}
	evacuations, err = evacuation.New(evacuation.Config{
		Cluster: cluster, Selection: selected, State: state, Evictions: evict.Client{Host: clients.Unlimited},
		Liveness: d.liveness, CompletedTTL: d.options.CompletedEvacuationTTL, EvacuatorStartDeadline: d.options.EvacuatorStartDeadline,
		EvictionPolicy: d.options.Evictions, SurgeTimeout: surges.SurgeTimeout, Standing: standingIn(surges), NotReplaced: surges.NotReplaced,
		DaemonSetBudgetPatience: d.evacuators.DaemonSetBudgetPatience, LongGrace: d.options.LongGrace,
		RawEvictionTTL: d.rawEvictionTTL,
	})
	if err != nil {
		return fmt.Errorf("create controller %s: %w", evacuation.Name, err)
	}
	drains, nodeRights, err := d.drains(cluster, selected, state)
	if err != nil {
		return err
	}
	costs, err := deletioncost.New(deletioncost.Config{
		Cluster: cluster, Liveness: d.liveness, IsSurplus: surges.IsSurplus, IsSurging: surges.IsSurging, NeverLower: !d.options.LowerDeletionCost,
	})
	if err != nil {
		return fmt.Errorf("create controller %s: %w", deletioncost.Name, err)
	}
	controllers = append(append(controllers, drains...), evacuations, costs)
	cluster.Start(ctx)
	// Stop the informers after the controllers, which may still use their caches.
	defer cluster.Shutdown()
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { nodeRights.Run(ctx) })
	wg.Go(func() { d.caches.lend(ctx, cluster.Caches) })
	for _, c := range controllers {
		wg.Go(func() { c.Run(ctx, d.options.Workers) })
	}
	wg.Wait()
	return nil
}

// drains creates the controllers of nodes, maintenances, tasks and rollouts, and their shared
// rights.
func (d controllerDependencies) drains(
	cluster *host.Cluster, selected *selection.Selection, state *nodestate.State,
) ([]controller, *rights.Cache, error) {
	realTime := clock.RealClock{}
	nodeRights := rights.NewCache(rights.CacheConfig{Authorizer: d.authorizer, Rules: d.nodeRights, Clock: realTime})
	nodes, err := node.New(node.Config{
		Cluster: cluster, Selection: selected, State: state, Rights: nodeRights,
		Clock: realTime, Liveness: d.liveness, Evacuators: sets.New(d.evacuators.BuiltIn...),
		StorageID: d.storageID, AdoptStorage: d.options.AdoptStorage, AdvertisePlanned: d.options.AdvertisePlannedMaintenance,
		ProtectHeld: d.options.ProtectHeldNodes,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("create controller %s: %w", node.Name, err)
	}
	maintenances, err := nodemaintenance.New(nodemaintenance.Config{
		Cluster: cluster, Selection: selected, State: state, Rights: nodeRights,
		Clock: realTime, Liveness: d.liveness,
		StallTimeout: d.options.StallTimeout, CompletedTTL: d.options.CompletedMaintenanceTTL, LongGrace: d.options.LongGrace,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("create controller %s: %w", nodemaintenance.Name, err)
	}
	tasks := nodetask.New(nodetask.Config{
		Cluster: cluster, Selection: selected, State: state, Rights: nodeRights, Clock: realTime, Liveness: d.liveness,
	})
	rollouts, err := rollout.New(rollout.Config{
		Cluster: cluster, Selection: selected, Rights: nodeRights, Clock: realTime, Liveness: d.liveness,
		MaxUnavailableNodes: int(d.options.MaxUnavailableNodes), ServerNode: os.Getenv("NODE_NAME"),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("create controller %s: %w", rollout.Name, err)
	}
	return []controller{nodes, maintenances, tasks, rollouts}, nodeRights, nil
}
