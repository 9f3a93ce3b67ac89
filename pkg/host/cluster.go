// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package host has the clients and the caches of the host cluster that the controllers share.
package host

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	autoscalinginformers "k8s.io/client-go/informers/autoscaling/v2"
	coreinformers "k8s.io/client-go/informers/core/v1"
	policyinformers "k8s.io/client-go/informers/policy/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
	externalversions "haulout.dev/haulout/pkg/generated/informers/externalversions"
	maintenanceinformers "haulout.dev/haulout/pkg/generated/informers/externalversions/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/inflight"
	"haulout.dev/haulout/pkg/host/owners"
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

// Cluster has the clients and the caches of all controllers for one term of leadership. Its
// informers keep only the fields that podcache.Strip keeps, and pack pods. No controller gets the
// informer of pods itself, because the generated lister of that informer panics.
type Cluster struct {
	Clients
	// InFlight has the evictions whose outcome is not known.
	InFlight *inflight.Evictions

	Pods              *podcache.Pods
	Owners            *owners.Cached
	Nodes             coreinformers.NodeInformer
	Budgets           policyinformers.PodDisruptionBudgetInformer
	Deployments       appsinformers.DeploymentInformer
	Autoscalers       autoscalinginformers.HorizontalPodAutoscalerInformer
	VolumeAttachments storageinformers.VolumeAttachmentInformer

	NodeMaintenances maintenanceinformers.NodeMaintenanceInformer
	// Evacuations has the index podcache.EvacuationsByNode.
	Evacuations maintenanceinformers.EvacuationInformer
	NodeTasks   maintenanceinformers.NodeTaskInformer
	Rollouts    maintenanceinformers.NodeMaintenanceRolloutInformer

	// evacuations is the store of Evacuations: the informer takes a lock and allocates an object
	// for each call.
	evacuations cache.Store

	host informers.SharedInformerFactory
	own  externalversions.SharedInformerFactory
}

// NewCluster creates a cluster whose informers do not run yet. Create the controllers before Start
// is called, since they add handlers and indexes to the informers.
func NewCluster(clients Clients, resync time.Duration) (*Cluster, error) {
	host := informers.NewSharedInformerFactoryWithOptions(clients.Client, resync, informers.WithTransform(podcache.NewTransform()))
	own := externalversions.NewSharedInformerFactoryWithOptions(clients.Maintenance, resync, externalversions.WithTransform(podcache.Strip))
	c := &Cluster{
		Clients: clients, InFlight: &inflight.Evictions{}, host: host, own: own,
		Nodes: host.Core().V1().Nodes(), Budgets: host.Policy().V1().PodDisruptionBudgets(),
		Deployments: host.Apps().V1().Deployments(), Autoscalers: host.Autoscaling().V2().HorizontalPodAutoscalers(), VolumeAttachments: host.Storage().V1().VolumeAttachments(),
		NodeMaintenances: own.Maintenance().V1alpha1().NodeMaintenances(), Evacuations: own.Maintenance().V1alpha1().Evacuations(),
		NodeTasks: own.Maintenance().V1alpha1().NodeTasks(),
		Rollouts:  own.Maintenance().V1alpha1().NodeMaintenanceRollouts(),
	}
	c.evacuations = c.Evacuations.Informer().GetStore()
	var err error
	if c.Pods, err = podcache.NewPods(host.Core().V1().Pods().Informer()); err != nil {
		return nil, fmt.Errorf("add indexes of pods: %w", err)
	}
	if c.Owners, err = owners.NewCached(c.Pods, c.Nodes, host.Apps().V1()); err != nil {
		return nil, err
	}
	if err := podcache.AddIndex(c.Evacuations.Informer(), podcache.EvacuationsByNode, podcache.IndexByNode); err != nil {
		return nil, fmt.Errorf("add index of Evacuations: %w", err)
	}
	return c, nil
}

// Start starts the informers.
func (c *Cluster) Start(ctx context.Context) {
	c.host.StartWithContext(ctx)
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

// WaitForSync waits until the caches of the host cluster have all objects. It returns false if the
// context ends before.
func (c *Cluster) WaitForSync(ctx context.Context) bool {
	return c.host.WaitForCacheSyncWithContext(ctx).Err == nil
}

// Shutdown waits until the informers have stopped, after their context has ended.
func (c *Cluster) Shutdown() {
	c.host.Shutdown()
	c.own.Shutdown()
}
