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

package nodemaintenance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	controllercache "haulout.dev/haulout/pkg/host/cache"
)

// write brings the cordon, the taints and their annotations to what was decided, and reports
// whether it wrote anything.
func (k *nodeReconciler) write(ctx context.Context, f nodeFacts) (bool, error) {
	if f.makesSchedulable != nil && len(f.holders) == 0 {
		if allowed, err := k.mayMakeSchedulable(ctx, f); !allowed || err != nil {
			f.makesSchedulable = nil
			if err != nil {
				return false, err
			}
		}
	}
	change := decideNode(f)
	if change.empty() {
		k.noteMadeSchedulable(f)
		return false, nil
	}
	if wait := k.backOff(f.node, change); wait > 0 {
		k.queue.AddAfter(f.node.Name, wait)
		return false, nil
	}
	if err := k.confirm(ctx, f, change); err != nil {
		return false, err
	}
	var who string
	if change.cordonRestored && k.c.cordons.isFight(f.node) {
		who = k.c.meddler(ctx, f.node) // once we have written, the field is ours again
	}
	if err := k.apply(ctx, f.node, change); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("%s node %s: %w", verbOf(change), f.node.Name, err)
	}
	k.noteMadeSchedulable(f)
	k.announce(ctx, f, change, who)
	return true, nil
}

// verbOf names what a change does first of all.
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

// backOff returns how long to leave a cordon or a taint alone that someone else keeps undoing.
func (k *nodeReconciler) backOff(node *corev1.Node, change nodeChange) time.Duration {
	var wait time.Duration
	if change.cordonRestored {
		wait = k.c.cordons.backOff(node)
	}
	if change.taintRestored {
		wait = max(wait, k.c.taints.backOff(node))
	}
	return wait
}

// confirm reads live, before a node is marked for a maintenance, that the maintenance still is what
// the cache says: after it has ended, or for a leader that has been replaced and does not know it,
// no cordon may be set.
func (k *nodeReconciler) confirm(ctx context.Context, f nodeFacts, change nodeChange) error {
	marks := change.setCordon && len(change.cordon) > 0 || change.setTaint && len(change.taint) > 0
	if !marks && (change.unschedulable == nil || !*change.unschedulable) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(f.holders)) {
		nm, err := k.c.get(name)
		if apierrors.IsNotFound(err) || err == nil && nm.UID != f.holders[name] {
			continue // read live when its end was looked for
		}
		if err != nil {
			return err
		}
		k.mu.Lock()
		known := k.holding[nm.UID]
		k.mu.Unlock()
		now := k.c.clock.Now()
		if known.generation == nm.Generation && now.Sub(known.at) < confirmationAge {
			continue
		}
		if err := k.c.confirmHolding(ctx, nm); err != nil {
			return err
		}
		k.mu.Lock()
		maps.DeleteFunc(k.holding, func(_ types.UID, h heldGeneration) bool { return now.Sub(h.at) >= confirmationAge })
		k.holding[nm.UID] = heldGeneration{generation: nm.Generation, at: now}
		k.mu.Unlock()
	}
	return nil
}

// confirmHolding returns an error unless a maintenance still is what the cache says, and holds its
// nodes.
func (c *Controller) confirmHolding(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) error {
	live, err := c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, nm.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the maintenance before writing to its nodes: %w", err)
	}
	if err != nil || live.UID != nm.UID || live.Generation != nm.Generation || !isHolding(live) {
		return apierrors.NewConflict(maintenancev1alpha1.Resource("nodemaintenances"), nm.Name, errors.New("the maintenance has moved on"))
	}
	return nil
}

// mayMakeSchedulable reports whether any cordon of a node may be lifted for a maintenance. To lift
// one's own is not asked for.
func (k *nodeReconciler) mayMakeSchedulable(ctx context.Context, f nodeFacts) (bool, error) {
	nm := f.makesSchedulable
	answer := k.c.rights.Ask(ctx, nm.Spec.RequestedBy, []*corev1.Node{f.node})[f.node.Name]
	if answer.Err != nil {
		return false, ignoreAsking(fmt.Errorf("ask whether user %q may delete node %s: %w", usernameOf(nm), f.node.Name, answer.Err))
	}
	if !answer.Allowed && f.node.Spec.Unschedulable {
		k.c.nodeEvent(f.node, nm, corev1.EventTypeWarning, EventNotAuthorized, actionUncordon,
			"Not made schedulable by NodeMaintenance %s: its requester may not delete the node", nm.Name)
	}
	if !answer.Allowed {
		k.noteMadeSchedulable(f)
	}
	return answer.Allowed, nil
}

// noteMadeSchedulable remembers that a maintenance has had its effect on a node.
func (k *nodeReconciler) noteMadeSchedulable(f nodeFacts) {
	if f.makesSchedulable == nil {
		return
	}
	k.mu.Lock()
	k.madeSchedulable[f.node.UID] = f.makesSchedulable.UID
	k.mu.Unlock()
	k.c.queue.Add(f.makesSchedulable.Name)
}

// apply writes a change to a node, on the condition that the node is still the one and in the state
// that the change was decided for.
func (k *nodeReconciler) apply(ctx context.Context, node *corev1.Node, change nodeChange) error {
	annotations := map[string]any{}
	if change.setCordon {
		annotations[maintenancev1alpha1.AnnotationCordonedBy] = markText(k.storage, change.cordon, nil)
	}
	if change.setTaint {
		annotations[maintenancev1alpha1.AnnotationTaintedBy] = markText(k.storage, change.taint, change.added)
	}
	spec := map[string]any{}
	if change.unschedulable != nil {
		spec["unschedulable"] = *change.unschedulable
	}
	if change.setTaints {
		spec["taints"] = change.taints
	}
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion, "annotations": annotations}, "spec": spec,
	})
	if err != nil {
		return err
	}
	stored, err := k.c.host.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return err
	}
	return k.remember(stored)
}

// remember keeps a node as it was written, until the cache shows it.
func (k *nodeReconciler) remember(stored *corev1.Node) error {
	if _, err := controllercache.Strip(stored); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.written[stored.Name] = stored
	return nil
}

// announce records events about a change that was written.
func (k *nodeReconciler) announce(ctx context.Context, f nodeFacts, change nodeChange, who string) {
	nm := subjectOf(f, change)
	if nm == nil {
		return
	}
	switch {
	case change.cordonRestored:
		k.c.cordonRestored(ctx, f.node, nm, who)
	case change.unschedulable != nil && *change.unschedulable:
		k.c.nodeEvent(f.node, nm, corev1.EventTypeNormal, EventCordoned, actionCordon, "Made unschedulable by NodeMaintenance %s", nm.Name)
	case change.unschedulable != nil:
		k.c.nodeEvent(f.node, nm, corev1.EventTypeNormal, EventUncordoned, actionUncordon, "Made schedulable again by NodeMaintenance %s", nm.Name)
	}
	if change.taintRestored {
		k.c.taints.restored(f.node)
		k.c.nodeEvent(f.node, nm, corev1.EventTypeWarning, EventTaintRestored, actionTaint,
			"A taint of NodeMaintenance %s was removed from the node while it holds the node; it was added again", nm.Name)
	}
}

// subjectOf returns the maintenance that an event about a change is about: the first by name that
// holds the node, or that has released it; nil if there is none.
func subjectOf(f nodeFacts, change nodeChange) *maintenancev1alpha1.NodeMaintenance {
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
	return &maintenancev1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: first, UID: all[first]}}
}

// cordonRestored reports that someone else has undone our cordon, and who if it is a fight.
func (c *Controller) cordonRestored(ctx context.Context, node *corev1.Node, nm *maintenancev1alpha1.NodeMaintenance, who string) {
	c.cordons.restored(node)
	cordonsRestored.Inc()
	if who == "" {
		c.nodeEvent(node, nm, corev1.EventTypeNormal, EventCordonRestored, actionCordon,
			"The node was made schedulable while NodeMaintenance %s holds it; it was made unschedulable again", nm.Name)
		return
	}
	cordonFights.Inc()
	klog.FromContext(ctx).Info("A node is made schedulable again and again", "node", klog.KObj(node), "fieldManager", who)
	c.nodeEvent(node, nm, corev1.EventTypeWarning, EventCordonFight, actionCordon,
		"%s keeps making the node schedulable while NodeMaintenance %s holds it; it is made unschedulable less often from now on", who, nm.Name)
}

// unknownWriter is who makes a node schedulable without leaving a trace in its managed fields.
const unknownWriter = "An unknown writer"

// meddler finds out who has made a node schedulable. The cache does not keep the managed fields.
func (c *Controller) meddler(ctx context.Context, node *corev1.Node) string {
	live, err := c.host.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return unknownWriter
	}
	return decideMeddler(live.ManagedFields)
}

// decideMeddler guesses from the managed fields of a node that is schedulable again who did it. An
// apply leaves the field with its manager. Any other write omits the field, since false is its zero
// value, so no manager owns it: then it is probably the most recent writer after us.
// kube-controller-manager is not meant: it follows with the taint that goes with the field.
func decideMeddler(fields []metav1.ManagedFieldsEntry) string {
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

// withdrawFrom removes our finalizer from the Evacuations of pods on a node that no maintenance
// wants gone. It does not wait for evacuators.
func (c *Controller) withdrawFrom(ctx context.Context, node string) error {
	// Those that the cache does not show come first: one that it shows meanwhile is then found
	// twice, and not missed.
	found, err := c.unseenEvacuationsOn(ctx, sets.New(node))
	if err != nil {
		return err
	}
	for _, e := range c.ourEvacuationsOn(node) {
		found[types.NamespacedName{Namespace: e.Namespace, Name: e.Name}] = located{e, node}
	}
	var work []*maintenancev1alpha1.Evacuation
	for _, at := range found {
		if !c.wanted(at.Evacuation, at.node, "") {
			work = append(work, at.Evacuation)
		}
	}
	return inParallel(ctx, len(work), func(ctx context.Context, i int) error { return c.leave(ctx, work[i]) })
}

// hasUnwanted reports whether an Evacuation of ours is left, or was requested a moment ago, for a
// pod of a node that no maintenance wants gone.
func (c *Controller) hasUnwanted(node string) bool {
	return c.requested.isPending(node) ||
		slices.ContainsFunc(c.ourEvacuationsOn(node), func(e *maintenancev1alpha1.Evacuation) bool { return !c.wanted(e, node, "") })
}

// isQuiet reports whether no pod will be evicted any more from a node on the strength of an
// Evacuation of ours: the cache, which is asked before an eviction is sent, shows that they are
// gone, and the evictions that had been sent before have been answered.
func (c *Controller) isQuiet(node string) bool {
	if c.hasUnwanted(node) {
		return false
	}
	if c.evictionsInFlight == nil {
		return true
	}
	return !slices.ContainsFunc(c.evictionsInFlight(), func(r eviction.Request) bool { return c.isUnwanted(r, sets.New(node)) })
}
