// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/host/podcache"
)

// subscribe registers handlers that enqueue the affected rollouts.
func (c *Controller) subscribe() error {
	c.Selection.Subscribe(selection.Subscriber{Node: c.nodeChanged, Maintenance: c.maintenanceChanged})
	c.Rights.Subscribe(func(string) { c.enqueueRolling() })
	synced, err := podcache.AddHandlers(
		podcache.Handled{Informer: c.Cluster.Rollouts.Informer(), Handler: podcache.HandlerOf(c.rolloutChanged)},
		podcache.Handled{Informer: c.Cluster.NodeTasks.Informer(), Handler: podcache.HandlerOf(c.taskChanged)},
	)
	if err != nil {
		return fmt.Errorf("watch rollouts and NodeTasks: %w", err)
	}
	c.synced = append(c.synced, synced)
	return nil
}

// enqueue adds a rollout after the debounce. Adding it again does not extend its delay.
func (c *Controller) enqueue(name string) { c.queue.AddAfter(name, c.debounce()) }

// enqueueRolling adds the rollouts that may start units. A place that one of them frees may be the
// one that another waits for.
func (c *Controller) enqueueRolling() {
	c.enqueueIf(func(r *v1alpha1.NodeMaintenanceRollout) bool { return r.Spec.Stage == v1alpha1.RolloutStageRoll })
}

func (c *Controller) enqueueIf(matches func(*v1alpha1.NodeMaintenanceRollout) bool) {
	delay := c.debounce()
	for _, r := range loop.All(c.Cluster.Rollouts.Lister().List) {
		if matches(r) {
			c.queue.AddAfter(r.Name, delay)
		}
	}
}

func (c *Controller) rolloutChanged(old, r *v1alpha1.NodeMaintenanceRollout) {
	switch {
	case r == nil:
		c.queue.Add(old.Name)
		c.enqueueRolling()
	case old == nil || old.Generation != r.Generation || old.DeletionTimestamp == nil && r.DeletionTimestamp != nil:
		c.queue.Add(r.Name)
		if old != nil && old.Spec.Stage != r.Spec.Stage {
			c.enqueueRolling() // one that it contradicts may continue
		}
	case len(r.Status.Current) < len(old.Status.Current):
		c.enqueueRolling()
	}
}

func (c *Controller) nodeChanged(change selection.NodeChange) {
	if change.Old == nil || change.New == nil || !sameNode(change.Old, change.New) {
		c.changes.Add(1)
		// The periodic resync is enough for the counters of a rollout that is over.
		c.enqueueIf(func(r *v1alpha1.NodeMaintenanceRollout) bool {
			return r.Spec.Stage != v1alpha1.RolloutStageComplete || len(r.Status.Current) > 0
		})
	}
}

// sameNode reports whether two states of a node are equal in all fields on which rollouts depend.
func sameNode(a, b *corev1.Node) bool {
	_, wasExempt := a.Annotations[v1alpha1.AnnotationSkipRollouts]
	_, isExempt := b.Annotations[v1alpha1.AnnotationSkipRollouts]
	return a.UID == b.UID && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) && wasExempt == isExempt && labels.Equals(a.Labels, b.Labels) && marks.Same(a, b) && sameFacts(a, b) &&
		protocol.RunsControlPlane(a) == protocol.RunsControlPlane(b)
}

// sameFacts reports whether two states of a node are equal for an expression, except for the times
// and the messages of its conditions.
func sameFacts(a, b *corev1.Node) bool {
	same := func(x, y corev1.NodeCondition) bool {
		return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason
	}
	return slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, same) &&
		equality.Semantic.DeepEqual(a.Status.NodeInfo, b.Status.NodeInfo) &&
		equality.Semantic.DeepEqual(a.Status.Allocatable, b.Status.Allocatable) && equality.Semantic.DeepEqual(a.Spec, b.Spec)
}

func (c *Controller) maintenanceChanged(old, nm *v1alpha1.NodeMaintenance) {
	isOther := old == nil || nm == nil || v1alpha1.IsHolding(old) != v1alpha1.IsHolding(nm) || old.Generation != nm.Generation || !holds.SameLeftAlone(old, nm)
	if isOther {
		c.changes.Add(1)
	}
	if owner := protocol.RolloutOf(cmp.Or(nm, old)); owner != nil {
		c.enqueue(owner.Name)
	} else if isOther {
		c.enqueueRolling()
	}
}

// isHeartbeat reports whether a worker has written that it is alive, and nothing else. Workers do
// so for as long as they have nodes.
func isHeartbeat(old, task *v1alpha1.NodeTask) bool {
	a, b := old.Status, task.Status
	a.ProgressTime, a.ExpectedFinishTime, b.ProgressTime, b.ExpectedFinishTime = nil, nil, nil, nil
	return old.UID == task.UID && equality.Semantic.DeepEqual(a, b)
}

func (c *Controller) taskChanged(old, task *v1alpha1.NodeTask) {
	if old != nil && task != nil && isHeartbeat(old, task) {
		return
	}
	if task == nil {
		c.enqueueRolling()
	}
	if nm, err := c.Cluster.NodeMaintenances.Lister().Get(cmp.Or(task, old).Spec.Maintenance.Name); err == nil {
		if owner := protocol.RolloutOf(nm); owner != nil {
			c.enqueue(owner.Name)
		}
	}
}
