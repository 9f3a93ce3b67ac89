// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/mergepatch"
)

// patchAttempts limits the attempts to patch an object. Each attempt uses a newer version of the
// object, because the server often writes the status of a maintenance during a drain.
var patchAttempts = wait.Backoff{Steps: 5}

const (
	// pageSize limits the number of maintenances in one list response.
	pageSize = 100
	// keptMaintenances is the number of completed maintenances of earlier boots that the agent
	// keeps for users. The server keeps those of all nodes in memory.
	keptMaintenances = 3
)

// EnsureMaintenance creates or adopts the maintenance of a shutdown.
func (c *Client) EnsureMaintenance(ctx context.Context, request shutdown.MaintenanceRequest) (state.MaintenanceRef, error) {
	return ask(ctx, c, func(ctx context.Context, c *Client) (state.MaintenanceRef, error) { return c.ensure(ctx, request) })
}

func (c *Client) ensure(ctx context.Context, request shutdown.MaintenanceRequest) (state.MaintenanceRef, error) {
	want := c.build(request)
	for range 2 {
		created, err := c.maintenances.Create(ctx, want, metav1.CreateOptions{})
		if err == nil {
			klog.FromContext(ctx).Info("Created the maintenance of the shutdown", "nodeMaintenance", klog.KObj(created))
			return refOf(created), nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return state.MaintenanceRef{}, refused(fmt.Errorf("create NodeMaintenance %s: %w", want.Name, err))
		}
		old, err := c.maintenances.Get(ctx, want.Name, metav1.GetOptions{})
		if answer.ObjectGone(err) {
			continue // deleted between the two requests
		}
		if err != nil {
			return state.MaintenanceRef{}, refused(fmt.Errorf("get NodeMaintenance %s: %w", want.Name, err))
		}
		if err := c.mayAdopt(ctx, old, want); err != nil {
			return state.MaintenanceRef{}, err
		}
		if v1alpha1.IsDraining(old) {
			return refOf(old), nil
		}
		if err := c.remove(ctx, old); err != nil {
			return state.MaintenanceRef{}, err
		}
	}
	return state.MaintenanceRef{}, fmt.Errorf("NodeMaintenance %s of an earlier shutdown is being deleted, but the server has not released the node yet", want.Name)
}

func (c *Client) build(request shutdown.MaintenanceRequest) *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{
			Name:        protocol.ShutdownName(c.node, request.BootID),
			Annotations: map[string]string{v1alpha1.AnnotationBootID: request.BootID},
		},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{
					Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{c.node},
				}},
			}}},
			Stage:     v1alpha1.NodeMaintenanceStageDrain,
			DrainPlan: request.DrainPlan,
			Reason:    request.Reason,
		},
	}
}

// mayAdopt returns an error if another user, or this agent for another boot, created an existing
// maintenance.
func (c *Client) mayAdopt(ctx context.Context, old, want *v1alpha1.NodeMaintenance) error {
	inTheWay := func(format string, args ...any) error {
		return fmt.Errorf("%w: NodeMaintenance %s exists, and %s; delete it", shutdown.ErrRefused, old.Name, fmt.Sprintf(format, args...))
	}
	boot := want.Annotations[v1alpha1.AnnotationBootID]
	if got := old.Annotations[v1alpha1.AnnotationBootID]; got != boot {
		return inTheWay("its annotation %s is %q and not %q", v1alpha1.AnnotationBootID, got, boot)
	}
	if !apiequality.Semantic.DeepEqual(old.Spec.NodeSelector, want.Spec.NodeSelector) {
		return inTheWay("it does not select exactly node %s by name", c.node)
	}
	if v1alpha1.IsDraining(old) {
		return nil // no matter which user set the stage
	}
	if !v1alpha1.IsEnding(old) {
		return inTheWay("its stage is %s and not Drain", old.Spec.Stage)
	}
	own, err := c.requestedBySelf(ctx, old)
	if err == nil && !own {
		err = inTheWay("user %s has completed it", requester(old))
	}
	return err
}

// remove deletes the completed maintenance of an earlier shutdown.
func (c *Client) remove(ctx context.Context, nm *v1alpha1.NodeMaintenance) error {
	if nm.DeletionTimestamp != nil {
		return nil
	}
	err := c.maintenances.Delete(ctx, nm.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(nm.UID))})
	if err != nil && !answer.ObjectGone(err) {
		return refused(fmt.Errorf("delete NodeMaintenance %s of an earlier shutdown: %w", nm.Name, err))
	}
	return nil
}

func refOf(nm *v1alpha1.NodeMaintenance) state.MaintenanceRef {
	return state.MaintenanceRef{Name: nm.Name, UID: nm.UID}
}

func requester(nm *v1alpha1.NodeMaintenance) string {
	if nm.Spec.RequestedBy == nil {
		return ""
	}
	return nm.Spec.RequestedBy.Username
}

// requestedBySelf reports whether this agent made the last change of the stage or the nodes of a
// maintenance.
func (c *Client) requestedBySelf(ctx context.Context, nm *v1alpha1.NodeMaintenance) (bool, error) {
	user, err := c.ownUser(ctx)
	return user != "" && requester(nm) == user, err
}

// Drain returns the progress of the node's drain. It returns an error if no leader acts on the
// maintenance.
func (c *Client) Drain(ctx context.Context, ref state.MaintenanceRef) (shutdown.DrainState, error) {
	return ask(ctx, c, func(ctx context.Context, c *Client) (shutdown.DrainState, error) { return c.drain(ctx, ref) })
}

func (c *Client) drain(ctx context.Context, ref state.MaintenanceRef) (shutdown.DrainState, error) {
	ctx, warned := withWarning(ctx)
	nm, err := c.maintenances.Get(ctx, ref.Name, metav1.GetOptions{})
	if answer.ObjectGone(err) {
		return shutdown.DrainState{Ended: true}, nil
	}
	if err != nil {
		return shutdown.DrainState{}, refused(fmt.Errorf("get NodeMaintenance %s: %w", ref.Name, err))
	}
	if ref.UID != "" && nm.UID != ref.UID || !v1alpha1.IsDraining(nm) {
		return shutdown.DrainState{Ended: true}, nil
	}
	var drain shutdown.DrainState
	condition := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
	if condition == nil || condition.ObservedGeneration < nm.Generation {
		return shutdown.DrainState{}, errors.Join(fmt.Errorf("NodeMaintenance %s has no status yet", ref.Name), warned.noLeader())
	}
	if condition.Reason == v1alpha1.ReasonNotAuthorized {
		return shutdown.DrainState{}, fmt.Errorf("%w: NodeMaintenance %s: %s", shutdown.ErrRefused, ref.Name, condition.Message)
	}
	drain.Drained = condition.Status == metav1.ConditionTrue
	drain.Message = condition.Message
	if condition.Reason == v1alpha1.ReasonNoNodes {
		_, err := c.host.CoreV1().Nodes().Get(ctx, c.node, metav1.GetOptions{})
		if err != nil && !answer.ObjectGone(err) {
			return shutdown.DrainState{}, fmt.Errorf("get Node %s: %w", c.node, err)
		}
		drain.NodeGone = err != nil
		drain.Drained = drain.NodeGone
	}
	if err := warned.noLeader(); err != nil && !drain.Drained {
		return shutdown.DrainState{}, fmt.Errorf("NodeMaintenance %s: %w", ref.Name, err)
	}
	for i := range nm.Status.NodeStatuses {
		if node := &nm.Status.NodeStatuses[i]; node.NodeRef.Name == c.node {
			drain.PodsLeft = int(node.PodsPendingEvacuation + node.PodsEvacuating)
			drain.PodsKept = int(node.PodsKept)
			if node.DrainMessage != "" {
				drain.Message = node.DrainMessage
			}
		}
	}
	return drain, nil
}

// Complete ends the maintenance of a cancelled shutdown.
func (c *Client) Complete(ctx context.Context, ref state.MaintenanceRef) error {
	return retry.RetryOnConflict(patchAttempts, func() error {
		nm, err := c.maintenances.Get(ctx, ref.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil // even if Haulout was uninstalled
		}
		if err != nil {
			return fmt.Errorf("get NodeMaintenance %s: %w", ref.Name, err)
		}
		if ref.UID != "" && nm.UID != ref.UID {
			return nil
		}
		own := c.isOfShutdown(nm)
		if own {
			if own, err = c.requestedBySelf(ctx, nm); err != nil {
				return err
			}
		}
		if !own {
			klog.FromContext(ctx).Info("Not completing a maintenance that another user has changed", "nodeMaintenance", klog.KObj(nm), "requestedBy", requester(nm))
			return nil
		}
		return c.complete(ctx, nm)
	})
}

// complete moves one maintenance to stage Complete if it is unchanged since it was read.
func (c *Client) complete(ctx context.Context, nm *v1alpha1.NodeMaintenance) error {
	if v1alpha1.IsEnding(nm) {
		return nil
	}
	spec := map[string]any{"stage": v1alpha1.NodeMaintenanceStageComplete}
	_, err := mergepatch.IfUnchanged(ctx, c.maintenances.Patch, nm, nil, map[string]any{"spec": spec}, metav1.PatchOptions{})
	if err != nil && !answer.ObjectGone(err) {
		return fmt.Errorf("complete NodeMaintenance %s: %w", nm.Name, err)
	}
	klog.FromContext(ctx).Info("Completed the maintenance of a shutdown", "nodeMaintenance", klog.KObj(nm))
	return nil
}

func (c *Client) isOfShutdown(nm *v1alpha1.NodeMaintenance) bool {
	boot := nm.Annotations[v1alpha1.AnnotationBootID]
	return boot != "" && nm.Name == protocol.ShutdownName(c.node, boot)
}

// CompleteOlder completes the maintenances of earlier boots.
func (c *Client) CompleteOlder(ctx context.Context, bootID string) (completed int, err error) {
	older, errs := c.listOlder(ctx, bootID)
	for _, nm := range older {
		if v1alpha1.IsEnding(nm) {
			continue
		}
		own, err := c.requestedBySelf(ctx, nm)
		if err == nil && own {
			err = c.Complete(ctx, refOf(nm))
		}
		switch {
		case err != nil:
			errs = append(errs, err)
		case own:
			completed++
		}
	}
	return completed, errors.Join(errs...)
}

// DeleteOldest deletes the oldest completed maintenances of earlier boots, including the
// maintenances that another user completed: each reboot creates one, and their number on a node is
// limited.
func (c *Client) DeleteOldest(ctx context.Context, bootID string) error {
	older, errs := c.listOlder(ctx, bootID)
	older = slices.DeleteFunc(older, func(nm *v1alpha1.NodeMaintenance) bool { return !v1alpha1.IsEnding(nm) })
	slices.SortFunc(older, func(a, b *v1alpha1.NodeMaintenance) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(b.Name, a.Name))
	})
	for _, nm := range older[min(keptMaintenances, len(older)):] {
		// A node may not delete an object that another user has changed. Retrying would not help.
		if err := c.remove(ctx, nm); err != nil && !apierrors.IsForbidden(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// listOlder returns the maintenances of earlier shutdowns of this node, even if another user has
// changed them since, and the errors that occurred.
func (c *Client) listOlder(ctx context.Context, bootID string) (older []*v1alpha1.NodeMaintenance, errs []error) {
	options := metav1.ListOptions{Limit: pageSize, FieldSelector: fields.OneTermEqualSelector(maintenance.FieldNodeOfShutdown, c.node).String()}
	for {
		page, err := c.maintenances.List(ctx, options)
		if apierrors.IsBadRequest(err) && options.FieldSelector != "" {
			// An older server does not support the field selector.
			options = metav1.ListOptions{Limit: pageSize}
			continue
		}
		if err != nil {
			return older, append(errs, fmt.Errorf("list NodeMaintenances: %w", err))
		}
		for i := range page.Items {
			nm := &page.Items[i]
			if nm.Annotations[v1alpha1.AnnotationBootID] != bootID && c.isOfShutdown(nm) {
				older = append(older, nm.DeepCopy()) // a copy, so that the page can be freed
			}
		}
		if page.Continue == "" {
			return older, errs
		}
		options.Continue = page.Continue
	}
}
