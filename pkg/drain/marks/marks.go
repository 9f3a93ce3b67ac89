// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package marks reads and writes the annotations in which the server records what it did to a
// node, and for which maintenances. The controller of nodes writes them, that of maintenances reads
// them: a maintenance is complete when no node names it any more. A kubelet may annotate its own
// node, so all of it is input.
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

// Annotations are the keys of the annotations.
var Annotations = []string{v1alpha1.AnnotationCordonedBy, v1alpha1.AnnotationTaintedBy, v1alpha1.AnnotationConditionsBy}

// MaxMaintenances is how many maintenances of an annotation are read: as many as may hold a node,
// and the one of its own shutdown.
const MaxMaintenances = protocol.MaxHolders + 1

// Owners are the maintenances that a cordon or a taint is for, UIDs by name.
type Owners map[string]types.UID

// Has reports whether a maintenance is among them.
func (o Owners) Has(nm *v1alpha1.NodeMaintenance) bool {
	return o[nm.Name] == nm.UID && nm.UID != ""
}

// HasAny reports whether one of others is among them.
func (o Owners) HasAny(others Owners) bool {
	for name, uid := range others {
		if o[name] == uid {
			return true
		}
	}
	return false
}

// Mark is the value of the annotation about the cordon or the taints of a node. A server undoes
// only what has its own storage's ID: another storage does not know these maintenances, so to its
// server they all seem deleted.
type Mark struct {
	Storage      string `json:"storage"`
	Maintenances Owners `json:"maintenances"`
	// Taints are the keys of the taints that the server has added. A taint of ours that is not
	// among them was added by another client and stays.
	Taints []string `json:"taints,omitempty"`
	// OwnPods are the pods of the server that were on the node when it was held. They leave the
	// node once; a pod of the server that is not among them has come back.
	OwnPods []types.UID `json:"ownPods,omitempty"`
}

// Read reads the annotation about the cordon or the taints of a node. One that cannot be read
// counts as absent, and so do names that no maintenance can have: what it is about is then taken
// for the work of another client.
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

// Encode returns the value of the annotation, nil to remove it.
func (m Mark) Encode() any {
	if len(m.Maintenances) == 0 {
		return nil
	}
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings only
	}
	return string(text)
}

// CordonedBy returns the maintenances that the cordon of a node is for, of whatever storage.
func CordonedBy(node *corev1.Node) Owners {
	return Read(node, v1alpha1.AnnotationCordonedBy).Maintenances
}

// TaintedBy returns the maintenances that our taints on a node are for, of whatever storage.
func TaintedBy(node *corev1.Node) Owners {
	return Read(node, v1alpha1.AnnotationTaintedBy).Maintenances
}

// Holds reports whether the cordon or the taints of a node are for a maintenance.
func Holds(node *corev1.Node, nm *v1alpha1.NodeMaintenance) bool {
	return CordonedBy(node).Has(nm) || TaintedBy(node).Has(nm)
}

// HoldersOf returns the maintenances that the cordon and the taints of a node are for, of whatever
// storage.
func HoldersOf(node *corev1.Node) Owners {
	holders := CordonedBy(node)
	if holders == nil {
		holders = Owners{}
	}
	maps.Copy(holders, TaintedBy(node))
	return holders
}

// Choose returns the maintenances that hold a node, of those that select it and want to hold it:
// the oldest, as many as there are places, and the latest shutdown of the node itself, which needs
// none. taken is how many places others have. wants is asked about no more of them than needed; nil
// means that all want to.
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

// Names returns the names of the maintenances that the annotations of a node name.
func Names(node *corev1.Node) sets.Set[string] {
	return sets.KeySet(CordonedBy(node)).Union(sets.KeySet(TaintedBy(node))).Union(sets.KeySet(ReadConditions(node).Maintenances))
}

// UIDs returns the UIDs of the maintenances that the annotations of a node name.
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

// Same reports whether two states of a node have the same annotations of ours.
func Same(a, b *corev1.Node) bool {
	return !slices.ContainsFunc(Annotations, func(key string) bool { return a.Annotations[key] != b.Annotations[key] })
}
