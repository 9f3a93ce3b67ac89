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
	"k8s.io/klog/v2"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// nodesByOwner is the index of nodes by the UIDs of the maintenances that their annotation names.
const nodesByOwner = "haulout.dev/nodes-by-cordon-owner"

func indexNodeByOwner(obj any) ([]string, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, nil
	}
	var uids []string
	for _, o := range []owners{ownersOf(node), taintersOf(node)} {
		for _, uid := range o {
			uids = append(uids, string(uid))
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), nil
}

// owners are the maintenances that hold a cordon, or the taint, UIDs by name.
type owners map[string]types.UID

// ownersOf returns who holds the cordon of a node. An annotation that cannot be read counts as absent: then the cordon is taken for a foreign one.
func ownersOf(node *corev1.Node) owners {
	return ownersIn(node, maintenancev1alpha1.AnnotationCordonedBy)
}

func ownersIn(node *corev1.Node, annotation string) owners {
	value, ok := node.Annotations[annotation]
	if !ok {
		return nil
	}
	var o owners
	if err := json.Unmarshal([]byte(value), &o); err != nil || len(o) == 0 {
		return nil
	}
	return o
}

func (o owners) has(nm *maintenancev1alpha1.NodeMaintenance) bool {
	return o[nm.Name] == nm.UID && nm.UID != ""
}

// text is what stands in the annotation, nil if nobody is left.
func (o owners) text() any {
	if len(o) == 0 {
		return nil
	}
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings by strings
	}
	return string(text)
}

// soleOwner is the annotation of a node that only one maintenance holds. Neither names nor UIDs have anything in them that JSON escapes.
func soleOwner(nm *maintenancev1alpha1.NodeMaintenance) string {
	return `{"` + nm.Name + `":"` + string(nm.UID) + `"}`
}

// nodeChange is what is to be written to a node; the zero value changes nothing.
type nodeChange struct {
	// unschedulable is the wanted value, or nil to leave it.
	unschedulable *bool
	// owners is the wanted annotation if setOwners; an empty one is removed.
	owners    owners
	setOwners bool
	// taints are the wanted ones if setTaints; tainters is the wanted annotation about ours if setTainters, an empty one is removed.
	taints                 []corev1.Taint
	tainters               owners
	setTaints, setTainters bool
	// restored says that somebody else has undone our cordon, or taken off our taint.
	restored bool
}

func (n nodeChange) empty() bool {
	return n.unschedulable == nil && !n.setOwners && !n.setTaints && !n.setTainters
}

// with adds what another change wants about the taint.
func (n nodeChange) with(taint nodeChange) nodeChange {
	n.taints, n.setTaints, n.tainters, n.setTainters = taint.taints, taint.setTaints, taint.tainters, taint.setTainters
	return n
}

// decideCordon says what makes a node unschedulable on behalf of a maintenance. A cordon without our annotation is somebody else's: it is
// enough for us, and by not annotating it we know later not to lift it.
func decideCordon(node *corev1.Node, nm *maintenancev1alpha1.NodeMaintenance) nodeChange {
	// What most nodes of a drain look like, without reading the annotation.
	if value := node.Annotations[maintenancev1alpha1.AnnotationCordonedBy]; node.Spec.Unschedulable && (value == "" || value == soleOwner(nm)) {
		return nodeChange{}
	}
	current := ownersOf(node)
	if node.Spec.Unschedulable && (current == nil || current.has(nm)) {
		return nodeChange{}
	}
	wanted := maps.Clone(current)
	if wanted == nil {
		wanted = owners{}
	}
	wanted[nm.Name] = nm.UID
	change := nodeChange{owners: wanted, setOwners: !maps.Equal(wanted, current)}
	if !node.Spec.Unschedulable {
		yes := true
		change.unschedulable = &yes
		change.restored = current.has(nm)
	}
	return change
}

// decideRelease says what remains of a node's cordon when a maintenance lets it go and holders still hold it. Only our own cordon is lifted,
// unless the maintenance was made to make its nodes schedulable.
func decideRelease(node *corev1.Node, nm *maintenancev1alpha1.NodeMaintenance, holders owners, makeSchedulable bool) nodeChange {
	current := ownersOf(node)
	ours := current.has(nm)
	if !ours && !makeSchedulable {
		return nodeChange{}
	}
	if len(holders) > 0 {
		if !ours {
			return nodeChange{}
		}
		return nodeChange{owners: holders, setOwners: true}
	}
	change := nodeChange{setOwners: current != nil}
	if node.Spec.Unschedulable {
		no := false
		change.unschedulable = &no
	}
	return change
}

// apply writes a change to a node, on the condition that the node is still the one and in the state that the change was decided for.
func (c *Controller) apply(ctx context.Context, node *corev1.Node, change nodeChange) error {
	annotations := map[string]any{}
	if change.setOwners {
		annotations[maintenancev1alpha1.AnnotationCordonedBy] = change.owners.text()
	}
	if change.setTainters {
		annotations[maintenancev1alpha1.AnnotationTaintedBy] = change.tainters.text()
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
	_, err = c.host.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager})
	return err
}

// cordon makes the nodes of a maintenance unschedulable. Before the first write the maintenance is read live: after it has ended, or for a
// leader that does not know yet that it is none, no cordon may be put back.
func (c *Controller) cordon(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance, nodes []*corev1.Node) error {
	var pending []*corev1.Node
	for _, node := range nodes {
		if change := decideCordon(node, nm); !change.empty() {
			if wait := c.cordons.backOff(node); change.restored && wait > 0 {
				c.queue.AddAfter(nm.Name, wait)
				continue
			}
			pending = append(pending, node)
		}
	}
	if len(pending) == 0 {
		return nil
	}
	if err := c.confirmHolding(ctx, nm); err != nil {
		return err
	}
	return c.inRounds(ctx, nm.Name, len(pending), func(ctx context.Context, i int) error {
		node := pending[i]
		change := decideCordon(node, nm)
		var who string
		if change.restored && c.cordons.isFight(node) {
			who = c.meddler(ctx, node) // once we have written, the field is ours again
		}
		if err := c.apply(ctx, node, change); err != nil {
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("cordon node %s: %w", node.Name, err)
		}
		switch {
		case change.restored:
			c.cordonRestored(ctx, node, nm, who)
		case change.unschedulable != nil:
			c.nodeEvent(node, nm, corev1.EventTypeNormal, EventCordoned, actionCordon, "Made unschedulable by NodeMaintenance %s", nm.Name)
		}
		return nil
	})
}

// confirmHolding returns an error unless a maintenance still is what the cache says, and holds its nodes.
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

// cordonRestored tells that somebody has undone our cordon, and who if it is a fight.
func (c *Controller) cordonRestored(ctx context.Context, node *corev1.Node, nm *maintenancev1alpha1.NodeMaintenance, who string) {
	c.cordons.restored(node)
	cordonsRestored.Inc()
	if who == "" {
		c.nodeEvent(node, nm, corev1.EventTypeNormal, EventCordonRestored, actionCordon,
			"Somebody made the node schedulable while NodeMaintenance %s holds it; it was made unschedulable again", nm.Name)
		return
	}
	cordonFights.Inc()
	klog.FromContext(ctx).Info("Somebody keeps making a node schedulable", "node", klog.KObj(node), "fieldManager", who)
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

// decideMeddler guesses from the managed fields of a node that is schedulable again who did it. An apply leaves the field with its manager. Any
// other write takes it out of the node, since false is its zero value, and nobody has it: then it is probably the last one who has written
// since we did. kube-controller-manager is not meant: it follows with the taint that goes with the field.
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
