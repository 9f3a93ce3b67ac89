// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// healthTimeout is the maximum time of a health check. The kubelet answers from memory.
const healthTimeout = 5 * time.Second

// Health checks the health of the kubelet.
type Health struct {
	// Address is the host and port of the kubelet's endpoint /healthz, see Facts.HealthzAddress.
	Address string
}

// Check returns an error if the kubelet does not report that it is healthy.
func (h Health) Check(ctx context.Context) error {
	if h.Address == "" {
		return errors.New("the health endpoint of the kubelet is disabled (healthzPort: 0); set the kubelet's healthzPort")
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.Address+"/healthz", nil)
	if err != nil {
		return err
	}
	// A connection of its own each time: a kept one would outlive a kubelet in the middle of its
	// end.
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("the kubelet is not healthy: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return fmt.Errorf("the kubelet is not healthy: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the kubelet is not healthy: %s: %q", response.Status, text)
	}
	return nil
}

// Instance identifies the running process of the kubelet: it changes with each restart.
func (Health) Instance(ctx context.Context) (string, error) {
	process, err := Find(ctx)
	return process.ID, err
}
