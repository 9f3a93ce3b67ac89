// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestCountRequests(t *testing.T) {
	line := func(stage, verb, rest string) string {
		return `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":"` + stage +
			`","verb":"` + verb + `",` + rest + "}\n"
	}
	const (
		pods      = `"objectRef":{"resource":"pods"}`
		evictions = `"objectRef":{"resource":"pods","subresource":"eviction"}`
	)
	got, err := countRequests(strings.NewReader(
		line("ResponseComplete", "create", evictions) + line("ResponseComplete", "create", evictions) +
			// These two lines are the start and the end of a watch.
			line("ResponseStarted", "watch", pods) + line("ResponseComplete", "watch", pods) +
			line("ResponseComplete", "get", `"requestURI":"/openapi/v3?timeout=32s"`) +
			strings.TrimSuffix(line("ResponseComplete", "get", pods), "\n")))
	want := map[string]int{"create pods/eviction": 2, "watch pods": 1, "get /openapi/v3": 1}
	is.True(t, err == nil && cmp.Equal(got, want), "got %v, %v, want %v", got, err, want)
	if _, err := countRequests(strings.NewReader("{\n")); err == nil {
		t.Error("got no error for an invalid line")
	}
}
