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

// Package daemonset is the built-in evacuator of DaemonSet pods. It deletes them when their turn in the drain of their node has come, and not
// before: the other pods of the node may need them until then. That no new ones come is the taint's work, which the maintenance controller puts on
// the node before it asks the first of them to leave.
//
// A sync gathers all that is known about one Evacuation, decides with a pure function, and acts. There is nothing to remember over a restart.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	controllercache "haulout.dev/haulout/pkg/controller/cache"
	"haulout.dev/haulout/pkg/controller/liveness"
	"haulout.dev/haulout/pkg/controller/worker"
	"haulout.dev/haulout/pkg/drainplan"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
	externalversions "haulout.dev/haulout/pkg/generated/informers/externalversions"
	maintenancelisters "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
)

// Name is what this controller is called in logs, metrics and queues.
const Name = "daemonset-evacuator"

const (
	// fieldManager owns what the controller writes.
	fieldManager = "haulout-" + Name
	// resendAfter is how long a pod may look untouched in the cache after it was deleted.
	resendAfter = 10 * time.Second
)

// Config is what the controller needs.
type Config struct {
	// Host is the client of the host cluster, HostInformers are its informers. Their transform must leave what cache.Strip leaves.
	Host          kubernetes.Interface
	HostInformers informers.SharedInformerFactory
	// Maintenance is the client of our own API as the server itself, MaintenanceInformers are its informers.
	Maintenance          versioned.Interface
	MaintenanceInformers externalversions.SharedInformerFactory
	// Clock is the time; nil is the real one.
	Clock clock.WithTicker
	// Liveness is told what the workers are busy with; nil tells nobody.
	Liveness *liveness.Tracker
}

// Controller is the evacuator.
type Controller struct {
	host        kubernetes.Interface
	maintenance versioned.Interface
	clock       clock.WithTicker

	evacuationLister  maintenancelisters.EvacuationLister
	evacuationIndexer cache.Indexer
	maintenanceLister maintenancelisters.NodeMaintenanceLister
	nodeLister        corelisters.NodeLister
	podLister         corelisters.PodLister
	synced            []cache.InformerSynced

	queue   *worker.Queue[types.NamespacedName]
	deleted deletions
}

// New makes a controller and registers its handlers and indexes; the informers must not run yet. A controller runs once.
func New(config Config) (*Controller, error) {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	nodes, pods := config.HostInformers.Core().V1().Nodes(), config.HostInformers.Core().V1().Pods()
	maintenances := config.MaintenanceInformers.Maintenance().V1alpha1().NodeMaintenances()
	evacuations := config.MaintenanceInformers.Maintenance().V1alpha1().Evacuations()
	c := &Controller{
		host: config.Host, maintenance: config.Maintenance, clock: config.Clock,
		evacuationLister: evacuations.Lister(), evacuationIndexer: evacuations.Informer().GetIndexer(), maintenanceLister: maintenances.Lister(),
		nodeLister: nodes.Lister(), podLister: controllercache.PodLister(pods.Informer().GetIndexer()),
		queue: worker.NewQueue(worker.Config[types.NamespacedName]{
			Name: Name, Backoff: 5 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness,
			LogAs: func(key types.NamespacedName) (string, any) { return "evacuation", key },
		}),
		deleted: deletions{at: map[types.UID]time.Time{}},
	}
	if err := controllercache.AddIndex(evacuations.Informer(), evacuationsByNode, indexByNode); err != nil {
		return nil, fmt.Errorf("add index: %w", err)
	}
	return c, c.watch(evacuations.Informer(), maintenances.Informer(), pods.Informer(), nodes.Informer())
}

// Run works until the context ends, and returns when the last write is done. The informers must have been started.
func (c *Controller) Run(ctx context.Context, workers int) {
	logger := klog.FromContext(ctx).WithName(Name)
	ctx = klog.NewContext(ctx, logger)
	defer c.queue.ShutDown()
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return
	}
	logger.Info("Controller starts", "workers", workers)
	c.queue.Run(ctx, workers, c.sync)
}

func (c *Controller) sync(ctx context.Context, key types.NamespacedName) error {
	s, err := c.gather(key)
	if err != nil || s == nil {
		return err
	}
	d := decide(*s)
	if !d.wake.IsZero() {
		c.queue.AddAfter(key, d.wake.Sub(s.now))
	}
	return c.act(ctx, s, d)
}

// gather reads all that the decision about an Evacuation depends on; nil if there is none.
func (c *Controller) gather(key types.NamespacedName) (*situation, error) {
	evacuation, err := c.evacuationLister.Evacuations(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &situation{now: c.clock.Now(), evacuation: evacuation, deletedAt: c.deleted.of(evacuation.Spec.PodRef.UID)}
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
	maintenances, err := c.maintenanceLister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	s.askedBy, err = drainplan.AskedBy(pod, s.node, maintenances)
	return s, err
}

// act reports, and then deletes.
func (c *Controller) act(ctx context.Context, s *situation, d decision) error {
	if d.status != nil {
		evacuation := s.evacuation.DeepCopy()
		evacuation.Status = *d.status
		_, err := c.maintenance.MaintenanceV1alpha1().Evacuations(evacuation.Namespace).UpdateStatus(ctx, evacuation, metav1.UpdateOptions{FieldManager: fieldManager})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	if !d.remove {
		return nil
	}
	if d.status == nil {
		if err := c.confirm(ctx, s.evacuation); err != nil {
			return err
		}
	}
	pod := s.pod
	// Whatever comes of it: every report is an event, and must not lead to the next attempt at once.
	c.deleted.add(pod.UID, s.now)
	c.queue.AddAfter(types.NamespacedName{Namespace: s.evacuation.Namespace, Name: s.evacuation.Name}, resendAfter)
	err := c.host.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	// A conflict tells that another pod has taken its name.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	klog.FromContext(ctx).V(2).Info("DaemonSet pod is deleted", "pod", klog.KObj(pod), "nodeMaintenance", klog.KObj(s.askedBy))
	return nil
}

// confirm returns an error unless an Evacuation still is what the cache says. Otherwise the report finds that out.
func (c *Controller) confirm(ctx context.Context, evacuation *maintenancev1alpha1.Evacuation) error {
	live, err := c.maintenance.MaintenanceV1alpha1().Evacuations(evacuation.Namespace).Get(ctx, evacuation.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the evacuation before deleting its pod: %w", err)
	}
	if err != nil || live.UID != evacuation.UID || !hasTurn(live) {
		return apierrors.NewConflict(maintenancev1alpha1.Resource("evacuations"), evacuation.Name, errors.New("the evacuation has moved on"))
	}
	return nil
}

// deletions remembers which pods were deleted, or tried to be, until their Evacuation is gone. A restart forgets it: then a pod is deleted twice,
// which does no harm.
type deletions struct {
	mu sync.Mutex
	at map[types.UID]time.Time
}

func (d *deletions) add(pod types.UID, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at[pod] = at
}

func (d *deletions) of(pod types.UID) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at[pod]
}

func (d *deletions) forget(pod types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.at, pod)
}
