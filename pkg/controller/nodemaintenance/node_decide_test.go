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
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

var heldTaint = corev1.Taint{Key: maintenancev1alpha1.TaintHeld, Effect: corev1.TaintEffectPreferNoSchedule}

func TestDecideNode(t *testing.T) {
	m, other, both := owners{"m": "uid-m"}, owners{"o": "1"}, owners{"m": "uid-m", "o": "1"}
	held := []corev1.Taint{heldTaint}
	drained := []corev1.Taint{heldTaint, drainTaint}
	// node is one whose annotations record cordon and taint, in the state that goes with them.
	node := func(modify ...func(*corev1.Node)) *corev1.Node { return newNode("n", modify...) }
	heldKey := ourTaints[:1]
	for name, test := range map[string]struct {
		facts nodeFacts
		// revoked: no holder may do anything new on the node.
		revoked bool
		want    nodeChange
	}{
		"a node that nothing holds needs nothing": {facts: nodeFacts{node: node()}},
		"a node that is held is cordoned, tainted and marked in one write": {
			facts: nodeFacts{node: node(taintedWith(otherTaint)), holders: m},
			want: nodeChange{
				unschedulable: to(true), cordon: m, setCordon: true,
				taints: []corev1.Taint{otherTaint, heldTaint}, setTaints: true, taint: m, added: heldKey, setTaint: true,
			},
		},
		"a held node needs nothing more": {
			facts: nodeFacts{node: node(cordoned, taintedWith(held...)), holders: m, cordon: m, taint: m, added: heldKey},
		},
		"a foreign cordon is not marked, the taint is": {
			facts: nodeFacts{node: node(cordoned), holders: m},
			want:  nodeChange{cordon: m, taints: held, setTaints: true, taint: m, added: heldKey, setTaint: true},
		},
		"a cordon marked by another storage is not marked as ours": {
			facts: nodeFacts{node: node(cordoned), holders: m, foreignCordon: true},
			want:  nodeChange{cordon: m, taints: held, setTaints: true, taint: m, added: heldKey, setTaint: true},
		},
		"a second holder joins": {
			facts: nodeFacts{node: node(cordoned, taintedWith(held...)), holders: both, cordon: m, taint: m, added: heldKey},
			want:  nodeChange{cordon: both, setCordon: true, taint: both, added: heldKey, setTaint: true},
		},
		"a cordon that was undone is restored": {
			facts: nodeFacts{node: node(taintedWith(held...)), holders: m, cordon: m, taint: m, added: heldKey},
			want:  nodeChange{unschedulable: to(true), cordon: m, cordonRestored: true},
		},
		"it stays undone for one whose right was revoked": {
			facts: nodeFacts{node: node(taintedWith(held...)), holders: m, cordon: m, taint: m, added: heldKey}, revoked: true,
		},
		"a node whose DaemonSet pods are asked to leave gets the second taint": {
			facts: nodeFacts{node: node(cordoned, taintedWith(held...)), holders: m, cordon: m, taint: m, added: heldKey, drainsDaemonSets: true},
			want:  nodeChange{cordon: m, taints: drained, setTaints: true, taint: m, added: ourTaints, setTaint: true},
		},
		"a drain taint that was removed is restored": {
			facts: nodeFacts{node: node(cordoned, taintedWith(held...)), holders: m, cordon: m, taint: m, added: ourTaints, drainsDaemonSets: true},
			want:  nodeChange{cordon: m, taints: drained, setTaints: true, taintRestored: true},
		},
		"a taint that someone else added stays theirs": {
			facts: nodeFacts{node: node(cordoned, taintedWith(drainTaint)), holders: m, cordon: m, drainsDaemonSets: true},
			want:  nodeChange{cordon: m, taints: []corev1.Taint{drainTaint, heldTaint}, setTaints: true, taint: m, added: heldKey, setTaint: true},
		},
		"it stays when ours goes": {
			facts: nodeFacts{node: node(taintedWith(drainTaint, heldTaint)), taint: m, added: heldKey},
			want:  nodeChange{taints: []corev1.Taint{drainTaint}, setTaints: true, added: []string{}, setTaint: true},
		},
		"the last holder releases everything": {
			facts: nodeFacts{node: node(cordoned, taintedWith(otherTaint, heldTaint, drainTaint)), cordon: m, taint: m, added: ourTaints},
			want: nodeChange{
				unschedulable: to(false), setCordon: true, taints: []corev1.Taint{otherTaint}, setTaints: true, added: []string{}, setTaint: true,
			},
		},
		"a foreign cordon stays when the taint goes": {
			facts: nodeFacts{node: node(cordoned, taintedWith(held...)), taint: m, added: heldKey},
			want:  nodeChange{taints: []corev1.Taint{}, setTaints: true, added: []string{}, setTaint: true},
		},
		"one of two holders goes": {
			facts: nodeFacts{node: node(cordoned, taintedWith(held...)), holders: other, cordon: both, taint: both, added: heldKey},
			want:  nodeChange{cordon: other, setCordon: true, taint: other, added: heldKey, setTaint: true},
		},
		"the drain taint goes with the last holder that drains": {
			facts: nodeFacts{node: node(cordoned, taintedWith(drained...)), holders: other, cordon: other, taint: other, added: ourTaints},
			want:  nodeChange{cordon: other, taints: held, setTaints: true, taint: other, added: heldKey, setTaint: true},
		},
		"the marks go from a node that was made schedulable": {
			facts: nodeFacts{node: node(), cordon: m, taint: m, added: heldKey},
			want:  nodeChange{setCordon: true, added: []string{}, setTaint: true},
		},
		"what another storage marked stays when nothing of ours holds the node": {
			facts: nodeFacts{node: node(cordoned, taintedWith(held...)), foreignCordon: true, foreignTaint: true},
		},
		"a maintenance that is to make schedulable lifts a foreign cordon": {
			facts: nodeFacts{node: node(cordoned), makesSchedulable: newMaintenance("m")}, want: nodeChange{unschedulable: to(false)},
		},
		"it does not lift that of a holder": {
			facts: nodeFacts{
				node: node(cordoned, taintedWith(held...)), holders: other, cordon: other, taint: other, added: heldKey, makesSchedulable: newMaintenance("m"),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.facts.mayWork = !test.revoked
			got := decideNode(test.facts)
			for i := range got.taints {
				got.taints[i].TimeAdded = nil
			}
			if got.empty() && test.want.empty() {
				return
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestMarksOfHostileAnnotations(t *testing.T) {
	for name, test := range map[string]struct {
		value string
		want  mark
	}{
		"not JSON":                     {`who knows`, mark{}},
		"a name that nothing can have": {`{"a/b":"x"}`, mark{}},
		"such a name in our form":      {`{"storage":"s","maintenances":{"a/b":"x","..":"y","":"z"}}`, mark{Storage: "s"}},
		"a maintenance without UID":    {`{"storage":"s","maintenances":{"m":""}}`, mark{Storage: "s"}},
		"a good one beside a bad one":  {`{"storage":"s","maintenances":{"m":"1","a/b":"x"}}`, mark{Storage: "s", Maintenances: owners{"m": "1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode("n", func(node *corev1.Node) {
				node.Annotations = map[string]string{maintenancev1alpha1.AnnotationCordonedBy: test.value}
			})
			if got := markIn(node, maintenancev1alpha1.AnnotationCordonedBy); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
