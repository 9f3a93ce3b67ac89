// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	hostfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	nodecontroller "haulout.dev/haulout/pkg/controller/node"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/selection"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	externalversions "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/host/inflight"
	"haulout.dev/haulout/pkg/host/rights"
)

// newControllers returns the controllers of nodes and of maintenances, wired as in the server.
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
	host, maintenance := nodeConfig.HostInformers, nodeConfig.MaintenanceInformers
	selected, err := selection.New(host.Core().V1().Nodes().Informer(),
		maintenance.Maintenance().V1alpha1().NodeMaintenances().Informer(), nodeConfig.Clock)
	must(err)
	stateConfig.HostInformers, stateConfig.MaintenanceInformers, stateConfig.Selection = host, maintenance, selected
	stateConfig.Clock, stateConfig.Evacuators = nodeConfig.Clock, nodeConfig.Evacuators
	state, err := nodestate.New(stateConfig)
	must(err)
	nodeConfig.Selection, nodeConfig.State = selected, state
	nodes, err := nodecontroller.New(nodeConfig)
	must(err)
	c, err := New(Config{
		Host: nodeConfig.Host, HostInformers: host, Maintenance: nodeConfig.Maintenance,
		MaintenanceInformers: maintenance, Selection: selected, State: state, Rights: nodeConfig.Rights,
		Recorder: nodeConfig.Recorder, Clock: nodeConfig.Clock,
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

// newController returns a controller on empty clusters whose informers do not run, and the stores
// of its pods and Evacuations.
func newController(tb testing.TB) (c *Controller, pods, evacuations cache.Store) {
	tb.Helper()
	host, maintenance := hostfake.NewClientset(), maintenancefake.NewClientset()
	hostInformers, maintenanceInformers := informers.NewSharedInformerFactory(host,
		0), externalversions.NewSharedInformerFactory(maintenance, 0)
	_, c = newControllers(tb, nodecontroller.Config{
		Host: host, HostInformers: hostInformers, Maintenance: maintenance, MaintenanceInformers: maintenanceInformers,
		Recorder: events.NewFakeRecorder(1), Evacuators: sets.New[string](), Clock: clock.RealClock{},
		Rights: rights.NewCache(
			rights.CacheConfig{Authorizer: &authorizerOfAll{refused: sets.New[string]()}, Clock: clock.RealClock{}},
		),
	}, nodestate.Config{Evictions: &inflight.Evictions{}})
	return c, hostInformers.Core().V1().Pods().Informer().GetStore(), maintenanceInformers.Maintenance().V1alpha1().Evacuations().Informer().GetStore()
}
