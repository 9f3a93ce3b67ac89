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
	"bytes"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

const (
	schemaPaths = "/openapi/v3"
	// schemaPathsFor is how long an answer counts. A policy that patches our objects may go by a schema that is so old; ours do not change while we run.
	schemaPathsFor = 2 * time.Minute
)

// admissionClient returns a client for the admission plugins. The one of MutatingAdmissionPolicies asks every five seconds for the versions of all
// schemas of the cluster, whether there is a policy or not: a fifth of a request per second of a server that has nothing to do.
func (h *hostCluster) admissionClient() (kubernetes.Interface, error) {
	c := rest.CopyConfig(h.config)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &schemaPathsTransport{next: next, clock: clock.RealClock{}}
	})
	return kubernetes.NewForConfig(c)
}

// schemaPathsTransport answers the question for the versions of all schemas from memory for a while. All others pass.
type schemaPathsTransport struct {
	next  http.RoundTripper
	clock clock.PassiveClock

	mu     sync.Mutex
	at     time.Time
	header http.Header
	body   []byte
}

func (t *schemaPathsTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet || r.URL.Path != schemaPaths {
		return t.next.RoundTrip(r)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.header == nil || t.clock.Since(t.at) >= schemaPathsFor {
		answer, err := t.next.RoundTrip(r)
		if err != nil || answer.StatusCode != http.StatusOK {
			return answer, err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			return nil, err
		}
		t.at, t.header, t.body = t.clock.Now(), answer.Header, body
	}
	return &http.Response{
		Status: http.StatusText(http.StatusOK), StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: t.header.Clone(), Body: io.NopCloser(bytes.NewReader(t.body)), ContentLength: int64(len(t.body)), Request: r,
	}, nil
}

// WrappedRoundTripper is for those who look for the transport beneath.
func (t *schemaPathsTransport) WrappedRoundTripper() http.RoundTripper { return t.next }
