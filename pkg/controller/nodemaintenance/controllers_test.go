// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	hostfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	nodecontroller "haulout.dev/haulout/pkg/controller/node"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/selection"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/rights"
)

// newControllers returns the node and the nodemaintenance controllers, which share their state as
// in the server.
func newControllers(
	tb testing.TB, nodeConfig nodecontroller.Config, stateConfig nodestate.Config,
) (*nodecontroller.Controller, *Controller) {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	cluster := nodeConfig.Cluster
	selected, err := selection.New(cluster.Nodes.Informer(), cluster.NodeMaintenances.Informer(), nodeConfig.Clock)
	must(err)
	stateConfig.Cluster, stateConfig.Selection = cluster, selected
	stateConfig.Clock, stateConfig.Evacuators = nodeConfig.Clock, nodeConfig.Evacuators
	state, err := nodestate.New(stateConfig)
	must(err)
	nodeConfig.Selection, nodeConfig.State = selected, state
	nodes, err := nodecontroller.New(nodeConfig)
	must(err)
	c, err := New(Config{
		Cluster: cluster, Selection: selected, State: state, Rights: nodeConfig.Rights, Clock: nodeConfig.Clock,
	})
	must(err)
	tb.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		nodes.Run(over, 0)
		c.Run(over, 0)
	})
	return nodes, c
}

// newController returns a controller for empty clusters, and the stores of its pods and
// Evacuations. Its informers do not run.
func newController(tb testing.TB) (c *Controller, pods, evacuations cache.Store) {
	tb.Helper()
	cluster, err := host.NewCluster(host.Clients{
		Client: hostfake.NewClientset(), Maintenance: maintenancefake.NewClientset(), Recorder: events.NewFakeRecorder(1),
	}, 0)
	if err != nil {
		tb.Fatal(err)
	}
	_, c = newControllers(tb, nodecontroller.Config{
		Cluster: cluster, Evacuators: sets.New[string](), Clock: clock.RealClock{},
		Rights: rights.NewCache(
			rights.CacheConfig{Authorizer: &authorizerOfAll{refused: sets.New[string]()}, Clock: clock.RealClock{}},
		),
	}, nodestate.Config{})
	return c, cluster.Pods.Store(), cluster.Evacuations.Informer().GetStore()
}
