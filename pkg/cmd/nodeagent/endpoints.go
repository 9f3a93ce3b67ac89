// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/shutdown"
)

const (
	healthzPath = "/healthz"
	metricsPath = "/metrics"
	statuszPath = "/statusz"

	// listenRetry is the pause before the agent tries again to bind an address. It runs without its
	// endpoints meanwhile: a port that is in use must not keep a node from shutting down in order.
	listenRetry = 10 * time.Second
	// requestTimeout limits how long a client may take to send a request or to read an answer.
	requestTimeout = 10 * time.Second
)

// Report is what a running agent tells about itself at /statusz.
type Report struct {
	// Version of the agent.
	Version string `json:"version"`
	// Node is the name of the node.
	Node string `json:"node"`
	// BootID identifies the boot of the machine.
	BootID string `json:"bootID"`
	// Started is when the agent was started.
	Started time.Time `json:"started"`
	// Engine is how the agent ends pods without the API, empty if it does not.
	Engine string `json:"engine,omitempty"`
	// StaticPodProblem is why static pods cannot be stopped and restarted, empty if they can.
	StaticPodProblem string `json:"staticPodProblem,omitempty"`
	// Parked are the paths of the parked manifests.
	Parked []string `json:"parked,omitempty"`
	// Shutdown is what the agent does.
	Shutdown shutdown.Status `json:"shutdown"`
}

// endpoints returns the handler of the agent's endpoints.
func endpoints(report func() Report) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+healthzPath, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET "+metricsPath, legacyregistry.Handler())
	mux.HandleFunc("GET "+statuszPath, func(w http.ResponseWriter, _ *http.Request) {
		data, err := json.MarshalIndent(report(), "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(data, '\n'))
	})
	return mux
}

// serve serves the handler on an address until the context ends. It never gives up.
func serve(ctx context.Context, address string, handler http.Handler) {
	logger := klog.FromContext(ctx)
	for {
		err := serveOnce(ctx, address, handler)
		if ctx.Err() != nil {
			return
		}
		logger.Error(err, "Failed to serve metrics, trying again", "address", address, "after", listenRetry)
		select {
		case <-ctx.Done():
			return
		case <-time.After(listenRetry):
		}
	}
}

func serveOnce(ctx context.Context, address string, handler http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Serving metrics", "address", listener.Addr().String())
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: requestTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    1 << 14,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	return server.Serve(listener)
}
