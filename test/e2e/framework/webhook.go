// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/test/internal/webhook"
)

// Webhook has a validating webhook decide about requests in a namespace, until the test ends. What
// decide returns is the answer of a denied request; nil allows it. API servers know of the webhook
// a moment later: the caller waits until a request is denied.
func (c *Cluster) Webhook(
	tb testing.TB, namespace string, rule admissionregistrationv1.RuleWithOperations,
	decide func(*admissionv1.AdmissionRequest) *metav1.Status,
) {
	tb.Helper()
	stop, err := webhook.Webhook{Name: Name("e2e"), Namespace: namespace, Rule: rule, Decide: decide}.
		Start(tb.Context(), c.As(tb).Kube)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := stop(background()); err != nil {
			tb.Error(err)
		}
	})
}
