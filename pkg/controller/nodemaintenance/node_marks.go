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
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// nodesByOwner is the index of nodes by the UIDs of the maintenances that their annotations name.
const nodesByOwner = "haulout.dev/nodes-by-cordon-owner"

// maxMarkedMaintenances is how many maintenances of an annotation are read. Kubelets may annotate
// their own node, so the annotation is input.
const maxMarkedMaintenances = 50

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

// owners are the maintenances that a cordon or a taint is for, UIDs by name.
type owners map[string]types.UID

func (o owners) has(nm *maintenancev1alpha1.NodeMaintenance) bool {
	return o[nm.Name] == nm.UID && nm.UID != ""
}

// mark is the value of an annotation that records what the server did to a node: for which
// maintenances, and of which storage they are. A server undoes only what has its own storage's ID:
// another storage does not know these maintenances, so to it they all seem gone.
type mark struct {
	Storage      string `json:"storage"`
	Maintenances owners `json:"maintenances"`
	// Taints are the keys of the taints that the server has added. A taint of ours that is not
	// among them was added by someone else and stays.
	Taints []string `json:"taints,omitempty"`
}

// markIn reads an annotation of a node. One that cannot be read counts as absent, and so do names
// that no maintenance can have: what it is about is then taken for the work of others.
func markIn(node *corev1.Node, annotation string) mark {
	value, ok := node.Annotations[annotation]
	if !ok {
		return mark{}
	}
	var m mark
	if err := json.Unmarshal([]byte(value), &m); err != nil {
		return mark{}
	}
	maps.DeleteFunc(m.Maintenances, func(name string, uid types.UID) bool {
		return uid == "" || len(validation.IsDNS1123Subdomain(name)) > 0
	})
	if len(m.Maintenances) > maxMarkedMaintenances {
		for _, name := range slices.Sorted(maps.Keys(m.Maintenances))[maxMarkedMaintenances:] {
			delete(m.Maintenances, name)
		}
	}
	if len(m.Maintenances) == 0 {
		return mark{Storage: m.Storage}
	}
	return m
}

// ownersOf returns the maintenances that the cordon of a node is for, of whatever storage.
func ownersOf(node *corev1.Node) owners {
	return markIn(node, maintenancev1alpha1.AnnotationCordonedBy).Maintenances
}

// taintersOf returns the maintenances that our taints on a node are for, of whatever storage.
func taintersOf(node *corev1.Node) owners {
	return markIn(node, maintenancev1alpha1.AnnotationTaintedBy).Maintenances
}

// markText is the value of an annotation, nil to remove it.
func markText(storage string, o owners, taints []string) any {
	if len(o) == 0 {
		return nil
	}
	text, err := json.Marshal(mark{Storage: storage, Maintenances: o, Taints: taints})
	if err != nil {
		panic(err) // strings only
	}
	return string(text)
}
