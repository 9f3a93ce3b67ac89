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
	// verdictAccepted: the API server accepted the eviction, and the pod terminates.
	verdictAccepted verdict = "accepted"
	// verdictGone: the pod no longer exists.
	verdictGone verdict = "gone"
	// verdictBudgetClosed: the budget allows no disruption. This is the only verdict that counts as
	// a failed eviction.
	verdictBudgetClosed verdict = "budget_closed"
	// verdictBudgetStale: the disruption controller has not yet processed the budget's last change.
	verdictBudgetStale verdict = "budget_stale"
	// verdictPodChanged: the API server did not check the budget because the pod was not ready, and
	// then refused the eviction because the pod had changed in the meantime.
	verdictPodChanged verdict = "pod_changed"
	// verdictDenied: an admission webhook or policy refuses this pod, or does not respond.
	verdictDenied verdict = "denied"
	// verdictOverloaded: the API server is overloaded or has an internal error.
	verdictOverloaded verdict = "overloaded"
	// verdictTooManyDisruptedPods: the API server refuses every eviction because of the budget's
	// status: disruptedPods is too long, or disruptionsAllowed is negative.
	verdictTooManyDisruptedPods verdict = "too_many_disrupted_pods"
	// verdictNamespaceTerminating: no object can be created in the namespace, not even an eviction.
	// The pods of the namespace are deleted anyway.
	verdictNamespaceTerminating verdict = "namespace_terminating"
	// verdictForbidden: the server lacks a permission, or a built-in admission plugin refuses the
	// eviction.
	verdictForbidden verdict = "forbidden"
	// verdictSeveralBudgets: the eviction API refuses pods that several budgets select.
	verdictSeveralBudgets verdict = "several_budgets"
	// verdictUnknown: it is unknown whether the pod was evicted. The pod has to be read again.
	verdictUnknown verdict = "unknown"
	// verdictFailed: the eviction failed for any other reason.
	verdictFailed verdict = "failed"
	// verdictWithdrawn: no eviction was sent, because its Evacuation was withdrawn.
	verdictWithdrawn verdict = "withdrawn"
)

// answer is a verdict with the details of the API server's answer.
type answer struct {
	verdict verdict
	// retryAfter is the time after which the API server allows a retry, at most maxRetryAfter; 0 if
	// the API server sets none.
	retryAfter time.Duration
	message    string
	// lost is set if there was no clear answer, and the verdict was derived from a read of the pod.
	lost bool
}

// answerOf classifies the result of an eviction. unready is true if the API server does not check
// the budget because the pod is not ready. If the pod then changes, the API server returns the same
// message as for a stale budget.
func answerOf(err error, unready bool) answer {
	if err == nil {
		return answer{verdict: verdictAccepted}
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return answer{verdict: verdictUnknown, message: err.Error()}
	}
	s := status.Status()
	if IsDenial(s.Message) {
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
	a.verdict = verdictOf(err, s, budget || refusesBudget(s), unready)
	return a
}

// refusesBudget reports whether the API server refuses the eviction because of the status of the
// budget. Before Kubernetes 1.37, such an answer has no cause, but its object is the budget.
func refusesBudget(s metav1.Status) bool {
	return s.Code == http.StatusForbidden && s.Details != nil &&
		s.Details.Group == policyv1.GroupName && s.Details.Kind == "poddisruptionbudget"
}

// maxRetryAfter is the longest retry time that the queue accepts from the API server.
const maxRetryAfter = 30 * time.Second

// IsDenial reports whether the message comes from admission. A webhook chooses the code, the causes
// and the retry time of its response: KubeVirt returns 429 for each virtual machine. So only the
// text of the API server can be relied on. It is the beginning of the message or, for policies and
// for webhooks that do not respond, the words before the name.
func IsDenial(message string) bool {
	return strings.HasPrefix(message, `admission webhook "`) ||
		strings.Contains(message, "ValidatingAdmissionPolicy '") ||
		strings.Contains(message, `failed calling webhook "`)
}

// verdictOf classifies an answer that does not come from admission. budget is true if the answer
// names the budget as the cause or as its object.
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
