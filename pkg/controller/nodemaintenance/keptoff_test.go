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
	"strings"
	"testing"
	"testing/synctest"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func newDaemonSet(name, priorityClass string, modify ...func(*corev1.PodSpec)) *appsv1.DaemonSet {
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("ds-" + name), Generation: 1}}
	ds.Spec.Template.Spec.PriorityClassName = priorityClass
	for _, m := range modify {
		m(&ds.Spec.Template.Spec)
	}
	return ds
}

func of(ds *appsv1.DaemonSet) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		ofDaemonSet(p)
		p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = ds.Name, ds.UID
	}
}

func newPriorityClass(name string, value int32) *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
}

// TestDaemonSetsThatLoseAPodBeforeTheirTurnAreNamed has a pod of a later wave die while its node is
// tainted.
func TestDaemonSetsThatLoseAPodBeforeTheirTurnAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, cni, other := newDaemonSet("logger", ""), newDaemonSet("cni", "critical"), newDaemonSet("gpu", "critical", onNodesWith("gpu", "yes"))
		f := newTaintFixture(t, newNode("one"), newNode("two"), newMaintenance("m"), newPriorityClass("critical", 2000001000), logger, cni, other,
			newPod("app", "one", 0), newPod("logger-1", "one", 0, of(logger)), newPod("cni-1", "one", 2000001000, of(cni)), newPod("cni-2", "two", 2000001000, of(cni)))
		message := func() string {
			t.Helper()
			f.wait(settle)
			f.step("m")
			return f.nodeStatus("m", "one").DrainMessage
		}
		if got := message(); got != "Evacuating" {
			t.Errorf("before the taint: %q", got)
		}
		f.deletePod("app")
		if got := message(); got != "Evacuating" {
			t.Errorf("while all are there: %q", got)
		}
		f.deletePod("cni-1")
		const want = "Evacuating; 1 DaemonSet without a pod here, which the drain's taint keeps away before its turn: default/cni"
		if got := message(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		f.restart()
		if got := message(); got != want {
			t.Errorf("after a restart: %q, want %q", got, want)
		}
		if got := f.nodeStatus("m", "two").DrainMessage; strings.Contains(got, "cni") {
			t.Errorf("of the node that has its pod it says %q", got)
		}
		// The turn of the others comes, and with it the wave that the lost one is in.
		f.deletePod("logger-1")
		if got := message(); strings.Contains(got, "cni") {
			t.Errorf("when its turn has come: %q", got)
		}
	})
}

func onNodesWith(key, value string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) { spec.NodeSelector = map[string]string{key: value} }
}

func tolerating(key string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
}

func TestIsKeptOff(t *testing.T) {
	unschedulable := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	network := corev1.Taint{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule}
	soft := corev1.Taint{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}
	for name, test := range map[string]struct {
		ds   *appsv1.DaemonSet
		node *corev1.Node
		want bool
	}{
		"one that wants every node":               {newDaemonSet("a", ""), newNode("one", taintedWith(drainTaint)), true},
		"before the node is tainted":              {newDaemonSet("a", ""), newNode("one"), true},
		"one that tolerates our taint comes back": {newDaemonSet("a", "", tolerating(maintenancev1alpha1.TaintDrain)), newNode("one"), false},
		"one that tolerates everything, too":      {newDaemonSet("a", "", tolerating("")), newNode("one"), false},
		"one of other nodes":                      {newDaemonSet("a", "", onNodesWith("gpu", "yes")), newNode("one"), false},
		"one that another taint keeps off":        {newDaemonSet("a", ""), newNode("one", taintedWith(otherTaint)), false},
		"unless it tolerates it":                  {newDaemonSet("a", "", tolerating(otherTaint.Key)), newNode("one", taintedWith(otherTaint)), true},
		"a cordon keeps no DaemonSet off":         {newDaemonSet("a", ""), newNode("one", taintedWith(unschedulable)), true},
		"a mere preference does not":              {newDaemonSet("a", ""), newNode("one", taintedWith(soft)), true},
		"a missing network does":                  {newDaemonSet("a", ""), newNode("one", taintedWith(network)), false},
		"but not one that has that of its host":   {newDaemonSet("a", "", func(spec *corev1.PodSpec) { spec.HostNetwork = true }), newNode("one", taintedWith(network)), true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isKeptOff(test.ds, test.node); got != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
