// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/nodeselector"
	"haulout.dev/haulout/pkg/host/podcache"
)

// Subscriber has functions that are called after the selection has processed a change. They must
// not block, and may be nil. old is nil for a new object, the new state is nil for a deleted
// object.
type Subscriber struct {
	// Node is called for each event of a node.
	Node func(NodeChange)
	// Maintenance is called for each event of a maintenance. During the call, a deleted maintenance
	// still selects its nodes.
	Maintenance func(old, nm *v1alpha1.NodeMaintenance)
	// Released is called with the name of each node that has lingered and is no longer selected.
	Released func(node string)
}

// NodeChange is an event of a node.
type NodeChange struct {
	Old, New *corev1.Node
	// Concerned are the maintenances that selected or ignored the node before or do so now, sorted.
	Concerned []string
	// Lingering are the maintenances whose selectors no longer match since this event. The node
	// stays selected for the time Lingering.
	Lingering []string
}

// New creates the index and registers its handlers; the informers must not run yet.
func New(nodes, maintenances cache.SharedIndexInformer, clock clock.PassiveClock) (*Selection, error) {
	s := newSelection(clock)
	var err error
	s.HasSynced, err = podcache.AddHandlers(
		podcache.Handled{Informer: maintenances, Handler: podcache.HandlerOf(s.maintenanceChanged)},
		podcache.Handled{Informer: nodes, Handler: podcache.HandlerOf(s.nodeChanged)},
	)
	if err != nil {
		return nil, fmt.Errorf("watch nodes and NodeMaintenances: %w", err)
	}
	return s, nil
}

func newSelection(clock clock.PassiveClock) *Selection {
	return &Selection{
		clock:        clock,
		match:        (*nodeselector.Selector).Match,
		nodes:        map[string]*corev1.Node{},
		maintenances: map[string]*selected{},
		byNode:       map[string]sets.Set[string]{},
		invalid:      map[string]error{},
	}
}

// Subscribe adds a subscriber, which is called after the previous ones. The informers must not run
// yet.
func (s *Selection) Subscribe(subscriber Subscriber) {
	s.subscribers = append(s.subscribers, subscriber)
}

func (s *Selection) maintenanceChanged(old, nm *v1alpha1.NodeMaintenance) {
	if nm != nil {
		if err := s.SetMaintenance(nm); err != nil {
			utilruntime.HandleError(fmt.Errorf("maintenance %s: %w", nm.Name, err))
		}
	}
	for _, subscriber := range s.subscribers {
		if subscriber.Maintenance != nil {
			subscriber.Maintenance(old, nm)
		}
	}
	if nm == nil {
		s.removeMaintenance(old.Name)
	}
}

func (s *Selection) nodeChanged(old, node *corev1.Node) {
	change := NodeChange{Old: old, New: node}
	switch {
	case node == nil:
		change.Concerned = s.removeNode(old.Name)
	case old != nil && old.UID == node.UID && labels.Equals(old.Labels, node.Labels):
		// The selection does not change, but a later write of the node needs the latest
		// resourceVersion.
		s.refreshNode(node)
		change.Concerned = s.MaintenancesOn(node.Name)
	default:
		change.Concerned, change.Lingering = s.SetNode(node)
	}
	for _, subscriber := range s.subscribers {
		if subscriber.Node != nil {
			subscriber.Node(change)
		}
	}
}

// ReleaseExpired releases the nodes of a maintenance that have lingered for long enough. It returns
// the time until the next one expires, 0 if no node lingers.
func (s *Selection) ReleaseExpired(maintenance string) time.Duration {
	gone, next := s.expire(maintenance)
	for _, node := range gone {
		for _, subscriber := range s.subscribers {
			if subscriber.Released != nil {
				subscriber.Released(node)
			}
		}
	}
	return next
}

// TooLarge returns an error if the status of a maintenance that holds nodes would be too large with
// all nodes that it selects. Such a maintenance takes no further nodes. Admission checks only the
// nodes that exist at that time. Further nodes may have been added since.
func (s *Selection) TooLarge(nm *v1alpha1.NodeMaintenance) error {
	if !v1alpha1.IsHolding(nm) {
		return nil
	}
	nodes := s.Count(nm.Name)
	bytes := size.StatusBytes(nm.Spec.DrainPlan, nodes) + size.PoolsBytes(nm.Status.Pools, nodes) + size.TaskBytes(nm.Spec.Task, nodes)
	if bytes > size.MaxStatusBytes {
		return fmt.Errorf("the status of %d nodes with this drain plan would take %d KiB, at most %d KiB can be stored: "+
			"select fewer nodes or use fewer pod selectors; the maintenance takes no further nodes", nodes, bytes>>10, size.MaxStatusBytes>>10)
	}
	return nil
}
