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
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func ready(node *corev1.Node) {
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
}

func tainted(effect corev1.TaintEffect) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: effect}} }
}

func inZone(zone string) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Labels["zone"] = zone }
}

func ofServer(pod *corev1.Pod) {
	yes := true
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "haulout", UID: "rs", Controller: &yes}}
}

// onlyInZone binds a pod to a volume that is in one zone.
func onlyInZone(zone string) (func(*corev1.Pod), *corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{
		Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
		}}},
	}}}
	return func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	}, claim, pv
}

func TestOwnPodsLeaveLastOfTheirWave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t,
			newNode("one"), newNode("two"), newNode("away", inPool("green"), ready), newMaintenance("m", planning(upTo(1000), upTo(2000))),
			newPod("haulout-1", "one", 500, ofServer), newPod("haulout-2", "two", 500, ofServer), newPod("web", "two", 700), newPod("late", "one", 2000))
		f.step("m")
		f.wantEvacuating("web")
		f.deletePod("web")
		f.step("m")
		f.wantEvacuating("haulout-1", "haulout-2")
		f.deletePod("haulout-1")
		f.deletePod("haulout-2")
		f.step("m")
		f.wantEvacuating("late")
	})
}

func TestOwnPodsStayWhereNoOtherNodeWouldTakeThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newNode("away", inPool("green")), newMaintenance("m"), newPod("haulout-1", "one", 0, ofServer), newPod("web", "one", 0))
		f.step("m")
		f.wantEvacuating("web")
		f.deletePod("web")
		f.step("m")
		f.wait(settle)
		f.step("m")
		f.wantDrained("m", metav1.ConditionTrue, maintenancev1alpha1.ReasonDrainCompleteWithPodsLeft)
		if left := f.nodeStatus("m", "one").PodsLeft; left != 1 {
			t.Errorf("%d pods left, want 1", left)
		}
		f.updateNode("away", ready)
		f.cached()
		f.wantMarked("m")
		f.step("m")
		f.wantEvacuating("haulout-1")
		f.wantDrained("m", metav1.ConditionFalse, maintenancev1alpha1.ReasonDrainInProgress)
	})
}

func TestWhichNodesWouldTakeAPodOfOurs(t *testing.T) {
	inZoneA, claim, pv := onlyInZone("a")
	tolerant := func(pod *corev1.Pod) {
		pod.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
	}
	picky := func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"zone": "a"} }
	for name, test := range map[string]struct {
		node *corev1.Node
		pod  func(*corev1.Pod)
		want bool
	}{
		"a ready one":                          {newNode("n", inPool("green"), ready), nil, true},
		"not one that is not ready":            {newNode("n", inPool("green")), nil, false},
		"not one that is cordoned":             {newNode("n", inPool("green"), ready, cordoned), nil, false},
		"not one that a maintenance holds":     {newNode("n", ready), nil, false},
		"not one with a taint":                 {newNode("n", inPool("green"), ready, tainted(corev1.TaintEffectNoSchedule)), nil, false},
		"one with a taint that is tolerated":   {newNode("n", inPool("green"), ready, tainted(corev1.TaintEffectNoSchedule)), tolerant, true},
		"one with a taint that only prefers":   {newNode("n", inPool("green"), ready, tainted(corev1.TaintEffectPreferNoSchedule)), nil, true},
		"not one that the pod does not want":   {newNode("n", inPool("green"), ready, inZone("b")), picky, false},
		"one that the pod wants":               {newNode("n", inPool("green"), ready, inZone("a")), picky, true},
		"not one that its volume cannot reach": {newNode("n", inPool("green"), ready, inZone("b")), inZoneA, false},
		"one that its volume can reach":        {newNode("n", inPool("green"), ready, inZone("a")), inZoneA, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := newPod("haulout-1", "home", 0, ofServer)
				if test.pod != nil {
					test.pod(pod)
				}
				home := newNode("home")
				f := newFixture(t, home, test.node, newMaintenance("m"), pod, claim.DeepCopy(), pv.DeepCopy())
				if got, err := f.anotherTakes(t.Context(), home, pod); err != nil || got != test.want {
					t.Errorf("got %t, %v, want %t", got, err, test.want)
				}
			})
		})
	}
}
