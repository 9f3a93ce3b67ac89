// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evictionreview

import (
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

const (
	// causeEvacuation is the type of the cause that names the Evacuation in a refusal.
	causeEvacuation metav1.CauseType = "Evacuation"

	// The keys of the audit annotations. kube-apiserver adds the name of the webhook.
	auditDecision, auditEvacuation = "decision", "evacuation"
)

// responseOf returns the response for a decision. A refusal has no retryAfterSeconds: client-go
// would repeat the request up to ten times without a word to its user. It does not have the cause
// of budgets either, since no budget refuses.
func responseOf(uid types.UID, s situation, d decision) *admissionv1.AdmissionResponse {
	response := &admissionv1.AdmissionResponse{UID: uid, Allowed: d.allowed, AuditAnnotations: map[string]string{auditDecision: string(d.answer)}}
	name := ""
	if s.evacuation != nil {
		name = s.evacuation.Name
		response.AuditAnnotations[auditEvacuation] = name
	}
	message := wording.Cut(d.message, maxMessage)
	switch {
	case !d.allowed:
		response.Result = &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: message,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: causeEvacuation, Message: name}}},
		}
	case message != "":
		response.Warnings = []string{message}
	}
	return response
}
