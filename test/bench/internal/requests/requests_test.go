// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func line(stage, verb, rest string) string {
	return `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":"` + stage +
		`","verb":"` + verb + `",` + rest + "}\n"
}

func TestCount(t *testing.T) {
	const (
		pods      = `"objectRef":{"resource":"pods"}`
		evictions = `"objectRef":{"resource":"pods","subresource":"eviction"}`
	)
	got, err := Count(strings.NewReader(
		line("ResponseComplete", "create", evictions) + line("ResponseComplete", "create", evictions) +
			// These two lines are the start and the end of a watch.
			line("ResponseStarted", "watch", pods) + line("ResponseComplete", "watch", pods) +
			line("ResponseComplete", "get", `"requestURI":"/openapi/v3?timeout=32s"`) +
			strings.TrimSuffix(line("ResponseComplete", "get", pods), "\n")))
	want := map[string]int{"create pods/eviction": 2, "watch pods": 1, "get /openapi/v3": 1}
	is.True(t, err == nil && cmp.Equal(got, want), "got %v, %v, want %v", got, err, want)
	if _, err := Count(strings.NewReader("{\n")); err == nil {
		t.Error("got no error for an invalid line")
	}
}

func TestCountWrites(t *testing.T) {
	var log string
	for _, request := range []struct{ verb, rest string }{
		{"patch", `"objectRef":{"resource":"nodes"}`},
		{"patch", `"objectRef":{"resource":"nodes","subresource":"status"},"requestURI":"/api/v1/nodes/a/status?fieldManager=x"`},
		{"create", `"objectRef":{"apiGroup":"events.k8s.io","resource":"events"}`},
		// The others are no writes.
		{"get", `"objectRef":{"resource":"nodes"}`},
		{"patch", `"objectRef":{"resource":"nodes"},"requestURI":"/api/v1/nodes/a?dryRun=All"`},
		{"update", `"objectRef":{"apiGroup":"coordination.k8s.io","resource":"leases"}`},
		{"create", `"objectRef":{"apiGroup":"authorization.k8s.io","resource":"subjectaccessreviews"}`},
		{"create", `"objectRef":{"resource":"serviceaccounts","subresource":"token"}`},
		{"create", `"requestURI":"/other"`},
	} {
		log += line("ResponseComplete", request.verb, request.rest)
	}
	want := map[string]int{"patch nodes": 1, "patch nodes/status": 1, "create events": 1}
	if diff := cmp.Diff(want, must.Get(CountWrites(strings.NewReader(log)))(t)); diff != "" {
		t.Error(diff)
	}
}

func TestWrites(t *testing.T) {
	metrics := testutil.NewMetrics()
	must.Do(t, testutil.ParseMetrics(`# TYPE apiserver_request_total counter
apiserver_request_total{code="200",dry_run="",group="maintenance.haulout.dev",resource="nodetasks",subresource="status",verb="PATCH"} 3
apiserver_request_total{code="409",dry_run="",group="maintenance.haulout.dev",resource="nodetasks",subresource="status",verb="APPLY"} 1
apiserver_request_total{code="201",dry_run="",group="maintenance.haulout.dev",resource="nodetasks",subresource="",verb="POST"} 2
apiserver_request_total{code="201",dry_run="All",group="maintenance.haulout.dev",resource="nodetasks",subresource="",verb="POST"} 7
apiserver_request_total{code="200",dry_run="",group="maintenance.haulout.dev",resource="nodetasks",subresource="",verb="LIST"} 7
apiserver_request_total{code="200",dry_run="",group="",resource="nodes",subresource="",verb="PATCH"} 7
`, &metrics))
	if diff := cmp.Diff(map[string]int{"patch nodetasks/status": 4, "create nodetasks": 2}, Writes(metrics)); diff != "" {
		t.Error(diff)
	}
}

func TestPolicies(t *testing.T) {
	for name, policy := range map[string]string{"all requests": Policy(), "writes": WritePolicy()} {
		is.Equal(t, strings.Contains(policy, "verbs: [create, update, patch, delete, deletecollection]\n- level: None"), name == "writes", name)
		is.True(t, strings.Contains(policy, `users: ["system:serviceaccount:haulout-system:haulout-apiserver"]`+"\n"), "%s:\n%s", name, policy)
	}
}
