// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"errors"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// verdict is the meaning of an answer of the eviction API. It is also the label of the metric.
type verdict string

const (
	// verdictAccepted: the pod was asked to stop.
	verdictAccepted verdict = "accepted"
	// verdictGone: the pod no longer exists.
	verdictGone verdict = "gone"
	// verdictBudgetClosed: the budget allows no disruption. The only answer that counts as a failed
	// eviction.
	verdictBudgetClosed verdict = "budget_closed"
	// verdictBudgetStale: the disruption controller has not yet processed the budget's last change.
	verdictBudgetStale verdict = "budget_stale"
	// verdictPodChanged: a pod that could be evicted because it was not ready changed during the
	// call.
	verdictPodChanged verdict = "pod_changed"
	// verdictDenied: an admission webhook or policy refuses this pod, or does not answer.
	verdictDenied verdict = "denied"
	// verdictOverloaded: the API server is overloaded or has an internal error.
	verdictOverloaded verdict = "overloaded"
	// verdictTooManyDisruptedPods: the API server refuses every eviction because of the budget's
	// status: disruptedPods is too long, or disruptionsAllowed is negative.
	verdictTooManyDisruptedPods verdict = "too_many_disrupted_pods"
	// verdictNamespaceTerminating: nothing can be created in the namespace, not even an eviction;
	// its pods are deleted anyway.
	verdictNamespaceTerminating verdict = "namespace_terminating"
	// verdictForbidden: the server lacks a permission, or a built-in admission plugin refuses.
	verdictForbidden verdict = "forbidden"
	// verdictSeveralBudgets: the eviction API refuses pods that several budgets select.
	verdictSeveralBudgets verdict = "several_budgets"
	// verdictUnknown: it is unknown whether the pod was evicted. It has to be read again.
	verdictUnknown verdict = "unknown"
	// verdictFailed: anything else.
	verdictFailed verdict = "failed"
	// verdictWithdrawn: no eviction was sent, because its Evacuation was withdrawn.
	verdictWithdrawn verdict = "withdrawn"
)

// answer is a verdict with the details of the API server's answer.
type answer struct {
	verdict verdict
	// retryAfter is how long the API server asks to wait, at most maxRetryAfter; 0 if it does not
	// ask.
	retryAfter time.Duration
	// message quotes the API server.
	message string
	// lost: there was no clear answer, and the verdict follows from a read of the pod.
	lost bool
}

// answerOf classifies the result of an eviction. unready reports that the pod did not need its
// budget because it was not ready: the API server then answers a change of the pod with the same
// words as a stale budget.
func answerOf(err error, unready bool) answer {
	if err == nil {
		return answer{verdict: verdictAccepted}
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return answer{verdict: verdictUnknown, message: err.Error()}
	}
	s := status.Status()
	if isDenial(s.Message) {
		return answer{verdict: verdictDenied, message: s.Message}
	}
	a := answer{message: s.Message}
	if s.Details != nil {
		a.retryAfter = min(time.Duration(s.Details.RetryAfterSeconds)*time.Second, maxRetryAfter)
	}
	cause, budget := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
	if budget {
		a.message = cause.Message
	}
	a.verdict = verdictOf(err, s, budget, unready)
	return a
}

// maxRetryAfter is the longest wait that the queue accepts from the API server.
const maxRetryAfter = 30 * time.Second

// isDenial reports whether the message comes from admission. A webhook chooses the code, the causes
// and the retry time of its answer: KubeVirt answers 429 for each virtual machine. Only the
// beginning of the message is written by the API server or, for policies and for webhooks that do
// not answer, the words before the name.
func isDenial(message string) bool {
	return strings.HasPrefix(message, `admission webhook "`) ||
		strings.Contains(message, "ValidatingAdmissionPolicy '") ||
		strings.Contains(message, `failed calling webhook "`)
}

// verdictOf classifies an answer that does not come from admission. budget: the answer names the
// budget as its cause.
func verdictOf(err error, s metav1.Status, budget, unready bool) verdict {
	switch {
	case budget && s.Code == http.StatusForbidden:
		return verdictTooManyDisruptedPods
	case budget && s.Code != http.StatusTooManyRequests:
		return verdictFailed
	case budget && s.Details.RetryAfterSeconds == 0:
		return verdictBudgetClosed
	case budget && unready:
		return verdictPodChanged
	case budget:
		return verdictBudgetStale
	case apierrors.IsNotFound(err):
		return verdictGone
	case apierrors.IsConflict(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return verdictUnknown
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return verdictNamespaceTerminating
	case s.Code == http.StatusForbidden, s.Code == http.StatusUnauthorized:
		return verdictForbidden
	case s.Code == http.StatusInternalServerError && strings.Contains(s.Message, "more than one PodDisruptionBudget"):
		return verdictSeveralBudgets
	case s.Code == http.StatusTooManyRequests, s.Code == http.StatusInternalServerError, s.Code == http.StatusBadGateway,
		s.Code == http.StatusServiceUnavailable:
		return verdictOverloaded
	case s.Code == http.StatusGatewayTimeout:
		return verdictUnknown
	}
	return verdictFailed
}
