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
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// returnPatience is how long a node that was drained and got a pod again is shown as not drained at
// least. Where pods are put there again and again, every one of them would be two writes.
const returnPatience = 30 * time.Second

// nodesByConditionsOf is the index of nodes by the UIDs of the maintenances that their conditions
// are about.
const nodesByConditionsOf = "haulout.dev/nodes-by-conditions-of"

func indexNodeByConditionsOf(obj any) ([]string, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, nil
	}
	var uids []string
	for _, recorded := range recordOf(node).Maintenances {
		uids = append(uids, string(recorded.UID))
	}
	return uids, nil
}

// writeConditions brings the conditions of a node to what they should be. It returns the node as it
// is then stored, nil if nothing was written.
func (k *nodeReconciler) writeConditions(ctx context.Context, node *corev1.Node, facts nodeFacts) (*corev1.Node, error) {
	if there := recordOf(node); !there.isEmpty() && !k.isOurStorage(there.Storage) {
		// Another storage's server finds its conditions by this record.
		return nil, nil
	}
	holders, err := k.holdersOf(ctx, node, facts)
	if err != nil {
		return nil, err
	}
	record := k.recordOf(node)
	now := metav1.NewTime(k.c.clock.Now())
	change := decideConditions(node, record, holders, true, now)
	if change.drained {
		wait, err := k.unconfirmed(ctx, node, holders)
		if err != nil {
			return nil, err
		}
		if wait != 0 {
			change = decideConditions(node, record, holders, false, now)
			k.queue.AddAfter(node.Name, wait)
		}
	}
	if change.empty() {
		return nil, nil
	}
	stored, err := k.patchConditions(ctx, node, change)
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("write the conditions of node %s: %w", node.Name, err)
	}
	for _, news := range change.news {
		about := &maintenancev1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: news.name, UID: news.uid}}
		k.c.nodeEvent(node, about, corev1.EventTypeNormal, news.reason, news.action, "%s", news.note)
	}
	return stored, nil
}

// recordOf returns what the annotation of a node records about its conditions, if it is of our
// storage.
func (k *nodeReconciler) recordOf(node *corev1.Node) conditionsRecord {
	record := recordOf(node)
	if len(record.Maintenances) > 0 && !k.isOurStorage(record.Storage) {
		return conditionsRecord{}
	}
	return record
}

// patchConditions writes conditions and annotation in one request to the node's status. The kubelet
// and other writers keep the conditions of other types.
func (k *nodeReconciler) patchConditions(ctx context.Context, node *corev1.Node, change conditionsChange) (*corev1.Node, error) {
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
		if !change.record.isEmpty() {
			value = change.record.encode(k.storage)
		}
		metadata["annotations"] = map[string]any{maintenancev1alpha1.AnnotationConditionsBy: value}
	}
	data, err := json.Marshal(map[string]any{"metadata": metadata, "status": map[string]any{"conditions": conditions}})
	if err != nil {
		return nil, err
	}
	stored, err := k.c.host.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if err != nil {
		return nil, err
	}
	conditionWrites.Inc()
	return stored, k.remember(stored)
}

// holdersOf returns the maintenances that a node's conditions are about, sorted by name: those in
// stage Cordon and Drain that have cordoned it, and, if they are to be advertised, those in stage
// Idle that select it. No write is made on behalf of one whose requester may not delete the node; a
// right that is lost later ends no hold.
func (k *nodeReconciler) holdersOf(ctx context.Context, node *corev1.Node, facts nodeFacts) ([]holder, error) {
	var holders []holder
	for _, name := range k.c.selection.maintenancesOn(node.Name) {
		nm, err := k.c.get(name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		held := isHolding(nm) && facts.holders[nm.Name] == nm.UID
		planned := k.advertise && nm.DeletionTimestamp == nil && nm.Spec.Stage == maintenancev1alpha1.NodeMaintenanceStageIdle
		if !held && !planned {
			continue
		}
		answer := k.c.rights.Ask(ctx, nm.Spec.RequestedBy, []*corev1.Node{node})[node.Name]
		if planned && answer.Err != nil {
			return nil, fmt.Errorf("ask whether user %q may delete node %s: %w", usernameOf(nm), node.Name, answer.Err)
		}
		if planned && !answer.Allowed {
			continue
		}
		h := holder{name: nm.Name, uid: nm.UID, stage: nm.Spec.Stage, reason: nm.Spec.Reason, refused: !answer.Allowed && answer.Err == nil}
		if isDraining(nm) {
			if h.left, err = k.covers(nm, node); err != nil {
				return nil, err
			}
		}
		holders = append(holders, h)
	}
	return holders, nil
}

// covers says whether the cache shows a live pod on a node that a maintenance's plan covers and
// that is not left running on purpose.
func (k *nodeReconciler) covers(nm *maintenancev1alpha1.NodeMaintenance, node *corev1.Node) (bool, error) {
	plan, err := drainplan.CompileTargets(nm.Spec.DrainPlan)
	if err != nil {
		return false, fmt.Errorf("drain plan of %s: %w", nm.Name, err)
	}
	view, err := k.c.view(node)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(view.pods, func(pod livePod) bool { return pod.left == "" && plan.Cover(pod.plan) }), nil
}

// unconfirmed returns how long to wait before a node on which the cache shows no covered pod may be
// called drained, and 0 if it may now. As for the maintenance as a whole, the scheduler has time to
// bind what it had placed, and a live list confirms the cache; after that the cache is enough, for
// the same maintenances, as long as the node is not seen cordoned anew.
func (k *nodeReconciler) unconfirmed(ctx context.Context, node *corev1.Node, holders []holder) (time.Duration, error) {
	if !node.Spec.Unschedulable {
		// There is nothing to wait for but an event. It is asked again, in case that was missed.
		return settle, nil
	}
	maintenances := sets.New[types.UID]()
	for _, h := range drainingOf(holders) {
		maintenances.Insert(h.uid)
	}
	one := []*corev1.Node{node}
	drained := k.recordOf(node).ours(node, maintenancev1alpha1.NodeConditionDrained)
	if drained != nil && drained.Status == corev1.ConditionTrue {
		confirmed := k.confirmedOf(node)
		if confirmed.maintenances.IsSuperset(maintenances) && !k.c.cordons.latest(one).After(confirmed.at) {
			return 0, nil
		}
	}
	if wait := k.c.cordons.unsettled(one); wait > 0 {
		return wait, nil
	}
	if drained != nil && drained.Reason == maintenancev1alpha1.NodeReasonPodsReturned {
		if wait := returnPatience - k.c.clock.Since(drained.LastTransitionTime.Time); wait > 0 {
			return min(wait, returnPatience), nil
		}
	}
	found, err := k.foundLive(ctx, node, drainingOf(holders))
	if err != nil || found {
		return confirmPatience, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.confirmed[node.UID] = drainedNode{at: k.c.clock.Now(), maintenances: maintenances}
	return 0, nil
}

// confirmedOf returns what is known of a node that is shown as drained. What a leader inherits has
// been confirmed by another one.
func (k *nodeReconciler) confirmedOf(node *corev1.Node) drainedNode {
	k.mu.Lock()
	defer k.mu.Unlock()
	if confirmed, known := k.confirmed[node.UID]; known {
		return confirmed
	}
	inherited := drainedNode{at: k.c.clock.Now(), maintenances: sets.New[types.UID]()}
	for _, recorded := range k.recordOf(node).Maintenances {
		if recorded.Stage == maintenancev1alpha1.NodeMaintenanceStageDrain {
			inherited.maintenances.Insert(recorded.UID)
		}
	}
	k.confirmed[node.UID] = inherited
	return inherited
}

// foundLive says whether the API, and not the cache, shows a pod on a node that one of the
// maintenances covers. Pods that are only nominated for the node are left to the cache: the API
// cannot select them, and none is nominated for a node that is cordoned.
func (k *nodeReconciler) foundLive(ctx context.Context, node *corev1.Node, draining []holder) (bool, error) {
	var plans []drainplan.Targets
	for _, h := range draining {
		nm, err := k.c.get(h.name)
		if err != nil {
			return false, err
		}
		plan, err := drainplan.CompileTargets(nm.Spec.DrainPlan)
		if err != nil {
			return false, err
		}
		plans = append(plans, plan)
	}
	view, err := k.c.view(node)
	if err != nil {
		return false, err
	}
	list, err := k.c.host.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	if err != nil {
		return false, fmt.Errorf("list the pods of node %s: %w", node.Name, err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Spec.NodeName != node.Name || !drainplan.IsLive(pod) || view.leaves(pod.UID) {
			continue
		}
		live := k.c.classify(pod, node)
		if live.left == "" && slices.ContainsFunc(plans, func(plan drainplan.Targets) bool { return plan.Cover(live.plan) }) {
			return true, nil
		}
	}
	return false, nil
}

// leaves says whether a pod is in the view as one that is left running.
func (v *nodeView) leaves(uid types.UID) bool {
	return slices.ContainsFunc(v.pods, func(p livePod) bool { return p.UID == uid && p.left != "" })
}
