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
