// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/evacuator"
	"haulout.dev/haulout/pkg/host/evict"
	"haulout.dev/haulout/pkg/testing/must"
)

// Warnings collects the warnings of API servers.
type Warnings struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *Warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// Take returns the warnings since the last call.
func (w *Warnings) Take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.texts
	w.texts = nil
	return taken
}

// Evictor evicts pods once for each call, as the administrator, and collects the warnings.
func (c *Cluster) Evictor(tb testing.TB) (evict.Client, *Warnings) {
	tb.Helper()
	config, warnings := rest.CopyConfig(c.As(tb).Config), &Warnings{}
	config.WarningHandler = warnings
	return evict.Client{Host: kubernetes.NewForConfigOrDie(config)}, warnings
}

// InterceptEvictions installs the shipped webhook for the evictions in some namespaces until the
// test ends. It waits until kube-apiserver calls the webhook, with dry runs for a pod that it
// creates on a node of the pool and deletes.
func (c *Cluster) InterceptEvictions(tb testing.TB, pool, node string, namespaces ...string) {
	tb.Helper()
	content := must.Get(os.ReadFile(filepath.Join(c.root, "artifacts", "eviction-interception", "webhook.yaml")))(tb)
	var shipped admissionregistrationv1.ValidatingWebhookConfiguration
	must.Do(tb, yaml.UnmarshalStrict(content, &shipped))
	shipped.Name = Name("interception")
	selector := shipped.Webhooks[0].NamespaceSelector
	selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
		Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: namespaces,
	})
	webhooks := c.As(tb).Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	must.Get(webhooks.Create(tb.Context(), &shipped, metav1.CreateOptions{}))(tb)
	tb.Cleanup(func() {
		if err := webhooks.Delete(background(), shipped.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			tb.Error(err)
		}
	})
	namespace := namespaces[0]
	pod := c.PodOn(tb, namespace, "interception-probe", pool, node, func(p *corev1.Pod) {
		p.Annotations = map[string]string{evacuator.AnnotationKey("probe.example.com"): "20000"}
	})
	client, warnings := c.Evictor(tb)
	Eventually(tb, "kube-apiserver calls the webhook", func(ctx context.Context) (bool, error) {
		err := client.Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
		})
		return len(warnings.Take()) > 0, err
	})
	pods := c.As(tb).Pods(namespace)
	must.Do(tb, pods.Delete(tb.Context(), pod.Name, metav1.DeleteOptions{}))
	UntilGone(tb, "the probe is gone", pods, pod.Name)
}

// IsIntercepted reports whether an eviction was refused because its pod is being evacuated.
func IsIntercepted(err error) bool {
	return apierrors.IsTooManyRequests(err) && apierrors.HasStatusCause(err, "Evacuation")
}
