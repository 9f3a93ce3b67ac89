// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package marks reads and writes the annotations in which the server records what it did to a node,
// and for which maintenances. The node controller writes them and the nodemaintenance controller
// reads them: a maintenance is complete when the annotations of no node name it. A kubelet may
// annotate its own node, so the values are untrusted input.
package marks

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Annotations has the keys of the annotations of this package.
var Annotations = []string{
	v1alpha1.AnnotationCordonedBy, v1alpha1.AnnotationTaintedBy, v1alpha1.AnnotationProtectedBy, v1alpha1.AnnotationConditionsBy,
}

// MaxMaintenances is the maximum number of maintenances that are read from an annotation. It is the
// number of maintenances that may hold a node, and one for the shutdown of the node.
const MaxMaintenances = protocol.MaxHolders + 1

// Owners has the UIDs, by name, of the maintenances for which the server cordoned or tainted a
// node.
type Owners map[string]types.UID

// Has reports whether o has the maintenance.
func (o Owners) Has(nm *v1alpha1.NodeMaintenance) bool {
	return o[nm.Name] == nm.UID && nm.UID != ""
}

// HasAny reports whether o and others have a maintenance in common.
func (o Owners) HasAny(others Owners) bool {
	for name, uid := range others {
		if o[name] == uid {
			return true
		}
	}
	return false
}

// Mark is the value of the annotation about the cordon or the taints of a node. A server undoes
// only changes that have the ID of its own storage. It does not know the maintenances of another
// storage, and would treat all of them as deleted.
type Mark struct {
	Storage      string `json:"storage"`
	Maintenances Owners `json:"maintenances"`
	// Taints are the keys of the taints that the server has added. If the node has another of our
	// taints, another client added it, and the server does not remove it.
	Taints []string `json:"taints,omitempty"`
	// OwnPods are the UIDs of the server's pods that were on the node when a maintenance began to
	// hold it. The drain removes each of them once. A pod of the server that is not listed was
	// recreated, and stays.
	OwnPods []types.UID `json:"ownPods,omitempty"`
}

// Read reads the annotation about the cordon or the taints of a node. It ignores an invalid value,
// and names that no maintenance can have. The server then treats the cordon or the taints as those
// of another client.
func Read(node *corev1.Node, annotation string) Mark {
	value, ok := node.Annotations[annotation]
	if !ok {
		return Mark{}
	}
	var m Mark
	if err := json.Unmarshal([]byte(value), &m); err != nil {
		return Mark{}
	}
	maps.DeleteFunc(m.Maintenances, func(name string, uid types.UID) bool {
		return uid == "" || len(validation.IsDNS1123Subdomain(name)) > 0
	})
	if len(m.Maintenances) > MaxMaintenances {
		for _, name := range slices.Sorted(maps.Keys(m.Maintenances))[MaxMaintenances:] {
			delete(m.Maintenances, name)
		}
	}
	if len(m.Maintenances) == 0 {
		return Mark{Storage: m.Storage}
	}
	return m
}

// Encode returns the value of the annotation, or nil to remove it.
func (m Mark) Encode() any {
	if len(m.Maintenances) == 0 {
		return nil
	}
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // the fields are strings
	}
	return string(text)
}

// Protection is the value of the annotation about the annotations for autoscalers. It is not part
// of the mark about the taints: an older server, which releases a node without removing the
// annotations, would lose it.
type Protection struct {
	// Storage is the ID of the storage of the server that has added them.
	Storage string `json:"storage"`
	// Annotations are the keys that the server has added; "-" precedes the key of one that another
	// client has changed or removed since.
	Annotations []string `json:"annotations"`
}

// ReadProtection reads the annotation about the annotations for autoscalers. It ignores an invalid
// value.
func ReadProtection(node *corev1.Node) Protection {
	var p Protection
	if err := json.Unmarshal([]byte(node.Annotations[v1alpha1.AnnotationProtectedBy]), &p); err != nil {
		return Protection{}
	}
	return p
}

// Encode returns the value of the annotation, or nil to remove it.
func (p Protection) Encode() any {
	if len(p.Annotations) == 0 {
		return nil
	}
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // the fields are strings
	}
	return string(text)
}

// CordonedBy returns the maintenances that the annotation about the cordon of a node names,
// regardless of the storage.
func CordonedBy(node *corev1.Node) Owners {
	return Read(node, v1alpha1.AnnotationCordonedBy).Maintenances
}

// IsCordonedByOthers reports whether a node is cordoned and no annotation records that the server
// or the agent of the node cordoned it. Only a maintenance that goes from Idle straight to Complete
// removes such a cordon.
func IsCordonedByOthers(node *corev1.Node) bool {
	_, byAgent := node.Annotations[v1alpha1.AnnotationCordonedByAgent]
	return node.Spec.Unschedulable && !byAgent && len(CordonedBy(node)) == 0
}

// TaintedBy returns the maintenances that the annotation about the taints of a node names,
// regardless of the storage.
func TaintedBy(node *corev1.Node) Owners {
	return Read(node, v1alpha1.AnnotationTaintedBy).Maintenances
}

// Holds reports whether the annotations record that a node is cordoned or tainted for a
// maintenance.
func Holds(node *corev1.Node, nm *v1alpha1.NodeMaintenance) bool {
	return CordonedBy(node).Has(nm) || TaintedBy(node).Has(nm)
}

// IsUntaken reports whether a maintenance has an entry for a node that it never took, so that it
// has nothing to undo on the node: neither the status nor the annotations record that it took the
// node. The node is nil if the cluster does not have it.
func IsUntaken(node *corev1.Node, nm *v1alpha1.NodeMaintenance, entry *v1alpha1.NodeMaintenanceNodeStatus) bool {
	if entry.PoolIndex != nil || len(entry.DrainTargets) > 0 ||
		entry.Reason != v1alpha1.NodeStatusNotAuthorized && entry.Reason != v1alpha1.NodeStatusGone {
		return false
	}
	return node == nil || node.UID == entry.NodeRef.UID && !UIDs(node).Has(nm.UID)
}

// HoldersOf returns the maintenances for which the annotations record that a node is cordoned or
// tainted, regardless of the storage.
func HoldersOf(node *corev1.Node) Owners {
	holders := CordonedBy(node)
	if holders == nil {
		holders = Owners{}
	}
	maps.Copy(holders, TaintedBy(node))
	return holders
}

// Choose returns the maintenances that hold a node. Of the maintenances that select the node and
// want to hold it, these are the oldest ones up to the limit, and the latest shutdown of the node,
// which does not count towards the limit. taken is the number of places that other maintenances
// use. Choose calls wants only as often as needed; nil means that all of them want to hold the
// node.
func Choose(
	node string, selecting []*v1alpha1.NodeMaintenance, taken int, wants func(*v1alpha1.NodeMaintenance) bool,
) []*v1alpha1.NodeMaintenance {
	if wants == nil {
		wants = func(*v1alpha1.NodeMaintenance) bool { return true }
	}
	ordered := slices.SortedFunc(slices.Values(selecting), v1alpha1.CompareAge)
	var chosen []*v1alpha1.NodeMaintenance
	for i := len(ordered) - 1; i >= 0; i-- {
		if IsShutdownOf(node, ordered[i]) && wants(ordered[i]) {
			chosen = append(chosen, ordered[i])
			ordered = slices.Delete(ordered, i, i+1)
			break
		}
	}
	places := protocol.MaxHolders - taken
	for i := 0; i < len(ordered) && places > 0; i++ {
		if wants(ordered[i]) {
			chosen = append(chosen, ordered[i])
			places--
		}
	}
	return chosen
}

// IsShutdownOf reports whether a maintenance announces a shutdown of a node.
func IsShutdownOf(node string, nm *v1alpha1.NodeMaintenance) bool {
	return protocol.NodeOfShutdown(&nm.ObjectMeta, nm.Spec.NodeSelector) == node
}

// Names returns the names of the maintenances that the annotations of a node record.
func Names(node *corev1.Node) sets.Set[string] {
	return sets.KeySet(CordonedBy(node)).Union(sets.KeySet(TaintedBy(node))).Union(sets.KeySet(ReadConditions(node).Maintenances))
}

// UIDs returns the UIDs of the maintenances that the annotations of a node record.
func UIDs(node *corev1.Node) sets.Set[types.UID] {
	uids := sets.New[types.UID]()
	for _, owners := range []Owners{CordonedBy(node), TaintedBy(node)} {
		for _, uid := range owners {
			uids.Insert(uid)
		}
	}
	for _, recorded := range ReadConditions(node).Maintenances {
		uids.Insert(recorded.UID)
	}
	return uids
}

// Same reports whether two states of a node have the same annotations of this package.
func Same(a, b *corev1.Node) bool {
	return !slices.ContainsFunc(Annotations, func(key string) bool { return a.Annotations[key] != b.Annotations[key] })
}
