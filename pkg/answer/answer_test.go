// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestAnswers(t *testing.T) {
	resource := v1alpha1.Resource("nodemaintenances")
	// client-go makes this of an answer that is no Status.
	page := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource, "nm", "404 page not found", 0, true)
	proxy := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "unknown cluster",
	}}
	for name, test := range map[string]struct {
		err                            error
		objectGone, apiMissing, isTemp bool
	}{
		"no error":                      {},
		"no such object":                {err: apierrors.NewNotFound(resource, "nm"), objectGone: true},
		"no such object, wrapped":       {err: fmt.Errorf("get: %w", apierrors.NewNotFound(resource, "nm")), objectGone: true},
		"no such API":                   {err: page, apiMissing: true, isTemp: true},
		"no such API, wrapped":          {err: fmt.Errorf("get: %w", page), apiMissing: true, isTemp: true},
		"a proxy that knows no cluster": {err: proxy, apiMissing: true, isTemp: true},
		"the address cannot be reached": {err: errors.New("connect: connection refused"), isTemp: true},
		"no replica is ready":           {err: apierrors.NewServiceUnavailable("no"), isTemp: true},
		"too many requests":             {err: apierrors.NewTooManyRequestsError("later"), isTemp: true},
		"a refusal":                     {err: apierrors.NewForbidden(resource, "nm", errors.New("no"))},
		"an object that is being replaced": {
			err: apierrors.NewConflict(resource, "nm", errors.New("UID")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, ObjectGone(test.err), test.objectGone, "the object is gone")
			is.Equal(t, APIMissing(test.err), test.apiMissing, "the API is missing")
			is.Equal(t, IsTemporary(test.err), test.isTemp, "it is temporary")
		})
	}
}
