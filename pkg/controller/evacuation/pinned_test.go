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

package evacuation

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// volumeOn is a local PersistentVolume on a node, with the claim data that has it.
func volumeOn(node string) []runtime.Object {
	return []runtime.Object{
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "disk"},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "disk"},
			Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
				}}},
			}}},
		},
	}
}

// TestPodThatCanOnlyRunOnAHeldNode covers the missing member of a StatefulSet: it is on no node,
// and the maintenance holds the only node that it can run on.
func TestPodThatCanOnlyRunOnAHeldNode(t *testing.T) {
	claiming := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	}
	selecting := func(node string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node} }
	}
	named := func(node *corev1.Node) *corev1.Node {
		node.Labels = map[string]string{corev1.LabelHostname: node.Name}
		return node
	}
	for name, tt := range map[string]struct {
		limit   func(*corev1.Pod)
		volumes []runtime.Object
		want    string
	}{
		"its volume is on a held node":      {claiming, volumeOn("node-8"), "BudgetPodsCordoned"},
		"its volume is on another node":     {claiming, volumeOn("node-9"), "UnhealthyPodsHoldBudget"},
		"it selects a held node":            {selecting("node-8"), nil, "BudgetPodsCordoned"},
		"it selects another node":           {selecting("node-9"), nil, "UnhealthyPodsHoldBudget"},
		"it may run on any node":            {func(*corev1.Pod) {}, nil, "UnhealthyPodsHoldBudget"},
		"its claim does not exist":          {claiming, nil, "UnhealthyPodsHoldBudget"},
		"it selects a node that is unknown": {selecting("node-99"), nil, "UnhealthyPodsHoldBudget"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := named(cordoned(testNode)), named(cordoned("node-8"))
				free := named(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-9", UID: "uid-node-9"}})
				missing := podOn("web-2", "web", "", corev1.ConditionFalse)
				missing.Status.Phase = corev1.PodPending
				missing.Status.Conditions = append(missing.Status.Conditions, corev1.PodCondition{
					Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
				})
				tt.limit(missing)
				objects := append([]runtime.Object{newPod(labelled("web")), here, there, free, missing, budgetOf("web")}, tt.volumes...)
				w := newWorld(t, 0, newEvacuation(), objects...)
				w.host.answer(refuse)
				w.must(w.api.client.Tracker().Add(asking("alpha", here)))
				w.must(w.api.client.Tracker().Add(asking("beta", there)))
				w.until("the condition has the reason "+tt.want, time.Second, hasReason(maintenancev1alpha1.ConditionBlocked, tt.want))
				message := meta.FindStatusCondition(w.get().Status.Conditions, maintenancev1alpha1.ConditionBlocked).Message
				hint := "work on node-8 now and release it alone, by taking it out of the node selector of NodeMaintenance beta"
				if held := tt.want == "BudgetPodsCordoned"; strings.Contains(message, hint) != held {
					t.Errorf("got message %q, want %q in it: %v", message, hint, held)
				}
			})
		})
	}
}
