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

package e2e

import (
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/test/e2e/framework"
)

// received collects the warnings of a client.
type received struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (r *received) HandleWarningHeader(_ int, _, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, text)
}

// take returns the warnings since the last call.
func (r *received) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	texts := r.texts
	r.texts = nil
	return texts
}

func TestWarningsOfPods(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	kube := cluster.As(t).Kube
	cluster.Deployment(t, namespace, "stuck", pool, 3, framework.WithSurge, func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1))}
	})
	cluster.Deployment(t, namespace, "replaced", pool, 2, framework.WithSurge)
	cluster.Deployment(t, namespace, "fine", pool, 2)
	cluster.Budget(t, namespace, "stuck", 0)
	cluster.Budget(t, namespace, "replaced", 0)
	cluster.Budget(t, namespace, "fine", 1)
	twice := cluster.PodOn(t, namespace, "twice", pool, nodes[0])
	for _, name := range []string{"a", "b"} {
		if _, err := kube.PolicyV1().PodDisruptionBudgets(namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: twice.Labels}, MaxUnavailable: ptr.To(intstr.FromInt32(1)),
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	node, err := kube.CoreV1().Nodes().Get(t.Context(), nodes[1], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cluster.PodOn(t, namespace, "static", pool, nodes[1], func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: ptr.To(true)}}
	})
	daemonSet(t, namespace, pool, "agent", len(nodes), tolerant)

	var warnings received
	config := cluster.As(t).Config
	config.WarningHandler = &warnings
	maintenances := clientset.NewForConfigOrDie(config).MaintenanceV1alpha1().NodeMaintenances()
	want := []string{
		"pods that cannot be evicted: 3; never allowed by PodDisruptionBudget " + namespace + "/stuck (maxUnavailable 0)",
		"nor are they replaced before they leave: their Deployment has maxSurge 0",
		"pods that cannot be evicted: 1; more than one PodDisruptionBudget selects each, above all " + namespace + "/a, " + namespace + "/b",
		"pods that have no controller and will not come back once evicted: 1",
		"static pods that are left running, as no agent on their nodes can stop them: 1",
		"DaemonSet pods that are left running, as they tolerate the drain taint and would come back: 2",
	}
	expect := func(what string, want []string) {
		t.Helper()
		if got := warnings.take(); !slices.Equal(got, want) {
			t.Errorf("%s warns of\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}

	nm := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle)
	if _, err := maintenances.Create(t.Context(), nm, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	expect("a dry run", want)
	cluster.Create(t, nm)
	patch := func(body string) {
		t.Helper()
		if _, err := maintenances.Patch(t.Context(), nm.Name, types.MergePatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"spec":{"reason":"another"}}`)
	expect("a change of the reason", nil)
	patch(`{"spec":{"stage":"Cordon"}}`)
	expect("a change of the stage", want)
	_, stderr, err := cluster.Kubectl(t, "", "patch", "nodemaintenance", nm.Name, "--type=merge", "-p", `{"spec":{"stage":"Complete"}}`)
	if err != nil || strings.Contains(stderr, "Warning") {
		t.Errorf("completion warns of %q (%v)", stderr, err)
	}
}
