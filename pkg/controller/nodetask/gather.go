// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/holds"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/rollout/nodeexpr"
)

// gather reads the inputs of the decision about a node from the caches, and asks the authorizer.
func (c *Controller) gather(ctx context.Context, name string) (*facts, error) {
	now := c.Clock.Now()
	f := &facts{now: now, served: now.Sub(c.started), task: c.State.TaskOn(name), volumes: c.State.VolumesOn(name)}
	last := c.hear(name, f.task, now)
	f.heard, f.entered = last.at, last.entered
	if node, exists := c.State.Nodes.Get(name); exists {
		f.node = node
		f.doneWhen = func(expression string, before v1alpha1.NodeVersions) (bool, error) {
			program, err := nodeexpr.Compile(expression)
			if err != nil {
				return false, err
			}
			return program.Eval(nodeexpr.Of(node), before)
		}
	}
	f.holding = c.holders.Which(name, v1alpha1.IsHolding)
	f.assigns = map[types.UID]rights.Answer{}
	for _, nm := range f.holding {
		if nm.Spec.Task != nil && f.node != nil {
			f.assigns[nm.UID] = c.Rights.AskWorker(ctx, nm.Spec.RequestedBy, nm.Spec.Task.Worker, []*corev1.Node{f.node})
		}
	}
	if f.task == nil {
		return f, nil
	}
	owner, err := c.Cluster.NodeMaintenances.Lister().Get(f.task.Spec.Maintenance.Name)
	switch {
	case apierrors.IsNotFound(err):
		return f, nil
	case err != nil:
		return nil, err
	case owner.UID == f.task.Spec.Maintenance.UID:
		f.tasks = func() map[string]*v1alpha1.NodeTask { return c.State.TasksOf(owner.UID) }
		f.owner, f.selected = owner, slices.Contains(c.Selection.MaintenancesOn(name), owner.Name)
	}
	return f, nil
}

// look reads the node of a claim, its maintenance and its pods live. It returns the reason why the
// claim must not be granted, "" if there is none. Since the offer, the caches may have missed that
// a pod was bound to the node or that the node was made schedulable.
func (c *Controller) look(ctx context.Context, f *facts) (refusal string, err error) {
	nm, err := c.Cluster.Maintenance.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, f.owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && (nm.UID != f.owner.UID || !v1alpha1.IsHolding(nm)):
		return fmt.Sprintf("NodeMaintenance %s has ended", f.owner.Name), nil
	case err != nil:
		return "", fmt.Errorf("read the maintenance before a claim is granted: %w", err)
	case holds.IsDone(nm, f.node):
		// This leader has offered the node because its cache was older.
		return fmt.Sprintf("NodeMaintenance %s has recorded that the work on it is done", f.owner.Name), nil
	case nm.Generation != f.owner.Generation:
		return "", apierrors.NewConflict(v1alpha1.Resource("nodemaintenances"), nm.Name, errors.New("the maintenance has changed"))
	}
	node, err := c.Cluster.Client.CoreV1().Nodes().Get(ctx, f.node.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && node.UID != f.node.UID:
		return "the node is gone", nil
	case err != nil:
		return "", fmt.Errorf("read the node before a claim is granted: %w", err)
	case !node.Spec.Unschedulable:
		return "the node was made schedulable", nil
	case nm.Spec.Stage != v1alpha1.NodeMaintenanceStageDrain:
		return "", nil // its pods stay
	}
	plan, err := drainplan.CompileTargets(nm.Spec.DrainPlan)
	if err != nil {
		return "", fmt.Errorf("drain plan of %s: %w", nm.Name, err)
	}
	rules, err := holds.RulesOf(nm)
	if err != nil {
		return "", err
	}
	pods, err := c.State.LivePods(ctx, node)
	if err != nil {
		return "", err
	}
	if i := slices.IndexFunc(pods, func(pod nodestate.Pod) bool { return plan.Cover(pod.Plan) && !rules.Skips(pod.Plan) }); i >= 0 {
		return fmt.Sprintf("pod %s/%s is on the node again", pods[i].Namespace, pods[i].Name), nil
	}
	return "", nil
}
