// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/host/eventref"
	"haulout.dev/haulout/pkg/mergepatch"
)

// actionWork is the action of all events of this controller.
const actionWork = "Work"

// Sync takes the next step for a node.
func (c *Controller) Sync(ctx context.Context, name string) error {
	f, err := c.gather(ctx, name)
	if err != nil {
		return err
	}
	d := decide(f)
	if d.step == stepLook {
		if f.refusal, err = c.look(ctx, f); err != nil {
			return err
		}
		f.isLive = true
		d = decide(f)
	}
	if d.wake > 0 {
		c.queue.AddAfter(name, d.wake)
	}
	return c.act(ctx, f, d)
}

func (c *Controller) act(ctx context.Context, f *facts, d decision) error {
	var err error
	switch d.step {
	case stepOffer:
		err = c.offer(ctx, f.node, d.maintenance)
	case stepWrite:
		err = c.write(ctx, f.task, d.status)
	case stepDelete:
		err = c.remove(ctx, f.task)
	case stepRelease:
		err = c.release(ctx, f.owner)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	if d.result != "" {
		taskResults.WithLabelValues(d.result).Inc()
	}
	c.announce(f, d)
	return nil
}

// offer creates the NodeTask of a node.
func (c *Controller) offer(ctx context.Context, node *corev1.Node, nm *v1alpha1.NodeMaintenance) error {
	task := &v1alpha1.NodeTask{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name},
		Spec: v1alpha1.NodeTaskSpec{
			NodeUID: node.UID, Maintenance: v1alpha1.NodeTaskMaintenance{Name: nm.Name, UID: nm.UID},
			Worker: nm.Spec.Task.Worker, Parameters: nm.Spec.Task.Parameters, Reason: nm.Spec.Reason, Before: protocol.VersionsOf(node),
			ClaimDeadlineSeconds:    ptr.Deref(nm.Spec.Task.ClaimDeadlineSeconds, 1800),
			ProgressDeadlineSeconds: ptr.Deref(nm.Spec.Task.ProgressDeadlineSeconds, 1800),
			VerifyDeadlineSeconds:   ptr.Deref(nm.Spec.Task.VerifyDeadlineSeconds, 900),
		},
	}
	stored, err := c.Cluster.Maintenance.MaintenanceV1alpha1().NodeTasks().Create(ctx, task, metav1.CreateOptions{FieldManager: fieldManager})
	if apierrors.IsAlreadyExists(err) {
		return apierrors.NewConflict(v1alpha1.Resource("nodetasks"), node.Name, err) // the cache does not have it yet
	}
	if err != nil {
		return fmt.Errorf("offer node %s to workers: %w", node.Name, err)
	}
	c.State.Tasks.Wrote(stored)
	c.heard.Set(node.Name, heard{uid: stored.UID, state: stored.Status.StateTime, at: c.Clock.Now(), entered: c.Clock.Now()})
	return nil
}

// write writes the status of a NodeTask, unless the NodeTask has changed since the decision.
func (c *Controller) write(ctx context.Context, task *v1alpha1.NodeTask, status v1alpha1.NodeTaskStatus) error {
	next := *task
	next.Status = status
	stored, err := c.Cluster.Maintenance.MaintenanceV1alpha1().NodeTasks().UpdateStatus(ctx, &next, metav1.UpdateOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("write the state of the task: %w", err)
	}
	c.State.Tasks.Wrote(stored)
	return nil
}

// remove deletes a NodeTask, unless it has changed since the decision: a worker may have claimed
// it.
func (c *Controller) remove(ctx context.Context, task *v1alpha1.NodeTask) error {
	err := c.Cluster.Maintenance.MaintenanceV1alpha1().NodeTasks().Delete(ctx, task.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &task.UID, ResourceVersion: &task.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the task: %w", err)
	}
	return nil
}

// release completes a maintenance because no worker has claimed one of its nodes.
func (c *Controller) release(ctx context.Context, nm *v1alpha1.NodeMaintenance) error {
	metadata := map[string]any{"annotations": map[string]any{v1alpha1.AnnotationWithdrawn: v1alpha1.NodeTaskNoWorker}}
	spec := map[string]any{"stage": v1alpha1.NodeMaintenanceStageComplete}
	_, err := mergepatch.IfUnchanged(ctx, c.Cluster.Maintenance.MaintenanceV1alpha1().NodeMaintenances().Patch, nm, metadata,
		map[string]any{"spec": spec}, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return loop.IgnoreNotFound(fmt.Errorf("complete the maintenance, whose node no worker has claimed: %w", err))
	}
	return nil
}

// announce records the event about a step, about the node and with its maintenance.
func (c *Controller) announce(f *facts, d decision) {
	if d.event.reason == "" {
		return
	}
	var node, nm corev1.ObjectReference
	switch {
	case f.task != nil:
		node = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: f.task.Name, UID: f.task.Spec.NodeUID}
		nm = *eventref.NodeMaintenance(&v1alpha1.NodeMaintenance{
			// Without a version, an event about a later attempt would only raise the count of this
			// one.
			ObjectMeta: metav1.ObjectMeta{Name: f.task.Spec.Maintenance.Name, UID: f.task.Spec.Maintenance.UID, ResourceVersion: f.task.ResourceVersion},
		})
	default:
		node, nm = *eventref.Node(f.node), *eventref.NodeMaintenance(d.maintenance)
	}
	c.Cluster.Recorder.Eventf(&node, &nm, d.event.eventType, d.event.reason, actionWork, "%s", eventref.Note("%s", d.event.note))
}
