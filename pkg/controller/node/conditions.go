// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/marks"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// returnPatience is how long a node that was drained and got a pod again is shown as not drained at
// least. Where new pods keep coming to the node, every one of them would cost two writes.
const returnPatience = 30 * time.Second

// confirmPatience is how long to wait for the cache after a live list showed pods that it does not.
const confirmPatience = time.Second

// writeConditions brings the conditions of a node to what they should be. It returns the node as it
// is then stored, nil if nothing was written.
func (c *Controller) writeConditions(ctx context.Context, node *corev1.Node, f facts) (*corev1.Node, error) {
	if there := marks.ReadConditions(node); !there.IsEmpty() && !c.isOurStorage(there.Storage) {
		// Another storage's server finds its conditions by this record.
		return nil, nil
	}
	record := c.recordOf(node)
	holders, unanswered, err := c.holdersOf(ctx, node, f, record)
	if err != nil {
		return nil, err
	}
	now := metav1.NewTime(c.clock.Now())
	change := decideConditions(node, record, holders, true, now)
	if change.drained {
		wait, err := c.unconfirmed(ctx, node, holders)
		if err != nil {
			return nil, err
		}
		if wait != 0 {
			change = decideConditions(node, record, holders, false, now)
			c.queue.AddAfter(node.Name, wait)
		}
	}
	if change.empty() {
		return nil, unanswered
	}
	stored, err := c.patchConditions(ctx, node, change)
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("write the conditions of node %s: %w", node.Name, err)
	}
	for _, news := range change.news {
		about := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: news.name, UID: news.uid}}
		c.nodeEvent(node, about, corev1.EventTypeNormal, news.reason, news.action, "%s", news.note)
	}
	return stored, unanswered
}

// recordOf returns what the annotation of a node records about its conditions, if it is of our
// storage.
func (c *Controller) recordOf(node *corev1.Node) marks.Conditions {
	record := marks.ReadConditions(node)
	if len(record.Maintenances) > 0 && !c.isOurStorage(record.Storage) {
		return marks.Conditions{}
	}
	return record
}

// patchConditions writes conditions and annotation in one request to the node's status. The kubelet
// and other writers keep the conditions of other types.
func (c *Controller) patchConditions(ctx context.Context, node *corev1.Node, change conditionsChange) (*corev1.Node, error) {
	conditions := make([]any, 0, len(change.set)+len(change.remove))
	for i := range change.set {
		conditions = append(conditions, &change.set[i])
	}
	for _, conditionType := range change.remove {
		conditions = append(conditions, map[string]any{"$patch": "delete", "type": conditionType})
	}
	metadata := map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion}
	if change.setRecord {
		var value any
		if !change.record.IsEmpty() {
			value = change.record.Encode(c.storage)
		}
		metadata["annotations"] = map[string]any{v1alpha1.AnnotationConditionsBy: value}
	}
	data, err := json.Marshal(map[string]any{"metadata": metadata, "status": map[string]any{"conditions": conditions}})
	if err != nil {
		return nil, err
	}
	stored, err := c.host.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if err != nil {
		return nil, err
	}
	conditionWrites.Inc()
	return stored, c.remember(stored)
}

// holdersOf returns the maintenances that a node's conditions are about, sorted by name: those in
// stage Cordon and Drain that have cordoned it, and, if they are to be advertised, those in stage
// Idle that select it, the oldest ones, since the annotation has limited room. No write is made on
// behalf of one whose requester may not delete the node; a right that is lost later ends no hold.
// While the authorizer gives no answer about one in stage Idle, that is as recorded, and unanswered
// says so.
func (c *Controller) holdersOf(ctx context.Context, node *corev1.Node, f facts, record marks.Conditions) (holders []holder, unanswered, err error) {
	names := c.selection.MaintenancesOn(node.Name)
	advertised, err := c.advertised(node, names)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		nm, err := c.maintenanceLister.Get(name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		held := v1alpha1.IsHolding(nm) && f.holders[nm.Name] == nm.UID
		planned := advertised.Has(name)
		if !held && !planned {
			continue
		}
		answer := c.rights.Ask(ctx, nm.Spec.RequestedBy, []*corev1.Node{node})[node.Name]
		if planned && answer.Err != nil {
			unanswered = errors.Join(
				unanswered, fmt.Errorf("ask whether user %q may delete node %s: %w", v1alpha1.RequesterOf(nm), node.Name, answer.Err),
			)
			answer.Allowed = record.StageOf(nm.Name, nm.UID) != ""
		}
		if planned && !answer.Allowed {
			continue
		}
		h := holder{name: nm.Name, uid: nm.UID, stage: nm.Spec.Stage, reason: nm.Spec.Reason, refused: !answer.Allowed && answer.Err == nil}
		if v1alpha1.IsDraining(nm) {
			if h.left, err = c.covers(nm, node); err != nil {
				return nil, nil, err
			}
		}
		holders = append(holders, h)
	}
	return holders, unanswered, nil
}

// advertised returns the maintenances in stage Idle that a condition of a node announces.
func (c *Controller) advertised(node *corev1.Node, names []string) (sets.Set[string], error) {
	advertised := sets.New[string]()
	if !c.advertise {
		return advertised, nil
	}
	var planned []*v1alpha1.NodeMaintenance
	for _, name := range names {
		nm, err := c.maintenanceLister.Get(name)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, err
		case nm.DeletionTimestamp == nil && nm.Spec.Stage == v1alpha1.NodeMaintenanceStageIdle:
			planned = append(planned, nm)
		}
	}
	for _, nm := range marks.Choose(node.Name, planned, 0, nil) {
		advertised.Insert(nm.Name)
	}
	return advertised, nil
}

// covers reports whether the cache shows a live pod on a node that a maintenance's plan covers and
// that is not left running on purpose.
func (c *Controller) covers(nm *v1alpha1.NodeMaintenance, node *corev1.Node) (bool, error) {
	plan, err := drainplan.CompileTargets(nm.Spec.DrainPlan)
	if err != nil {
		return false, fmt.Errorf("drain plan of %s: %w", nm.Name, err)
	}
	view, err := c.state.View(node)
	if err != nil {
		return false, err
	}
	if !view.Recheck.IsZero() {
		c.queue.AddAfter(node.Name, view.Recheck.Sub(c.clock.Now()))
	}
	return slices.ContainsFunc(view.Pods, func(pod nodestate.Pod) bool { return pod.Kept == "" && plan.Cover(pod.Plan) }), nil
}

// unconfirmed returns how long to wait before a node on which the cache shows no covered pod may be
// called drained, and 0 if it may now. As for the maintenance as a whole, the scheduler has time to
// bind what it had placed, and a live list confirms the cache; after that the cache is enough, for
// the same maintenances, as long as the node is not cordoned a second time.
func (c *Controller) unconfirmed(ctx context.Context, node *corev1.Node, holders []holder) (time.Duration, error) {
	if !node.Spec.Unschedulable {
		// There is nothing to wait for but an event. It is asked again, in case that was missed.
		return nodestate.SettleTime, nil
	}
	maintenances := sets.New[types.UID]()
	for _, h := range drainingOf(holders) {
		maintenances.Insert(h.uid)
	}
	one := []*corev1.Node{node}
	drained := ours(c.recordOf(node), node, v1alpha1.NodeConditionDrained)
	if drained != nil && drained.Status == corev1.ConditionTrue {
		confirmed := c.confirmedOf(node)
		if confirmed.maintenances.IsSuperset(maintenances) && !c.state.Cordons.Latest(one).After(confirmed.at) {
			return 0, nil
		}
	}
	if wait := c.state.Cordons.Unsettled(one); wait > 0 {
		return wait, nil
	}
	if drained != nil && drained.Reason == v1alpha1.NodeReasonPodsReturned {
		if wait := returnPatience - c.clock.Since(drained.LastTransitionTime.Time); wait > 0 {
			return min(wait, returnPatience), nil
		}
	}
	found, err := c.foundLive(ctx, node, drainingOf(holders))
	if err != nil || found {
		return confirmPatience, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.confirmed[node.UID] = drainedNode{at: c.clock.Now(), maintenances: maintenances}
	return 0, nil
}

// confirmedOf returns what is known of a node that is shown as drained. What a leader inherits has
// been confirmed by another one.
func (c *Controller) confirmedOf(node *corev1.Node) drainedNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	if confirmed, known := c.confirmed[node.UID]; known {
		return confirmed
	}
	inherited := drainedNode{at: c.clock.Now(), maintenances: sets.New[types.UID]()}
	for _, recorded := range c.recordOf(node).Maintenances {
		if recorded.Stage == v1alpha1.NodeMaintenanceStageDrain {
			inherited.maintenances.Insert(recorded.UID)
		}
	}
	c.confirmed[node.UID] = inherited
	return inherited
}

// foundLive reports whether the API, and not the cache, shows a pod on a node that one of the
// maintenances covers. Pods that are only nominated for the node are left to the cache: the API
// cannot select them, and none is nominated for a node that is cordoned.
func (c *Controller) foundLive(ctx context.Context, node *corev1.Node, draining []holder) (bool, error) {
	var plans []drainplan.Targets
	for _, h := range draining {
		nm, err := c.maintenanceLister.Get(h.name)
		if err != nil {
			return false, err
		}
		plan, err := drainplan.CompileTargets(nm.Spec.DrainPlan)
		if err != nil {
			return false, err
		}
		plans = append(plans, plan)
	}
	view, err := c.state.View(node)
	if err != nil {
		return false, err
	}
	list, err := c.host.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	if err != nil {
		return false, fmt.Errorf("list the pods of node %s: %w", node.Name, err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Spec.NodeName != node.Name || !drainplan.IsLive(pod) || view.Keeps(pod.UID) {
			continue
		}
		live := c.state.Classify(pod, node)
		if live.Kept == "" && slices.ContainsFunc(plans, func(plan drainplan.Targets) bool { return plan.Cover(live.Plan) }) {
			return true, nil
		}
	}
	return false, nil
}
