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

package kubelet

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"ok": {answer: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				w.WriteHeader(http.StatusNotFound)
			}
			_, _ = w.Write([]byte("ok"))
		}},
		"a failed check": {
			answer: func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "syncloop failed", http.StatusInternalServerError)
			},
			want: "syncloop failed",
		},
		"an end in the middle": {answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, want: "not healthy"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(tc.answer)
			defer server.Close()
			err := Health{Address: server.Listener.Addr().String()}.Check(t.Context())
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestHealthOfAKubeletThatIsDown(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	address := server.Listener.Addr().String()
	server.Close()
	if err := (Health{Address: address}).Check(t.Context()); err == nil {
		t.Error("got no error")
	}
}
