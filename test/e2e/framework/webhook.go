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
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Webhook has a validating webhook decide about requests in a namespace, until the test ends. What
// decide returns is the answer of a denied request; nil allows it. API servers know of the webhook
// a moment later: the caller waits until a request is denied.
func (c *Cluster) Webhook(
	tb testing.TB, namespace string, rule admissionregistrationv1.RuleWithOperations,
	decide func(*admissionv1.AdmissionRequest) *metav1.Status,
) {
	tb.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "the body is no AdmissionReview", http.StatusBadRequest)
			return
		}
		denial := decide(review.Request)
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: denial == nil, Result: denial,
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		// The API server reports an answer that did not reach it.
		_ = json.NewEncoder(w).Encode(&review)
	}))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	webhooks := c.As(tb).Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	name := Name("e2e")
	_, err := webhooks.Create(tb.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:         name + ".e2e.haulout.dev",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &server.URL, CABundle: ca},
			Rules:        []admissionregistrationv1.RuleWithOperations{rule},
			NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: namespace},
			},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			// Requests that race with the end of the test are not to fail.
			FailurePolicy: ptr.To(admissionregistrationv1.Ignore),
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		server.Close()
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := webhooks.Delete(background(), name, metav1.DeleteOptions{}); err != nil {
			tb.Error(err)
		}
		server.Close()
	})
}
