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

package server

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	hostinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"

	"haulout.dev/haulout/pkg/admission/initializer"
	"haulout.dev/haulout/pkg/controller/evacuation"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodemaintenance"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	controllercache "haulout.dev/haulout/pkg/host/cache"
)

// controllerDependencies has the dependencies of every set of controllers.
type controllerDependencies struct {
	// clientsUntil creates the clients of the host cluster for one term of leadership; their calls
	// are cancelled soon after its end.
	clientsUntil func(context.Context) (limited, unlimited kubernetes.Interface, err error)
	// host is limited to --kube-api-qps; unlimited is for evictions. run sets both.
	host, unlimited kubernetes.Interface
	own             clientset.Interface
	recorder        events.EventRecorder
	authorizer      authorizer.Authorizer
	liveness        *loop.Tracker
	options         ControllerOptions
	evacuators      EvacuatorOptions
	// ownPod is the pod that this server runs in, if any.
	ownPod types.NamespacedName
	// storageID identifies the storage. The node controller writes it into every annotation of a
	// node, and only reverts changes with this ID, or with the ID in options.AdoptStorage.
	storageID string
	// askEveryNodeByName is --authorize-every-node-by-name.
	askEveryNodeByName bool
	// pods exposes the pod cache of the controllers to admission.
	pods *initializer.KnownPods
}

// run creates a set of controllers with their caches and runs it until the context ends. Only the
// leader needs all pods, so these caches exist only during its leadership.
func (d controllerDependencies) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var err error
	if d.host, d.unlimited, err = d.clientsUntil(ctx); err != nil {
		return fmt.Errorf("create the clients of the host cluster: %w", err)
	}
	host := hostinformers.NewSharedInformerFactoryWithOptions(d.host, resync, hostinformers.WithTransform(controllercache.NewTransform()))
	own := informers.NewSharedInformerFactoryWithOptions(d.own, resync, informers.WithTransform(controllercache.Strip))
	evacuations, err := evacuation.New(evacuation.Config{
		Host: d.unlimited, HostInformers: host, Maintenance: d.own, MaintenanceInformers: own, Recorder: d.recorder,
		Liveness: d.liveness, CompletedTTL: d.options.CompletedEvacuationTTL, EvacuatorStartDeadline: d.options.EvacuatorStartDeadline,
		EvictionPolicy:          d.options.Evictions,
		SurgeTimeout:            surgeTimeoutOf(host.Apps().V1().Deployments().Lister(), d.evacuators.SurgeTimeout),
		DaemonSetBudgetPatience: d.evacuators.DaemonSetBudgetPatience,
	})
	if err != nil {
		return fmt.Errorf("create controller %s: %w", evacuation.Name, err)
	}
	maintenances, err := nodemaintenance.New(nodemaintenance.Config{
		Host: d.host, HostInformers: host, Maintenance: d.own, MaintenanceInformers: own,
		Recorder: d.recorder, Authorizer: d.authorizer, Liveness: d.liveness, Evacuators: sets.New(d.evacuators.BuiltIn...),
		OwnPod: d.ownPod, EvictionsInFlight: evacuations.EvictionsInFlight, AdvertisePlanned: d.options.AdvertisePlannedMaintenance,
		StorageID: d.storageID, AdoptStorage: d.options.AdoptStorage, AskEveryNodeByName: d.askEveryNodeByName,
		StallTimeout: d.options.StallTimeout, CompletedTTL: d.options.CompletedMaintenanceTTL, DaemonSetBudgetPatience: d.evacuators.DaemonSetBudgetPatience,
	})
	if err != nil {
		return fmt.Errorf("create controller %s: %w", nodemaintenance.Name, err)
	}
	controllers, err := d.builtIn(host, own)
	if err != nil {
		return err
	}
	controllers = append(controllers, maintenances, evacuations)
	host.StartWithContext(ctx)
	own.StartWithContext(ctx)
	// Stop the informers after the controllers, which may still read them.
	defer host.Shutdown()
	defer own.Shutdown()
	defer cancel()
	d.pods.Set(controllercache.PodLister(host.Core().V1().Pods().Informer().GetIndexer()))
	defer d.pods.Set(nil)

	var wg sync.WaitGroup
	for _, c := range controllers {
		wg.Go(func() { c.Run(ctx, d.options.Workers) })
	}
	wg.Wait()
	return nil
}
