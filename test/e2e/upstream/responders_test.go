// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drainer"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

const flush = "app.example.com/flush"

// TestRespondersAreNotAsked drains a pod that names a responder. Its owner and the user who drains
// learn that no program asks the responder, and the pod leaves.
func TestRespondersAreNotAsked(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	admin := cluster.As(t)
	plain := cluster.PodOn(t, namespace, "plain", pool, nodes[0])
	flushed := cluster.PodOn(t, namespace, "flushed", pool, nodes[0], func(p *corev1.Pod) {
		p.Spec.EvictionResponders = []corev1.EvictionResponder{{Name: flush, Priority: new(int32(5000))}}
	})
	must.True(t, len(flushed.Spec.EvictionResponders) == 1, "the API server has dropped the field evictionResponders")

	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle))
	preview := must.Get(admin.Maintenances().GetPreview(t.Context(), nm.Name, metav1.GetOptions{}))(t)
	var unasked []string
	for _, b := range preview.Blockers {
		if b.Effect == v1alpha1.PreviewEffectUnasked && b.Reason == v1alpha1.ReasonEvictionResponders && strings.Contains(b.Message, flush) {
			for _, pod := range b.Pods {
				unasked = append(unasked, pod.Name)
			}
		}
	}
	is.Slices(t, unasked, []string{flushed.Name}, "the pods of the preview")

	is.True(t, strings.Contains(requestAsDryRun(t, flushed), flush), "a request for the pod has no warning")
	is.True(t, !strings.Contains(requestAsDryRun(t, plain), "responders"), "a request for a pod without responders has the warning")

	d := &drainer.Drainer{Client: admin.Haulout}
	draining := must.Get(d.Drain(t.Context(), nm))(t)
	ctx, cancel := context.WithTimeout(t.Context(), framework.Timeout)
	defer cancel()
	must.Get(d.Wait(ctx, draining, drainer.Drained))(t)
	_, err := admin.Pods(namespace).Get(t.Context(), flushed.Name, metav1.GetOptions{})
	is.True(t, apierrors.IsNotFound(err), "pod %s is there after the drain (error %v)", flushed.Name, err)
	framework.Eventually(t, "one event is about the pod with a responder", func(ctx context.Context) (bool, error) {
		events, err := admin.Kube.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		var about []string
		for i := range events.Items {
			if e := &events.Items[i]; e.Reason == "EvictionRespondersNotAsked" {
				is.True(t, e.Series == nil, "the event about pod %s was repeated", e.Regarding.Name)
				about = append(about, e.Regarding.Name)
			}
		}
		return slices.Equal(about, []string{flushed.Name}), nil
	})
}

// requestAsDryRun returns the warnings of a request for the evacuation of a pod, which is not
// stored.
func requestAsDryRun(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	manifest := fmt.Sprintf(`{apiVersion: maintenance.haulout.dev/v1alpha1, kind: Evacuation, metadata: {namespace: %s, name: %s, finalizers: [%s]},
spec: {podRef: {name: %s, uid: %s}}}`, pod.Namespace, protocol.CanonicalName(pod.Name, pod.UID), protocol.FinalizerInstigatorManual, pod.Name, pod.UID)
	_, warnings, err := cluster.Kubectl(t, manifest, "create", "--dry-run=server", "--filename=-")
	must.True(t, err == nil, "the request fails: %v\n%s", err, warnings)
	return warnings
}
