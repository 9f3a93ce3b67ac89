// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/podcache"
)

// evacuationsByNode is the index of the Evacuations for which this evacuator is active, by the node
// of their pod.
const evacuationsByNode = "haulout.dev/daemonset-evacuator-by-node"

func indexByNode(obj any) ([]string, error) {
	if evacuation, ok := obj.(*v1alpha1.Evacuation); ok && hasTurn(evacuation) && evacuation.Spec.NodeName != "" {
		return []string{evacuation.Spec.NodeName}, nil
	}
	return nil, nil
}

func (c *Controller) watch() error {
	synced, err := podcache.AddHandlers(
		podcache.Handled{Informer: c.Evacuations.Informer(), Handler: podcache.HandlerOf(func(_, evacuation *v1alpha1.Evacuation) { c.evacuationChanged(evacuation) })},
		podcache.Handled{Informer: c.NodeMaintenances.Informer(), Handler: podcache.HandlerOf(c.targetsChanged)},
		podcache.Handled{Informer: c.Pods, Handler: podcache.HandlerOf(func(old, pod *corev1.Pod) {
			if pod != nil && (old == nil || drainplan.TypeOf(pod, "") == v1alpha1.PodTypeDaemonSet) {
				c.enqueueFor(pod)
			}
		})},
		podcache.Handled{Informer: c.Nodes.Informer(), Handler: podcache.HandlerOf(c.nodeChanged)},
	)
	c.synced = append(c.synced, synced)
	return err
}

func (c *Controller) nodeChanged(old, node *corev1.Node) {
	if node == nil {
		return
	}
	if old == nil || drainplan.IsTainted(node) && !drainplan.IsTainted(old) || protocol.NodeCondition(node, corev1.NodeReady).Status != protocol.NodeCondition(old, corev1.NodeReady).Status ||
		!slices.Equal(old.Status.VolumesInUse, node.Status.VolumesInUse) {
		c.enqueueNode(node.Name)
	}
}

func (c *Controller) evacuationChanged(evacuation *v1alpha1.Evacuation) {
	if evacuation != nil && hasTurn(evacuation) {
		c.queue.Add(types.NamespacedName{Namespace: evacuation.Namespace, Name: evacuation.Name})
	}
}

// targetsChanged enqueues the Evacuations on the nodes whose targets in the status of a maintenance
// have changed, or on all its nodes if it was paused or resumed.
func (c *Controller) targetsChanged(old, nm *v1alpha1.NodeMaintenance) {
	if nm == nil {
		return
	}
	var before []v1alpha1.NodeMaintenanceNodeStatus
	if old != nil && old.Spec.Stage == nm.Spec.Stage && old.Spec.Paused == nm.Spec.Paused {
		before = old.Status.NodeStatuses
	}
	for i := range nm.Status.NodeStatuses {
		status := &nm.Status.NodeStatuses[i]
		// Nodes are sorted by name and their list seldom changes, so the same index nearly always
		// has the same node.
		if i < len(before) && before[i].NodeRef == status.NodeRef && slices.EqualFunc(before[i].DrainTargets, status.DrainTargets, sameEntry) {
			continue
		}
		c.enqueueNode(status.NodeRef.Name)
	}
}

func sameEntry(a, b v1alpha1.DrainPlanEntry) bool {
	return equality.Semantic.DeepEqual(a, b)
}

// enqueueFor enqueues the Evacuation of a pod, if there is one.
func (c *Controller) enqueueFor(pod *corev1.Pod) {
	if evacuation := c.EvacuationOf(pod); evacuation != nil {
		c.evacuationChanged(evacuation)
	}
}

// enqueueNode enqueues the Evacuations on a node.
func (c *Controller) enqueueNode(node string) {
	objects, err := c.Evacuations.Informer().GetIndexer().ByIndex(evacuationsByNode, node)
	if err != nil {
		return
	}
	for _, obj := range objects {
		c.evacuationChanged(obj.(*v1alpha1.Evacuation))
	}
}
