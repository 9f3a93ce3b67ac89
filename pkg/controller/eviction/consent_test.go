// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

// asked is a Host that records the last eviction.
type asked struct {
	Host
	err      error
	eviction *policyv1.Eviction
}

func (a *asked) Evict(_ context.Context, eviction *policyv1.Eviction) error {
	a.eviction = eviction
	return a.err
}

func TestAskFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		err       error
		want      Consent
		pastWants Consent
	}{
		"agreed":                     {nil, ConsentGiven, ConsentGiven},
		"the pod is gone":            {apierrors.NewNotFound(podResource, "web-1"), ConsentGiven, ConsentGiven},
		"the budget is closed":       {budgetClosed(), ConsentLater, ConsentGiven},
		"the status is stale":        {budgetStale(), ConsentLater, ConsentGiven},
		"several budgets":            {severalBudgetsError(), ConsentDenied, ConsentGiven},
		"a negative budget":          {tooManyDisrupted(), ConsentDenied, ConsentGiven},
		"a webhook refuses":          {deniedBy("w.example.com", 403, "no"), ConsentDenied, ConsentDenied},
		"a webhook answers like APF": {deniedFor("w.example.com", 429, 5, "no"), ConsentDenied, ConsentDenied},
		"kube-apiserver is busy":     {overloaded(1), ConsentLater, ConsentLater},
		"there is no answer":         {errors.New("connection refused"), ConsentLater, ConsentLater},
		"the server has no right":    {apierrors.NewForbidden(podResource, "web-1", errors.New("no")), ConsentDenied, ConsentDenied},
		"an answer of another kind":  {apierrors.NewBadRequest("no"), ConsentDenied, ConsentDenied},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-1", UID: "u"}}
			host := &asked{err: tc.err}
			got, _ := AskFirst(t.Context(), host, pod, false)
			is.Equal(t, got, tc.want, "the answer")
			got, _ = AskFirst(t.Context(), host, pod, true)
			is.Equal(t, got, tc.pastWants, "the answer if budgets do not count")
			sent := host.eviction
			if !slices.Equal(sent.DeleteOptions.DryRun, []string{metav1.DryRunAll}) || *sent.DeleteOptions.Preconditions.UID != "u" ||
				sent.Annotations[v1alpha1.AnnotationEvictNow] == "" {
				t.Errorf("sent %+v", sent)
			}
		})
	}
}
