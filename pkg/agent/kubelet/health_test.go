// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

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
