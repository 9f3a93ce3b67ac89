// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"haulout.dev/haulout/pkg/host/evict"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

var podResource = schema.GroupResource{Resource: "pods"}

// The errors are those that k8s.io/kubernetes/pkg/registry/core/pod/storage/eviction.go, admission
// and the filters of the API server return.
func budgetClosed() error {
	return withCause(apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0),
		policyv1.DisruptionBudgetCause, "The disruption budget web needs 9 healthy pods and has 9 currently")
}

func budgetStale() error {
	return withCause(apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10),
		policyv1.DisruptionBudgetCause, "The disruption budget web is still being processed by the server.")
}

func tooManyDisrupted() error {
	return withCause(apierrors.NewForbidden(schema.GroupResource{Group: "policy", Resource: "poddisruptionbudget"}, "web", errors.New("negative")),
		policyv1.DisruptionBudgetCause, "The disruption budget web does not allow evicting pods currently: pdb disruptions allowed is negative")
}

func severalBudgetsError() error {
	return apierrors.FromObject(&metav1.Status{
		Status:  metav1.StatusFailure,
		Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
		Code:    500,
	})
}

func overloaded(seconds int) error {
	return apierrors.NewGenericServerResponse(http.StatusTooManyRequests, "create", podResource, "web-1",
		"Too many requests, please try again later.", seconds, true)
}

// deniedBy returns the error that the API server returns for a webhook's denial. The message begins
// with the words of the API server and ends with the words of the webhook.
func deniedBy(webhook string, code int32, words string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code,
		Message: fmt.Sprintf("admission webhook %q denied the request: %s", webhook, words),
	}}
}

func deniedFor(webhook string, code, seconds int32, words string) error {
	err := deniedBy(webhook, code, words)
	err.ErrStatus.Reason, err.ErrStatus.Details = metav1.StatusReasonTooManyRequests, &metav1.StatusDetails{RetryAfterSeconds: seconds}
	return err
}

func withCause(err *apierrors.StatusError, cause metav1.CauseType, message string) error {
	if err.ErrStatus.Details == nil {
		err.ErrStatus.Details = &metav1.StatusDetails{}
	}
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause, Message: message})
	return err
}

func TestAnswerOf(t *testing.T) {
	tests := map[string]struct {
		err       error
		unready   bool
		want      verdict
		wantRetry time.Duration
	}{
		"201: the eviction is accepted": {err: nil, want: verdictAccepted},
		"404: the pod is gone":          {err: apierrors.NewNotFound(podResource, "web-1"), want: verdictGone},
		"429 with the budget as its cause and no Retry-After: the budget is closed": {err: budgetClosed(), want: verdictBudgetClosed},
		"the same for a pod that was not ready: the budget is closed":               {err: budgetClosed(), unready: true, want: verdictBudgetClosed},
		"429 with the budget as its cause and Retry-After 10: the budget is stale": {
			err: budgetStale(), want: verdictBudgetStale, wantRetry: 10 * time.Second,
		},
		"Retry-After 10 for a pod that was not ready: the pod changed": {
			err: budgetStale(), unready: true, want: verdictPodChanged, wantRetry: 10 * time.Second,
		},
		"429 without a cause: overload": {err: overloaded(3), want: verdictOverloaded, wantRetry: 3 * time.Second},
		"500: overload":                 {err: apierrors.NewInternalError(errors.New("etcdserver: no leader")), want: verdictOverloaded},
		"502: overload": {
			err: apierrors.NewGenericServerResponse(http.StatusBadGateway, "create", podResource, "web-1",
				"bad gateway", 0, true),
			want: verdictOverloaded,
		},
		"429 with Retry-After of an hour: overload, for half a minute": {
			err: overloaded(3600), want: verdictOverloaded, wantRetry: maxRetryAfter,
		},
		"429 of a webhook: denied":                             {err: deniedBy("virt", 429, "Eviction triggered evacuation of VMI"), want: verdictDenied},
		"429 of a webhook with Retry-After of an hour: denied": {err: deniedFor("virt", 429, 3600, "not now"), want: verdictDenied},
		"403 of a webhook: denied":                             {err: deniedBy("guard", 403, "not in business hours"), want: verdictDenied},
		"404 of a webhook: denied": {
			err: &apierrors.StatusError{ErrStatus: metav1.Status{
				Code: 404, Reason: metav1.StatusReasonNotFound,
				Message: `admission webhook "guard" denied the request: no such budget`,
			}}, want: verdictDenied,
		},
		"429 of a webhook with the budget as its cause: denied": {
			err: withCause(deniedBy("guard", 429, "no"), policyv1.DisruptionBudgetCause, "mine"), want: verdictDenied,
		},
		"403 of an admission policy: denied": {
			err: apierrors.NewForbidden(podResource, "web-1",
				errors.New("ValidatingAdmissionPolicy 'guard' with binding 'all' denied request: no")),
			want: verdictDenied,
		},
		"422 of an admission policy: denied": {
			err: &apierrors.StatusError{ErrStatus: metav1.Status{
				Code: 422, Reason: metav1.StatusReasonInvalid,
				Message: `pods "web-1" is forbidden: ValidatingAdmissionPolicy 'guard' with binding 'all' denied request: no`,
			}}, want: verdictDenied,
		},
		"500 of a webhook that does not answer: denied": {
			err:  apierrors.NewInternalError(errors.New(`failed calling webhook "guard": connection refused`)),
			want: verdictDenied,
		},
		"503: overload": {err: apierrors.NewServiceUnavailable("starting"), want: verdictOverloaded},
		"403 with the budget as its cause: too many disrupted pods": {err: tooManyDisrupted(), want: verdictTooManyDisruptedPods},
		"403 of the budget without a cause, before Kubernetes 1.37: too many disrupted pods": {
			err:  apierrors.NewForbidden(schema.GroupResource{Group: "policy", Resource: "poddisruptionbudget"}, "web", errors.New("pdb disruptions allowed is negative")),
			want: verdictTooManyDisruptedPods,
		},
		"403 with the namespace as its cause: the namespace is terminating": {
			err: withCause(apierrors.NewForbidden(podResource, "web-1", errors.New("being terminated")),
				corev1.NamespaceTerminatingCause, "shop"),
			want: verdictNamespaceTerminating,
		},
		"any other 403: the right is missing": {
			err: apierrors.NewForbidden(podResource, "web-1", errors.New("RBAC")), want: verdictForbidden,
		},
		"401: the right is missing":                  {err: apierrors.NewUnauthorized("expired"), want: verdictForbidden},
		"500 about several budgets: several budgets": {err: severalBudgetsError(), want: verdictSeveralBudgets},
		"409: unknown":                               {err: apierrors.NewConflict(podResource, "web-1", errors.New("uid")), want: verdictUnknown},
		"504: unknown":                               {err: apierrors.NewTimeoutError("conflicts", 10), want: verdictUnknown, wantRetry: 10 * time.Second},
		"a server timeout: unknown": {
			err: apierrors.NewServerTimeout(podResource, "create", 1), want: verdictUnknown, wantRetry: time.Second,
		},
		"a broken connection: unknown":        {err: errors.New("read: connection reset by peer"), want: verdictUnknown},
		"a deadline that has passed: unknown": {err: context.DeadlineExceeded, want: verdictUnknown},
		"400: failed":                         {err: apierrors.NewBadRequest("name"), want: verdictFailed},
		"a wrapped error is unwrapped":        {err: errors.Join(errors.New("evict"), budgetClosed()), want: verdictBudgetClosed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := answerOf(tc.err, tc.unready)
			if got.verdict != tc.want || got.retryAfter != tc.wantRetry {
				t.Errorf("got %s, retry after %s; want %s, %s", got.verdict, got.retryAfter, tc.want, tc.wantRetry)
			}
		})
	}
}

func TestHostEvictsOnce(t *testing.T) {
	tests := map[string]struct {
		code    int
		header  map[string]string
		body    string
		want    verdict
		unready bool
	}{
		"201 with a success": {code: 201, body: `{"kind":"Status","apiVersion":"v1","status":"Success","code":201}`, want: verdictAccepted},
		"201 with a failure in the body": {
			code: 201,
			body: `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"message":"This pod has more than one PodDisruptionBudget"}`,
			want: verdictSeveralBudgets,
		},
		"429 of a stale budget is not retried within the call": {
			code: 429, header: map[string]string{"Retry-After": "10"},
			body: `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429,
				"details":{"retryAfterSeconds":10,"causes":[{"reason":"DisruptionBudget","message":"is still being processed"}]}}`,
			want: verdictBudgetStale,
		},
		"429 of an overloaded server is not retried within the call": {
			code: 429, header: map[string]string{"Retry-After": "1", "Content-Type": "text/plain"},
			body: "Too many requests", want: verdictOverloaded,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				if r.Method != http.MethodPost || r.URL.Path != "/api/v1/namespaces/shop/pods/web-1/eviction" {
					t.Errorf("got %s %s", r.Method, r.URL.Path)
				}
				w.Header().Set("Content-Type", "application/json")
				for key, value := range tc.header {
					w.Header().Set(key, value)
				}
				w.WriteHeader(tc.code)
				_, _ = w.Write([]byte(tc.body))
			}))
			defer server.Close()
			err := evict.Client{Host: must.Get(kubernetes.NewForConfig(&rest.Config{Host: server.URL}))(t)}.Evict(t.Context(),
				&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}})
			if got := answerOf(err, false).verdict; got != tc.want {
				t.Errorf("got %s (%v), want %s", got, err, tc.want)
			}
			is.Equal(t, calls.Load(), 1, "calls")
		})
	}
}
