// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package daemonset is the built-in evacuator of DaemonSet pods. It requests their eviction only
// when the drain of their node has reached them, since the other pods of the node may need them
// until then. The taint that the node controller adds to the node prevents their DaemonSets from
// recreating them.
//
// The evacuator requests an eviction by a report that sets status.expectedEvacuationFinishTime. The
// evacuation controller reads the report and evicts the pod through its queue, as the disruption
// budget allows.
//
// A sync gathers all inputs about one Evacuation, decides with a pure function, and acts. The
// volumes of nodes, and the DaemonSets about which a warning was sent, are kept in memory and may
// be lost at any time.
package daemonset

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/drain/holds"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	maintenancelisters "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/podcache"
)

// Name is the name of this controller in logs, metrics and queues.
const Name = "daemonset-evacuator"

const (
	fieldManager = "haulout-" + Name

	// DefaultVolumeDetachTimeout is the default of Config.VolumeDetachTimeout.
	DefaultVolumeDetachTimeout = 5 * time.Minute
)

// Config has the dependencies and options of the controller.
type Config struct {
	// Cluster has the clients and the caches.
	Cluster *host.Cluster
	// Clock is the clock; nil means the real one.
	Clock clock.WithTicker
	// Liveness tracks which item each worker processes; nil disables tracking.
	Liveness *loop.Tracker
	// VolumeDetachTimeout is how long DaemonSet pods are kept while their node still has volumes in
	// use that no remaining pod uses. The time begins with the first Evacuation of a DaemonSet pod
	// on the node. 0 means the default, and a negative value disables the wait.
	VolumeDetachTimeout time.Duration
}

// Controller is the evacuator.
type Controller struct {
	*host.Cluster
	clock clock.WithTicker

	evacuationLister maintenancelisters.EvacuationLister
	nodeLister       corelisters.NodeLister
	podLister        corelisters.PodLister
	synced           []cache.InformerSynced

	queue *loop.Queue[types.NamespacedName]

	volumeDetachTimeout time.Duration
	volumes             loop.Memory[types.UID, knownVolumes]
	// warned has the DaemonSets about which a warning event was sent. A new leader may send the
	// event again.
	warned loop.Memory[types.UID, struct{}]
}

// New creates a controller and registers its handlers and indexes; the informers must not run yet.
// A controller runs once.
func New(config Config) (*Controller, error) {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.VolumeDetachTimeout == 0 {
		config.VolumeDetachTimeout = DefaultVolumeDetachTimeout
	}
	c := &Controller{
		Cluster: config.Cluster, clock: config.Clock,
		evacuationLister: config.Cluster.Evacuations.Lister(),
		nodeLister:       config.Cluster.Nodes.Lister(), podLister: config.Cluster.Pods.Lister(),
		queue: loop.NewQueue(loop.Config[types.NamespacedName]{
			Name: Name, Backoff: 5 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness,
			LogAs: func(key types.NamespacedName) (string, any) { return "evacuation", key },
		}),
		volumeDetachTimeout: config.VolumeDetachTimeout,
	}
	if err := podcache.AddIndex(c.Evacuations.Informer(), evacuationsByNode, indexByNode); err != nil {
		return nil, fmt.Errorf("add index: %w", err)
	}
	c.synced = append(c.synced, c.Owners.HasSynced)
	return c, c.watch()
}

// Run runs the controller until the context ends, and returns after the last write. The informers
// must have been started.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer c.queue.ShutDown()
	ctx, ok := loop.Start(ctx, Name, workers, c.synced...)
	if !ok {
		return
	}
	c.queue.Run(ctx, workers, c.sync)
}

func (c *Controller) sync(ctx context.Context, key types.NamespacedName) error {
	s, err := c.gather(ctx, key)
	if err != nil || s == nil {
		return err
	}
	d := decide(*s)
	if !d.wake.IsZero() {
		c.queue.AddAfter(key, d.wake.Sub(s.now))
	}
	return c.act(ctx, s, d)
}

// gather reads all inputs of the decision about an Evacuation. It returns nil if the Evacuation
// does not exist.
func (c *Controller) gather(ctx context.Context, key types.NamespacedName) (*situation, error) {
	evacuation, err := c.evacuationLister.Evacuations(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &situation{now: c.clock.Now(), evacuation: evacuation}
	if !hasTurn(evacuation) {
		return s, nil
	}
	pod, err := c.podLister.Pods(key.Namespace).Get(evacuation.Spec.PodRef.Name)
	if apierrors.IsNotFound(err) || err == nil && pod.UID != evacuation.Spec.PodRef.UID {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.pod = pod
	if s.node, err = c.nodeLister.Get(pod.Spec.NodeName); err != nil {
		s.node = nil
		if apierrors.IsNotFound(err) {
			return s, nil
		}
		return nil, err
	}
	maintenances, err := c.Draining()
	if err != nil {
		return nil, err
	}
	if s.askedBy, err = holds.AskedBy(pod, s.node, maintenances, s.now); err != nil || !s.mayRequest() {
		return s, err
	}
	s.volumesUntil = c.volumesUntil(s.node, evacuation)
	if s.now.Before(s.volumesUntil) {
		s.volumes = c.unusedVolumes(ctx, s.node, s.now)
	}
	return s, nil
}

// mayRequest reports whether the decision may be to request the eviction. Only in that case gather
// reads the volumes of the node.
func (s *situation) mayRequest() bool {
	return s.askedBy != nil && s.pod.DeletionTimestamp == nil && drainplan.IsTainted(s.node) &&
		s.evacuation.Status.ExpectedEvacuationFinishTime == nil
}

func (c *Controller) act(ctx context.Context, s *situation, d decision) error {
	if d.status == nil {
		return nil
	}
	evacuation := s.evacuation.DeepCopy()
	evacuation.Status = *d.status
	client := c.Maintenance.MaintenanceV1alpha1().Evacuations(evacuation.Namespace)
	_, err := client.UpdateStatus(ctx, evacuation, metav1.UpdateOptions{FieldManager: fieldManager})
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	if d.requested {
		klog.FromContext(ctx).V(2).Info("Eviction of DaemonSet pod is requested",
			"pod", klog.KObj(s.pod), "nodeMaintenance", klog.KObj(s.askedBy))
		c.warnOfUpdate(ctx, s)
	}
	return nil
}

// Reasons and actions of the events of this evacuator.
const (
	// EventUpdatedByDrain: a drain evicts pods of a DaemonSet with the update strategy OnDelete.
	// About the DaemonSet.
	EventUpdatedByDrain = "UpdatedByDrain"

	actionEvacuate = "Evacuate"
)

// warnOfUpdate sends a warning event about a DaemonSet with the update strategy OnDelete. Such a
// DaemonSet updates only pods that are deleted. So the pods that are recreated after the
// maintenance have the newest template.
func (c *Controller) warnOfUpdate(ctx context.Context, s *situation) {
	owner := protocol.ControllerOf(s.pod, "DaemonSet")
	if c.Recorder == nil || owner == nil {
		return
	}
	ds, err := c.Owners.DaemonSet(ctx, s.pod.Namespace, owner.Name)
	if err != nil || ds == nil || ds.UID != owner.UID || ds.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		return
	}
	first := false
	c.warned.Change(ds.UID, func(_ struct{}, known bool) (struct{}, bool) {
		first = !known
		return struct{}{}, true
	})
	if !first {
		return
	}
	c.Recorder.Eventf(
		&corev1.ObjectReference{
			APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet", Namespace: ds.Namespace, Name: ds.Name, UID: ds.UID,
		},
		nil, corev1.EventTypeWarning, EventUpdatedByDrain, actionEvacuate,
		"NodeMaintenance %s evicts pods of this DaemonSet. Its update strategy is OnDelete, so pods on node %s and other "+
			"drained nodes will be recreated from the newest template when the maintenance is complete.",
		s.askedBy.Name, s.node.Name)
}
