// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"net/http"
	"net/http/httptest"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestDryRunIsAnOptionOfTheRequest checks that a dry run is in the options of the request, since
// webhooks do not read it from the body.
func TestDryRunIsAnOptionOfTheRequest(t *testing.T) {
	for name, dryRun := range map[string][]string{"a dry run": {metav1.DryRunAll}, "an eviction": nil} {
		t.Run(name, func(t *testing.T) {
			var got []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got = r.URL.Query()["dryRun"]
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success","code":201}`))
			}))
			defer server.Close()
			client := Client{Host: must.Get(kubernetes.NewForConfig(&rest.Config{Host: server.URL}))(t)}
			must.Do(t, client.Evict(t.Context(), &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Namespace: "shop", Name: "web-1"},
				DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun},
			}))
			is.Slices(t, got, dryRun)
		})
	}
}
