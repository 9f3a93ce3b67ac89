// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Consent is the answer of the API server to the question whether a pod may leave now. The zero
// value means that the API server was not asked.
type Consent string

const (
	// ConsentGiven means that the budget, the webhooks and the policies allow the pod to leave, or
	// that the pod no longer exists.
	ConsentGiven Consent = "given"
	// ConsentLater means that the budget allows no disruption now, or that the API server cannot
	// answer now.
	ConsentLater Consent = "later"
	// ConsentDenied means that a webhook or policy refuses the pod, or that the eviction fails for
	// another reason that does not end soon.
	ConsentDenied Consent = "denied"
)

// askTimeout is the deadline of one question whether a pod may leave. It is longer than a webhook
// may take by default.
const askTimeout = 15 * time.Second

// AskFirst asks whether a pod may leave, with an eviction that the API server does not carry out.
// If pastBudgets is set, only the webhooks and policies count: the API server asks them before it
// looks at the budgets.
func AskFirst(ctx context.Context, host Host, pod *corev1.Pod, pastBudgets bool) (Consent, string) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(pod.UID)}, DryRun: []string{metav1.DryRunAll}}
	a := answerOf(host.Evict(ctx, newEviction(pod.Namespace, pod.Name, options)), false)
	return consentOf(a.verdict, pastBudgets), a.message
}

func consentOf(v verdict, pastBudgets bool) Consent {
	switch v {
	case verdictAccepted, verdictGone:
		return ConsentGiven
	case verdictBudgetClosed, verdictBudgetStale, verdictPodChanged:
		if pastBudgets {
			return ConsentGiven
		}
		return ConsentLater
	case verdictSeveralBudgets, verdictTooManyDisruptedPods:
		if pastBudgets {
			return ConsentGiven
		}
		return ConsentDenied
	case verdictOverloaded, verdictUnknown, verdictNamespaceTerminating, verdictWithdrawn:
		return ConsentLater
	case verdictDenied, verdictForbidden, verdictFailed:
	}
	return ConsentDenied
}
