// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package webhook provides a validating webhook for tests and measurements.
package webhook

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// Webhook is a validating webhook.
type Webhook struct {
	// Name is the name of the ValidatingWebhookConfiguration.
	Name string
	// Namespace is the namespace of the requests.
	Namespace string
	// Rule selects the requests.
	Rule admissionregistrationv1.RuleWithOperations
	// Decide returns the response to a denied request, or nil to allow the request.
	Decide func(*admissionv1.AdmissionRequest) *metav1.Status
}

// Start registers the webhook until the returned function is called. API servers call the webhook
// only a moment later: the caller has to wait until a request is denied.
func (w Webhook) Start(ctx context.Context, client kubernetes.Interface) (func(context.Context) error, error) {
	server := httptest.NewTLSServer(http.HandlerFunc(w.answer))
	webhooks := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := webhooks.Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: w.Name},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: w.Name + ".test.haulout.dev",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      &server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{w.Rule},
			NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: w.Namespace},
			},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			// Ignore failures, because requests at the end may not reach the webhook.
			FailurePolicy: ptr.To(admissionregistrationv1.Ignore),
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		server.Close()
		return nil, err
	}
	return func(ctx context.Context) error {
		defer server.Close()
		return webhooks.Delete(ctx, w.Name, metav1.DeleteOptions{})
	}, nil
}

func (w Webhook) answer(rw http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(rw, "the body is not an AdmissionReview", http.StatusBadRequest)
		return
	}
	denial := w.Decide(review.Request)
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: denial == nil, Result: denial}
	review.Request = nil
	rw.Header().Set("Content-Type", "application/json")
	// If this fails, the API server reports the failed response.
	_ = json.NewEncoder(rw).Encode(&review)
}
