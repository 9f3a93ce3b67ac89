// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package host has the clients and the caches of the host cluster for controllers and previews.
package host

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
	externalversions "haulout.dev/haulout/pkg/generated/informers/externalversions"
	maintenanceinformers "haulout.dev/haulout/pkg/generated/informers/externalversions/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/inflight"
	"haulout.dev/haulout/pkg/host/podcache"
)

// Clients are the clients of a Cluster.
type Clients struct {
	// Client is the client of the host cluster.
	Client kubernetes.Interface
	// Unlimited is a client of the host cluster without a rate limit, for controllers that limit
	// their requests themselves.
	Unlimited kubernetes.Interface
	// Maintenance is the client of our own API with the identity of the server.
	Maintenance versioned.Interface
	// Recorder writes events into the host cluster.
	Recorder events.EventRecorder
}

// Cluster has the clients and the caches of all controllers for one term of leadership.
type Cluster struct {
	Clients
	*Caches
	// InFlight has the evictions whose outcome is not known.
	InFlight *inflight.Evictions

	NodeMaintenances maintenanceinformers.NodeMaintenanceInformer
	// Evacuations has the index podcache.EvacuationsByNode.
	Evacuations maintenanceinformers.EvacuationInformer
	NodeTasks   maintenanceinformers.NodeTaskInformer
	Rollouts    maintenanceinformers.NodeMaintenanceRolloutInformer

	// evacuations is the store of Evacuations: the informer takes a lock and allocates an object
	// for each call.
	evacuations cache.Store

	own externalversions.SharedInformerFactory
}

// NewCluster creates a cluster whose informers do not run yet. Create the controllers before Start
// is called, since they add handlers and indexes to the informers.
func NewCluster(clients Clients, resync time.Duration) (*Cluster, error) {
	caches, err := NewCaches(clients.Client, resync, podcache.NewTransform())
	if err != nil {
		return nil, err
	}
	own := externalversions.NewSharedInformerFactoryWithOptions(clients.Maintenance, resync, externalversions.WithTransform(podcache.Strip))
	c := &Cluster{
		Clients: clients, Caches: caches, InFlight: &inflight.Evictions{}, own: own,
		NodeMaintenances: own.Maintenance().V1alpha1().NodeMaintenances(), Evacuations: own.Maintenance().V1alpha1().Evacuations(),
		NodeTasks: own.Maintenance().V1alpha1().NodeTasks(),
		Rollouts:  own.Maintenance().V1alpha1().NodeMaintenanceRollouts(),
	}
	c.evacuations = c.Evacuations.Informer().GetStore()
	if err := podcache.AddIndex(c.Evacuations.Informer(), podcache.EvacuationsByNode, podcache.IndexByNode); err != nil {
		return nil, fmt.Errorf("add index of Evacuations: %w", err)
	}
	if err := podcache.AddIndex(c.NodeMaintenances.Informer(), draining, indexDraining); err != nil {
		return nil, fmt.Errorf("add index of NodeMaintenances: %w", err)
	}
	return c, nil
}

// draining is an index of the maintenances that drain nodes, which has the same key for all of
// them. There may be many more that are complete.
const draining = "draining"

func indexDraining(object any) ([]string, error) {
	if nm, ok := object.(*v1alpha1.NodeMaintenance); ok && v1alpha1.IsDraining(nm) {
		return []string{draining}, nil
	}
	return nil, nil
}

// Draining returns the maintenances in stage Drain from the cache. Callers must not change them.
func (c *Cluster) Draining() ([]*v1alpha1.NodeMaintenance, error) {
	objects, err := c.NodeMaintenances.Informer().GetIndexer().ByIndex(draining, draining)
	found := make([]*v1alpha1.NodeMaintenance, 0, len(objects))
	for _, object := range objects {
		if nm, ok := object.(*v1alpha1.NodeMaintenance); ok {
			found = append(found, nm)
		}
	}
	return found, err
}

// Start starts the informers.
func (c *Cluster) Start(ctx context.Context) {
	c.Caches.Start(ctx)
	c.own.StartWithContext(ctx)
}

// EvacuationOf returns the Evacuation of a pod from the cache, or nil. Callers must not change it.
func (c *Cluster) EvacuationOf(pod *corev1.Pod) *v1alpha1.Evacuation {
	// For a pod without an Evacuation the lister would create an error, which costs more than the
	// lookup.
	object, _, err := c.evacuations.GetByKey(pod.Namespace + "/" + protocol.CanonicalName(pod.Name, pod.UID))
	if e, ok := object.(*v1alpha1.Evacuation); ok && err == nil && e.Spec.PodRef.UID == pod.UID {
		return e
	}
	return nil
}

// Shutdown waits until the informers have stopped, after their context has ended.
func (c *Cluster) Shutdown() {
	c.Caches.Shutdown()
	c.own.Shutdown()
}
