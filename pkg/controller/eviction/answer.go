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

// verdict is what an answer of the eviction API means. It is also the label of the metric.
type verdict string

const (
	// verdictAccepted: the pod was asked to stop.
	verdictAccepted verdict = "accepted"
	// verdictGone: the pod does not exist any more.
	verdictGone verdict = "gone"
	// verdictBudgetClosed: the budget allows no disruption. The only answer that counts as a failed
	// eviction.
	verdictBudgetClosed verdict = "budget_closed"
	// verdictBudgetStale: the disruption controller has not caught up with the budget's last
	// change.
	verdictBudgetStale verdict = "budget_stale"
	// verdictPodChanged: a pod that could go because it was not ready changed under the call.
	verdictPodChanged verdict = "pod_changed"
	// verdictDenied: an admission webhook or policy refuses this pod, or cannot be asked about it.
	verdictDenied verdict = "denied"
	// verdictOverloaded: the API server asks for fewer requests, or is out of order.
	verdictOverloaded verdict = "overloaded"
	// verdictTooManyDisruptedPods: the budget's status is in a state in which every eviction is
	// refused.
	verdictTooManyDisruptedPods verdict = "too_many_disrupted_pods"
	// verdictNamespaceTerminating: nothing can be created in the namespace, not even an eviction;
	// its pods are deleted anyway.
	verdictNamespaceTerminating verdict = "namespace_terminating"
	// verdictForbidden: the server lacks a permission, or a built-in admission plugin refuses.
	verdictForbidden verdict = "forbidden"
	// verdictSeveralBudgets: the eviction API refuses pods that several budgets select.
	verdictSeveralBudgets verdict = "several_budgets"
	// verdictUnknown: the pod may have been evicted or not. It has to be read again.
	verdictUnknown verdict = "unknown"
	// verdictFailed: anything else.
	verdictFailed verdict = "failed"
	// verdictWithdrawn: no eviction was sent, because its Evacuation was withdrawn.
	verdictWithdrawn verdict = "withdrawn"
)

// answer is a verdict with what the API server said about it.
type answer struct {
	verdict verdict
	// retryAfter is how long the API server asks to wait, at most maxRetryAfter; 0 if it does not
	// say.
	retryAfter time.Duration
	// message quotes the API server.
	message string
	// lost: there was no answer, and the verdict follows from the pod as it was read again.
	lost bool
}

// answerOf reads the result of an eviction. unready says that the pod was sent past its budget
// because it was not ready: the API server then answers a change of the pod in the very words in
// which it says that a budget is stale.
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

// maxRetryAfter bounds how long the API server can have us wait.
const maxRetryAfter = 30 * time.Second

// isDenial reports whether the message is that of admission. A webhook chooses the code, the causes
// and the seconds to wait of its answer, and the API server passes them on: KubeVirt answers 429
// for each virtual machine. Only the beginning of the message is the API server's own, or, for
// policies and for webhooks that do not answer, the words in front of the name.
func isDenial(message string) bool {
	return strings.HasPrefix(message, `admission webhook "`) ||
		strings.Contains(message, "ValidatingAdmissionPolicy '") ||
		strings.Contains(message, `failed calling webhook "`)
}

// verdictOf reads an answer that is not admission's. budget: it names the budget as its cause.
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
