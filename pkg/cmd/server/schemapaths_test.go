/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestSchemaPathsAreAskedForSeldom(t *testing.T) {
	asked, status := map[string]int{}, http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked[r.URL.Path]++
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"paths":{}}`)
	}))
	defer server.Close()
	clock := clocktesting.NewFakePassiveClock(time.Now())
	client := http.Client{Transport: &schemaPathsTransport{next: http.DefaultTransport, clock: clock}}
	get := func(path string, wantStatus, wantAsked int) {
		t.Helper()
		answer, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != wantStatus || string(body) != `{"paths":{}}` || answer.Header.Get("Content-Type") != "application/json" {
			t.Errorf("GET %s: %v, %s, %q, %v", path, err, answer.Status, body, answer.Header)
		}
		if asked[path] != wantAsked {
			t.Errorf("the server was asked %d times for %s, want %d", asked[path], path, wantAsked)
		}
	}
	status = http.StatusServiceUnavailable
	get("/openapi/v3", http.StatusServiceUnavailable, 1)
	status = http.StatusOK
	get("/openapi/v3", http.StatusOK, 2)
	get("/openapi/v3", http.StatusOK, 2)
	get("/openapi/v3/apis/apps/v1", http.StatusOK, 1)
	get("/openapi/v3/apis/apps/v1", http.StatusOK, 2)
	clock.SetTime(clock.Now().Add(schemaPathsFor))
	get("/openapi/v3", http.StatusOK, 3)
}
