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
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

type ofAnother struct{}

// network answers what goes over the network.
func network(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusTeapot, Body: http.NoBody}, nil
}

type transportFunc func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f transportFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestOwnRequests hands requests to handlers that say what they see.
func TestOwnRequests(t *testing.T) {
	for name, test := range map[string]struct {
		method, path, body string
		starting           bool
		handler            http.HandlerFunc
		code               int
		want, wantErr      string
	}{
		"what is written comes back": {
			path: "/apis/a?limit=1",
			handler: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/plain")
				w.WriteHeader(http.StatusConflict)
				_, _ = io.WriteString(w, r.RequestURI+" of "+r.Host)
			},
			code: http.StatusConflict, want: "/apis/a?limit=1 of example.com",
		},
		"the body arrives, in parts": {
			method: http.MethodPost, path: "/apis/a", body: "pod",
			handler: func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				for range 2 {
					_, _ = w.Write(body)
				}
			},
			code: http.StatusOK, want: "podpod",
		},
		"nothing written is fine": {path: "/", handler: func(http.ResponseWriter, *http.Request) {}, code: http.StatusOK},
		"a handler that takes the token away leaves the caller's": {
			path: "/",
			handler: func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, r.Header.Get("Authorization"))
				r.Header.Del("Authorization")
			},
			code: http.StatusOK, want: "Bearer token",
		},
		"values of the caller's context stay with the caller": {
			path: "/",
			handler: func(w http.ResponseWriter, r *http.Request) {
				if r.Context().Value(ofAnother{}) != nil {
					w.WriteHeader(http.StatusInternalServerError)
				}
			},
			code: http.StatusOK,
		},
		"a handler that gives up is an error":              {path: "/", handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, wantErr: "given the request up"},
		"watches go over the network":                      {path: "/apis/a?watch=true", code: http.StatusTeapot},
		"all go over the network before the server serves": {path: "/apis/a", starting: true, code: http.StatusTeapot},
	} {
		t.Run(name, func(t *testing.T) {
			p := &inProcess{handlers: test.handler}
			p.serves.Store(!test.starting)
			method := test.method
			if method == "" {
				method = http.MethodGet
			}
			ctx := context.WithValue(t.Context(), ofAnother{}, 1)
			req, err := http.NewRequestWithContext(ctx, method, "https://example.com"+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer token")
			resp, err := p.wrap(transportFunc(network)).RoundTrip(req)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("got %v, want an error that says %q", err, test.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != test.code || string(body) != test.want {
				t.Errorf("got %d %q (%v), want %d %q", resp.StatusCode, body, err, test.code, test.want)
			}
			if req.Header.Get("Authorization") == "" {
				t.Error("the caller's request has lost its token")
			}
		})
	}
}

// TestOwnRequestThatIsCancelled: the handlers learn that nobody waits any more, and the caller gets the reason.
func TestOwnRequestThatIsCancelled(t *testing.T) {
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	p := &inProcess{handlers: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel(enough)
		<-r.Context().Done()
	})}
	p.serves.Store(true)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://example.com/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := p.wrap(transportFunc(network)).RoundTrip(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	if !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
}
