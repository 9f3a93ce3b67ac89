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

package kubeletbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"
)

// The agent speaks to the bus over a socket of its own, which needs no system bus.
const (
	pathStatus = "/status"
	pathBegin  = "/begin"
	pathCancel = "/cancel"

	controlTimeout = 5 * time.Second
)

// serveControl answers the agent until ctx ends.
func (b *Bus) serveControl(ctx context.Context, listener net.Listener) {
	mux := http.NewServeMux()
	for pattern, act := range map[string]func() Status{
		"GET " + pathStatus: b.Status, "POST " + pathBegin: b.Begin, "POST " + pathCancel: b.Cancel,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(act()) // the agent asks again
		})
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: controlTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		klog.FromContext(ctx).Error(err, "Agent cannot reach the bus any more")
	}
}

// control is the agent's side.
type control struct {
	client http.Client
}

func newControl(dir string) *control {
	socket := filepath.Join(dir, ControlSocket)
	return &control{client: http.Client{
		Timeout: controlTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			},
		},
	}}
}

func (c *control) call(ctx context.Context, method, path string) (Status, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://bus"+path, nil)
	if err != nil {
		return Status{}, err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return Status{}, fmt.Errorf("ask the kubelet's bus: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Status{}, fmt.Errorf("the kubelet's bus answered %s", response.Status)
	}
	var status Status
	return status, json.NewDecoder(response.Body).Decode(&status)
}
