// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
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

// TestPodsInTheWayAreNamedWhenADrainBegins drains pods that cannot leave, that will not come back
// and that are left running. Admission does not look at pods: the controller names them when the
// drain begins.
func TestPodsInTheWayAreNamedWhenADrainBegins(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	kube := cluster.As(t).Kube
	cluster.Deployment(t, namespace, "stuck", pool, 3, framework.WithSurge, func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
			MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1)),
		}
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
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: ptr.To(true)},
		}
	})
	daemonSet(t, namespace, pool, "agent", len(nodes), tolerant)

	var warnings received
	config := cluster.As(t).Config
	config.WarningHandler = &warnings
	maintenances := clientset.NewForConfigOrDie(config).MaintenanceV1alpha1().NodeMaintenances()
	nm := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle)
	if _, err := maintenances.Create(t.Context(), nm,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	cluster.Create(t, nm)
	if _, err := maintenances.Patch(t.Context(), nm.Name, types.MergePatchType, []byte(`{"spec":{"stage":"Drain"}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := warnings.take(); len(got) > 0 {
		t.Errorf("admission, which lists no pods, warns of\n%s", strings.Join(got, "\n"))
	}
	framework.Eventually(
		t, "an event on the maintenance names what is in the way",
		func(ctx context.Context) (bool, error) {
			events, err := kube.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
				FieldSelector: "involvedObject.name=" + nm.Name,
			})
			if err != nil {
				return false, err
			}
			var texts []string
			for i := range events.Items {
				if text := events.Items[i].Message; strings.Contains(text, namespace+"/stuck") {
					return true, nil
				}
				texts = append(texts, events.Items[i].Reason+": "+events.Items[i].Message)
			}
			return false, fmt.Errorf("events are %q", texts)
		},
	)
}
