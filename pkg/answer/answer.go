// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package answer tells clients what the error of a request to the API server means: whether the
// object is gone, and whether the request may succeed if it is repeated.
package answer

import (
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ObjectGone reports whether an object does not exist. It is false if the API is not served: then
// the object may exist.
func ObjectGone(err error) bool {
	return apierrors.IsNotFound(err) && !APIMissing(err)
}

// APIMissing reports whether no server serves the API of a request. The answer of the server that
// stores the objects is a Status with their kind; that of all others is another document, such as
// "404 page not found".
func APIMissing(err error) bool {
	var answer apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &answer) {
		return false
	}
	details := answer.Status().Details
	return details == nil || details.Kind == "" || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// IsTemporary reports whether a request may succeed if it is repeated: the server does not answer
// at present, or its API is not served, which also happens while it is registered again.
func IsTemporary(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return err != nil // it cannot be reached
	}
	code := answer.Status().Code
	return code == http.StatusTooManyRequests || code >= http.StatusInternalServerError || APIMissing(err)
}
