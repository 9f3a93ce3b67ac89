// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/testing/is"
)

var (
	heldTaint  = corev1.Taint{Key: v1alpha1.TaintHeld, Effect: corev1.TaintEffectPreferNoSchedule}
	drainTaint = corev1.Taint{Key: "maintenance.haulout.dev/drain", Effect: "NoSchedule"}
	otherTaint = corev1.Taint{Key: "example.com/gpu", Value: "yes", Effect: "NoExecute"}
)

func taintedWith(taints ...corev1.Taint) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Spec.Taints = taints }
}

func cordonedByAgent(node *corev1.Node) {
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[v1alpha1.AnnotationCordonedByAgent] = "boot"
}

func TestDecideNode(t *testing.T) {
	m, other := marks.Owners{"m": "uid-m"}, marks.Owners{"o": "1"}
	both := marks.Owners{"m": "uid-m", "o": "1"}
	held := []corev1.Taint{heldTaint}
	drained := []corev1.Taint{heldTaint, drainTaint}
	node := func(modify ...func(*corev1.Node)) *corev1.Node { return newNode("n", modify...) }
	tainted := taintedWith(heldTaint)
	marked := func() *corev1.Node { return node(cordoned, tainted) }
	heldKey := nodestate.TaintKeys[:1]
	for name, test := range map[string]struct {
		facts facts
		// revoked is set if no user who requested one of the maintenances may still delete the
		// node.
		revoked bool
		want    nodeChange
	}{
		"a node that is not held is not changed": {facts: facts{node: node()}},
		"a held node gets the cordon, the taint and both annotations in one write": {
			facts: facts{node: node(taintedWith(otherTaint)), holders: m},
			want: nodeChange{
				unschedulable: ptr.To(true), cordon: m, setCordon: true, taints: []corev1.Taint{otherTaint, heldTaint},
				setTaints: true, taint: m, added: heldKey, setTaint: true,
			},
		},
		"a held node with its cordon and its taint is not changed": {
			facts: facts{node: marked(), holders: m, cordon: m, taint: m, added: heldKey},
		},
		"the cordon of another client is not recorded, the taint is": {
			facts: facts{node: node(cordoned), holders: m},
			want:  nodeChange{cordon: m, taints: held, setTaints: true, taint: m, added: heldKey, setTaint: true},
		},
		"a cordon that another storage has recorded is not recorded for ours": {
			facts: facts{node: node(cordoned), holders: m, foreignCordon: true},
			want:  nodeChange{cordon: m, taints: held, setTaints: true, taint: m, added: heldKey, setTaint: true},
		},
		"the cordon of the node's agent becomes ours": {
			facts: facts{node: node(cordoned, cordonedByAgent, tainted), holders: m, taint: m, added: heldKey},
			want:  nodeChange{cordon: m, setCordon: true, takesOver: true},
		},
		"the cordon of the node's agent is not taken over for a requester without the right": {
			facts:   facts{node: node(cordoned, cordonedByAgent, tainted), holders: m, taint: m, added: heldKey},
			revoked: true,
		},
		"the cordon of the node's agent stays on a node that is not held": {
			facts: facts{node: node(cordoned, cordonedByAgent)},
		},
		"a second holder is added to both annotations": {
			facts: facts{node: marked(), holders: both, cordon: m, taint: m, added: heldKey},
			want:  nodeChange{cordon: both, setCordon: true, taint: both, added: heldKey, setTaint: true},
		},
		"a cordon that another client has removed is restored": {
			facts: facts{node: node(tainted), holders: m, cordon: m, taint: m, added: heldKey},
			want:  nodeChange{unschedulable: ptr.To(true), cordon: m, cordonRestored: true},
		},
		"the cordon is not restored for a requester without the right": {
			facts: facts{node: node(tainted), holders: m, cordon: m, taint: m, added: heldKey}, revoked: true,
		},
		"a node whose DaemonSet pods are drained gets the drain taint": {
			facts: facts{node: marked(), holders: m, cordon: m, taint: m, added: heldKey, drainsDaemonSets: true},
			want: nodeChange{
				cordon: m, taints: drained, setTaints: true, taint: m, added: nodestate.TaintKeys, setTaint: true,
			},
		},
		"a drain taint that another client has removed is restored": {
			facts: facts{
				node: marked(), holders: m, cordon: m, taint: m, added: nodestate.TaintKeys, drainsDaemonSets: true,
			},
			want: nodeChange{cordon: m, taints: drained, setTaints: true, taintRestored: true},
		},
		"a drain taint that another client has added is not recorded as ours": {
			facts: facts{node: node(cordoned, taintedWith(drainTaint)), holders: m, cordon: m, drainsDaemonSets: true},
			want: nodeChange{
				cordon: m, taints: []corev1.Taint{drainTaint, heldTaint}, setTaints: true, taint: m, added: heldKey,
				setTaint: true,
			},
		},
		"the drain taint of another client stays when ours is removed": {
			facts: facts{node: node(taintedWith(drainTaint, heldTaint)), taint: m, added: heldKey},
			want:  nodeChange{taints: []corev1.Taint{drainTaint}, setTaints: true, added: []string{}, setTaint: true},
		},
		"the cordon and our taints are removed with the last holder": {
			facts: facts{
				node: node(cordoned, taintedWith(otherTaint, heldTaint, drainTaint)), cordon: m, taint: m,
				added: nodestate.TaintKeys,
			},
			want: nodeChange{
				unschedulable: ptr.To(false), setCordon: true, taints: []corev1.Taint{otherTaint}, setTaints: true,
				added: []string{}, setTaint: true,
			},
		},
		"the cordon of another client stays when our taint is removed": {
			facts: facts{node: marked(), taint: m, added: heldKey},
			want:  nodeChange{taints: []corev1.Taint{}, setTaints: true, added: []string{}, setTaint: true},
		},
		"one of two holders is removed from both annotations": {
			facts: facts{node: marked(), holders: other, cordon: both, taint: both, added: heldKey},
			want:  nodeChange{cordon: other, setCordon: true, taint: other, added: heldKey, setTaint: true},
		},
		"the drain taint is removed with the last holder that drains DaemonSet pods": {
			facts: facts{
				node: node(cordoned, taintedWith(drained...)), holders: other, cordon: other, taint: other,
				added: nodestate.TaintKeys,
			},
			want: nodeChange{
				cordon: other, taints: held, setTaints: true, taint: other, added: heldKey, setTaint: true,
			},
		},
		"the drain taint is removed while a node whose work is done waits for its release": {
			facts: facts{
				node: node(cordoned, taintedWith(drained...)), holders: m, cordon: m, taint: m, added: nodestate.TaintKeys,
				hands: holds.Hands{State: v1alpha1.NodeTaskDone},
			},
			want: nodeChange{cordon: m, taints: held, setTaints: true, taint: m, added: heldKey, setTaint: true},
		},
		"the drain taint is removed when the worker has done its work, and the node is not Ready": {
			facts: facts{
				node: node(cordoned, taintedWith(drained...)), holders: m, cordon: m, taint: m, added: nodestate.TaintKeys,
				hands: holds.Hands{State: v1alpha1.NodeTaskVerifying},
			},
			want: nodeChange{cordon: m, taints: held, setTaints: true, taint: m, added: heldKey, setTaint: true},
		},
		"the annotations are removed from a node that was made schedulable": {
			facts: facts{node: node(), cordon: m, taint: m, added: heldKey},
			want:  nodeChange{setCordon: true, added: []string{}, setTaint: true},
		},
		"the cordon and the taint of another storage stay on a node that ours does not hold": {
			facts: facts{node: marked(), foreignCordon: true, foreignTaint: true},
		},
		"a maintenance that makes its nodes schedulable removes the cordon of another client": {
			facts: facts{node: node(cordoned), makesSchedulable: &v1alpha1.NodeMaintenance{}},
			want:  nodeChange{unschedulable: ptr.To(false)},
		},
		"a maintenance that makes its nodes schedulable does not remove the cordon of a holder": {
			facts: facts{
				node: marked(), holders: other, cordon: other, taint: other, added: heldKey,
				makesSchedulable: &v1alpha1.NodeMaintenance{},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.facts.mayWork = !test.revoked
			got := decide(test.facts)
			for i := range got.taints {
				got.taints[i].TimeAdded = nil
			}
			if got.empty() && test.want.empty() {
				return
			}
			is.True(t, reflect.DeepEqual(got, test.want), "got %+v, want %+v", got, test.want)
		})
	}
}
