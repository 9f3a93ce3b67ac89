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
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/drain/marks"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// confirmPatience is the time after which a node is reconciled again if a live list returned pods
// that are missing in the cache.
const confirmPatience = time.Second

// writeConditions updates the conditions of a node if necessary. It returns the stored node, or nil
// if it wrote nothing.
func (c *Controller) writeConditions(ctx context.Context, node *corev1.Node, f facts) (*corev1.Node, error) {
	record := c.recordOf(node)
	holders, unanswered, err := c.holdersOf(ctx, node, f, record)
	if err != nil {
		return nil, err
	}
	if there := marks.ReadConditions(node); !there.IsEmpty() && !c.isOurStorage(there.Storage) {
		// The server with that storage needs the existing record to find its conditions.
		return nil, nil
	}
	change := decideConditions(node, record, holders, metav1.NewTime(c.clock.Now()))
	if change.wait > 0 {
		c.queue.AddAfter(node.Name, change.wait)
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

// recordOf returns the record of our conditions in the node's annotation. It is empty if the
// annotation is from a server with another storage.
func (c *Controller) recordOf(node *corev1.Node) marks.Conditions {
	record := marks.ReadConditions(node)
	if len(record.Maintenances) > 0 && !c.isOurStorage(record.Storage) {
		return marks.Conditions{}
	}
	return record
}

// patchConditions writes the conditions and the annotation in one patch of the node's status.
// Conditions of other types do not change.
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

// holdersOf returns the maintenances that a node's conditions are about, sorted by name. These are
// the maintenances in stage Cordon or Drain that have cordoned the node. With AdvertisePlanned,
// they are also the oldest maintenances in stage Idle that select it; the annotation has room for a
// few only. A maintenance whose requester may not maintain the node is omitted, unless it already
// holds the node. If the authorizer does not respond for a maintenance in stage Idle, the record
// determines whether it is included, and unanswered is the error.
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
		held := f.isHolding(nm) && f.holders[nm.Name] == nm.UID
		planned := advertised.Has(name)
		if !held && !planned {
			continue
		}
		answer := c.rights.Ask(ctx, nm.Spec.RequestedBy, []*corev1.Node{node})[node.Name]
		if planned && answer.Err != nil {
			unanswered = errors.Join(
				unanswered, fmt.Errorf("ask whether user %q may maintain node %s: %w", v1alpha1.RequesterOf(nm), node.Name, answer.Err),
			)
			answer.Allowed = record.StageOf(nm.Name, nm.UID) != ""
		}
		if planned && !answer.Allowed {
			continue
		}
		h := holder{name: nm.Name, uid: nm.UID, stage: nm.Spec.Stage, reason: nm.Spec.Reason, refused: !answer.Allowed && answer.Err == nil}
		if held {
			h.stage = stageOf(f, nm)
		}
		if h.stage == v1alpha1.NodeMaintenanceStageDrain {
			if err := c.gatherDrain(&h, f, nm); err != nil {
				return nil, nil, err
			}
		}
		holders = append(holders, h)
	}
	return holders, unanswered, c.confirmDrained(ctx, node, holders, record)
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

// stageOf returns the stage of a maintenance that holds a node, for the conditions of the node. The
// node is only held, and not drained, once a worker has ended its work or if the maintenance waits
// for its worker to end.
func stageOf(f facts, nm *v1alpha1.NodeMaintenance) v1alpha1.NodeMaintenanceStage {
	if f.hands.LetsPodsBack(nm, f.node.Name) || !v1alpha1.IsHolding(nm) {
		return v1alpha1.NodeMaintenanceStageCordon
	}
	return nm.Spec.Stage
}

// gatherDrain compiles the drain plan of a maintenance and checks whether, according to the cache,
// the node has a live pod that the plan covers and that the drain has to remove. While a worker has
// the node, it is drained for the maintenances that do not wait for the worker, and for no other.
func (c *Controller) gatherDrain(h *holder, f facts, nm *v1alpha1.NodeMaintenance) error {
	var err error
	node := f.node
	if h.inHands = f.hands.Stops(nm, node.Name); h.inHands {
		h.left = !f.hands.Passes(nm, node.Name)
		return nil
	}
	if h.plan, err = drainplan.CompileTargets(nm.Spec.DrainPlan); err != nil {
		return fmt.Errorf("drain plan of %s: %w", nm.Name, err)
	}
	if h.rules, err = holds.RulesOf(nm); err != nil {
		return err
	}
	view, err := c.state.View(node)
	if err != nil {
		return err
	}
	if !view.Recheck.IsZero() {
		c.queue.AddAfter(node.Name, view.Recheck.Sub(c.clock.Now()))
	}
	h.left = slices.ContainsFunc(view.Pods, func(pod nodestate.Pod) bool { return pod.Kept == "" && h.covers(pod.Plan) })
	return nil
}

// confirmDrained sets left for the maintenances that drain a node, unless it is certain that the
// node has none of their pods. If the cache has no such pod, confirmDrained waits until the
// scheduler has bound the pods that it had assigned before the cordon, and then confirms with a
// live list. After that the cache is sufficient while the node stays cordoned. If the node already
// has the condition Drained=True, a previous leader has waited, so this leader does not.
func (c *Controller) confirmDrained(ctx context.Context, node *corev1.Node, holders []holder, record marks.Conditions) error {
	condition := ours(record, node, v1alpha1.NodeConditionDrained)
	isShown := condition != nil && condition.Status == corev1.ConditionTrue
	cordoned, unsettled := c.state.Cordons.Since(node), c.state.Cordons.Unsettled(node)
	var asked []*holder
	for i := range holders {
		h := &holders[i]
		switch {
		case h.stage != v1alpha1.NodeMaintenanceStageDrain, h.refused, h.inHands:
		case h.left || !node.Spec.Unschedulable:
			c.state.NoteDrained(node, h.uid, false, cordoned)
			h.left = true
		case c.state.Cordons.IsDrained(node, h.uid, false):
		case unsettled > 0 && !(isShown && record.StageOf(h.name, h.uid) == h.stage && c.state.Cordons.IsDrained(node, h.uid, true)):
			h.left = true
			c.queue.AddAfter(node.Name, unsettled)
		default:
			asked = append(asked, h)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	pods, err := c.state.LivePods(ctx, node)
	if err != nil {
		return err
	}
	isSame := c.state.Cordons.Since(node).Equal(cordoned)
	for _, h := range asked {
		h.left = !isSame || slices.ContainsFunc(pods, func(pod nodestate.Pod) bool { return h.covers(pod.Plan) })
		c.state.NoteDrained(node, h.uid, !h.left, cordoned)
		if h.left {
			c.queue.AddAfter(node.Name, confirmPatience)
		}
	}
	return nil
}
