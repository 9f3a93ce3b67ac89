// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/mergepatch"
)

// write updates the cordon, the taints and their annotations to the state that decide returns, and
// reports whether it wrote anything.
func (c *Controller) write(ctx context.Context, f facts) (bool, error) {
	if f.makesSchedulable != nil && len(f.holders) == 0 {
		if allowed, err := c.mayMakeSchedulable(ctx, f); !allowed || err != nil {
			f.makesSchedulable = nil
			if err != nil {
				return false, err
			}
		}
	}
	change := decide(f)
	if c.isProtectionRefused(f) {
		change = change.withoutProtection()
	}
	if change.empty() {
		c.noteMadeSchedulable(f)
		return false, nil
	}
	if wait := c.backOff(f.node, change); wait > 0 {
		c.queue.AddAfter(f.node.Name, wait)
		return false, nil
	}
	if err := c.confirm(ctx, f, change); err != nil {
		return false, err
	}
	var who string
	if change.cordonRestored && c.state.Cordons.IsFight(f.node) {
		who = c.uncordoner(ctx, f.node) // before our write makes us the field manager again
	}
	written, err := c.apply(ctx, f, change)
	if err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("%s node %s: %w", verbOf(change), f.node.Name, err)
	}
	c.noteMadeSchedulable(f)
	if written.empty() {
		return false, nil
	}
	c.announce(ctx, f, written, who)
	return true, nil
}

// verbOf returns the most important action of a change, for an error message.
func verbOf(change nodeChange) string {
	switch {
	case change.unschedulable != nil && *change.unschedulable:
		return "cordon"
	case change.unschedulable != nil:
		return "uncordon"
	case change.setTaints:
		return "change the taints of"
	}
	return "change the annotations of"
}

// backOff returns how long to wait before a cordon or taint that another client keeps removing is
// restored.
func (c *Controller) backOff(node *corev1.Node, change nodeChange) time.Duration {
	var wait time.Duration
	if change.cordonRestored {
		wait = c.state.Cordons.BackOff(node)
	}
	if change.taintRestored {
		wait = max(wait, c.state.Taints.BackOff(node))
	}
	return wait
}

// confirm checks with live reads, before a node is cordoned or tainted, that its maintenances have
// not changed. Without it, a stale cache or a leader that does not know of its replacement could
// cordon a node for a maintenance that has ended.
func (c *Controller) confirm(ctx context.Context, f facts, change nodeChange) error {
	marks := change.setCordon && len(change.cordon) > 0 || change.setTaint && len(change.taint) > 0
	if !marks && (change.unschedulable == nil || !*change.unschedulable) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(f.holders)) {
		nm, err := c.maintenanceLister.Get(name)
		if apierrors.IsNotFound(err) || err == nil && nm.UID != f.holders[name] {
			continue // gather has confirmed by a live read that this maintenance has ended
		}
		if err != nil {
			return err
		}
		now := c.clock.Now()
		c.holding.Sweep(func(h heldGeneration) bool { return now.Sub(h.at) >= confirmationAge })
		if known, is := c.holding.Get(nm.UID); is && known.generation == nm.Generation {
			continue
		}
		if err := c.confirmHolding(ctx, f, nm); err != nil {
			return err
		}
		c.holding.Set(nm.UID, heldGeneration{generation: nm.Generation, at: now})
	}
	return nil
}

// confirmHolding returns a conflict unless the live maintenance has the cached generation and holds
// the node.
func (c *Controller) confirmHolding(ctx context.Context, f facts, nm *v1alpha1.NodeMaintenance) error {
	live, err := c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, nm.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the maintenance before writing to its nodes: %w", err)
	}
	if err != nil || live.UID != nm.UID || live.Generation != nm.Generation || !f.isHolding(live) {
		return apierrors.NewConflict(v1alpha1.Resource("nodemaintenances"), nm.Name, errors.New("the maintenance has changed"))
	}
	return nil
}

// mayMakeSchedulable reports whether the requester of a maintenance may remove the cordon of
// another client from a node. The server may remove its own cordon without this right.
func (c *Controller) mayMakeSchedulable(ctx context.Context, f facts) (bool, error) {
	nm := f.makesSchedulable
	answer := c.rights.Ask(ctx, nm.Spec.RequestedBy, []*corev1.Node{f.node})[f.node.Name]
	if answer.Err != nil {
		return false, ignoreAsking(fmt.Errorf("ask whether user %q may maintain node %s: %w", v1alpha1.RequesterOf(nm), f.node.Name, answer.Err))
	}
	if !answer.Allowed && f.node.Spec.Unschedulable {
		c.nodeEvent(f.node, nm, corev1.EventTypeWarning, EventNotAuthorized, actionUncordon,
			"Not made schedulable by NodeMaintenance %s: its requester may not maintain the node", nm.Name)
	}
	if !answer.Allowed {
		c.noteMadeSchedulable(f)
	}
	return answer.Allowed, nil
}

// noteMadeSchedulable records that a maintenance which only uncordons has uncordoned a node.
func (c *Controller) noteMadeSchedulable(f facts) {
	if f.makesSchedulable != nil {
		c.state.NoteLifted(f.node, f.makesSchedulable.UID)
	}
}

// apply writes a change to a node, and returns what it has written. The write fails with a conflict
// if the node has changed since the decision. If the annotations for autoscalers are refused, it
// writes the rest: the policies of the cluster may be older than the server, and a node must be
// cordoned and released nevertheless. A webhook may refuse with any status code.
func (c *Controller) apply(ctx context.Context, f facts, change nodeChange) (nodeChange, error) {
	err := c.patch(ctx, f.node, change)
	isRefused := apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || err != nil && eviction.IsDenial(err.Error())
	if !change.changesProtection() || !isRefused {
		return change, err
	}
	refusal, rest := err, change.withoutProtection()
	if !rest.empty() {
		if err := c.patch(ctx, f.node, rest); err != nil {
			return rest, err
		}
	}
	c.protectionRefused(f, change, refusal)
	return rest, nil
}

func (c *Controller) patch(ctx context.Context, node *corev1.Node, change nodeChange) error {
	annotations, spec := fieldsOf(c.storage, change)
	stored, err := mergepatch.IfUnchanged(ctx, c.host.CoreV1().Nodes().Patch, node, map[string]any{"annotations": annotations},
		map[string]any{"spec": spec}, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return err
	}
	return c.remember(stored)
}

// fieldsOf returns what a change patches. storage is the ID of our storage.
func fieldsOf(storage string, change nodeChange) (annotations, spec map[string]any) {
	annotations, spec = map[string]any{}, map[string]any{}
	if change.setCordon {
		annotations[v1alpha1.AnnotationCordonedBy] = marks.Mark{Storage: storage, Maintenances: change.cordon}.Encode()
	}
	if change.takesOver {
		annotations[v1alpha1.AnnotationCordonedByAgent] = nil
	}
	if change.setTaint {
		annotations[v1alpha1.AnnotationTaintedBy] = marks.Mark{
			Storage: storage, Maintenances: change.taint, Taints: change.added, OwnPods: change.ownPods,
		}.Encode()
	}
	if change.setProtections {
		annotations[v1alpha1.AnnotationProtectedBy] = marks.Protection{Storage: storage, Annotations: change.protections}.Encode()
	}
	for _, key := range change.protect {
		annotations[key] = protected
	}
	for _, key := range change.unprotect {
		annotations[key] = nil
	}
	if change.unschedulable != nil {
		spec["unschedulable"] = *change.unschedulable
	}
	if change.setTaints {
		spec["taints"] = change.taints
	}
	return annotations, spec
}

// remember keeps a written node until the informer delivers it.
func (c *Controller) remember(stored *corev1.Node) error {
	if _, err := podcache.Strip(stored); err != nil {
		return err
	}
	c.state.Nodes.Wrote(stored)
	return nil
}

// announce sends the events about a change that was written.
func (c *Controller) announce(ctx context.Context, f facts, change nodeChange, who string) {
	nm := subjectOf(f, change)
	if nm == nil {
		return
	}
	switch {
	case change.cordonRestored:
		c.cordonRestored(ctx, f.node, nm, who)
	case change.unschedulable != nil && *change.unschedulable:
		c.nodeEvent(f.node, nm, corev1.EventTypeNormal, EventCordoned, actionCordon, "Made unschedulable by NodeMaintenance %s", nm.Name)
	case change.unschedulable != nil:
		c.nodeEvent(f.node, nm, corev1.EventTypeNormal, EventUncordoned, actionUncordon, "Made schedulable again by NodeMaintenance %s", nm.Name)
	}
	if change.taintRestored {
		c.state.Taints.Restored(f.node)
		c.nodeEvent(f.node, nm, corev1.EventTypeWarning, EventTaintRestored, actionTaint,
			"A taint of NodeMaintenance %s was removed while the maintenance holds the node; the taint was added again", nm.Name)
	}
}

// subjectOf returns the related object of an event about a change: the first maintenance by name
// that holds the node, else the first that has released it, else nil.
func subjectOf(f facts, change nodeChange) *v1alpha1.NodeMaintenance {
	if change.unschedulable != nil && !*change.unschedulable && f.makesSchedulable != nil {
		return f.makesSchedulable
	}
	all := f.holders
	if len(all) == 0 {
		all = f.released()
	}
	if len(all) == 0 {
		return nil
	}
	first := slices.Min(slices.Collect(maps.Keys(all)))
	return &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: first, UID: all[first]}}
}

// cordonRestored sends an event that another client removed our cordon. who is the field manager of
// that client if it does so repeatedly, otherwise "".
func (c *Controller) cordonRestored(ctx context.Context, node *corev1.Node, nm *v1alpha1.NodeMaintenance, who string) {
	c.state.Cordons.Restored(node)
	cordonsRestored.Inc()
	if who == "" {
		c.nodeEvent(node, nm, corev1.EventTypeNormal, EventCordonRestored, actionCordon,
			"The node was made schedulable while NodeMaintenance %s holds it; it was made unschedulable again", nm.Name)
		return
	}
	cordonFights.Inc()
	klog.FromContext(ctx).Info("A node is made schedulable repeatedly", "node", klog.KObj(node), "fieldManager", who)
	c.nodeEvent(node, nm, corev1.EventTypeWarning, EventCordonFight, actionCordon,
		"%s keeps uncordoning the node while NodeMaintenance %s holds it; Haulout waits longer before each new cordon", who, nm.Name)
}

// unknownWriter replaces the name of a client that is not in the managed fields of the node.
const unknownWriter = "An unknown writer"

// uncordoner returns which client has made a node schedulable. It reads the node live, since the
// cache drops managed fields.
func (c *Controller) uncordoner(ctx context.Context, node *corev1.Node) string {
	live, err := c.host.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return unknownWriter
	}
	return guessUncordoner(live.ManagedFields)
}

// guessUncordoner guesses from the managed fields of a node which client made it schedulable. After
// a server-side apply, the manager owns spec.unschedulable. Any other write omits the field, since
// false is its zero value, so no manager owns it: then the client is probably the most recent
// writer after us. kube-controller-manager is skipped: it writes after each cordon or uncordon, to
// add or remove the taint of the cordon.
func guessUncordoner(fields []metav1.ManagedFieldsEntry) string {
	var ours time.Time
	for i := range fields {
		if entry := &fields[i]; entry.Manager == fieldManager && entry.Subresource == "" && entry.Time != nil {
			ours = entry.Time.Time
		}
	}
	var last *metav1.ManagedFieldsEntry
	for i := range fields {
		entry := &fields[i]
		if entry.Manager == fieldManager || entry.Subresource != "" || entry.Time == nil {
			continue
		}
		if entry.FieldsV1 != nil && strings.Contains(string(entry.FieldsV1.GetRawBytes()), `"f:unschedulable"`) {
			return "Field manager " + entry.Manager
		}
		if entry.Manager != "kube-controller-manager" && !entry.Time.Time.Before(ours) && (last == nil || last.Time.Before(entry.Time)) {
			last = entry
		}
	}
	if last != nil {
		return "Probably field manager " + last.Manager
	}
	return unknownWriter
}
