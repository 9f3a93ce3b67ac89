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
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
)

const (
	// pollPeriod is the time between two questions to the bus.
	pollPeriod = 200 * time.Millisecond
	// lockGrace is how long a kubelet may have no lock, while it is restarted, before the pods are
	// ended without it.
	lockGrace = 3 * time.Second
)

// Kubelet stops and starts the kubelet. Both are idempotent.
type Kubelet interface {
	Stop(ctx context.Context) error
	Start(ctx context.Context) error
}

// EngineConfig is what an Engine needs.
type EngineConfig struct {
	// Dir is the folder of the bus' sockets.
	Dir string
	// Kubelet is restarted after a shutdown that was cancelled.
	Kubelet Kubelet
	// Fallback ends the pods if the kubelet does not.
	Fallback shutdown.Local
}

// Engine ends the pods of a node through its kubelet. It implements shutdown.Local.
type Engine struct {
	config  EngineConfig
	control *control
}

var _ shutdown.Local = &Engine{}

// NewEngine returns an engine.
func NewEngine(config EngineConfig) (*Engine, error) {
	if config.Dir == "" || config.Kubelet == nil || config.Fallback == nil {
		return nil, errors.New("a folder, the kubelet and a fallback are required")
	}
	return &Engine{config: config, control: newControl(config.Dir)}, nil
}

// Name implements shutdown.Local.
func (e *Engine) Name() string { return "KubeletBus" }

// End implements shutdown.Local. The kubelet ends the pods by its own table, and cannot be
// interrupted: next is not called. If the kubelet has no lock on the bus, because it was not
// started with it or does not come back, the fallback ends the pods.
func (e *Engine) End(ctx context.Context, resume state.Local, deadline time.Time, next func(state.Local, []state.KilledPod) bool) error {
	if resume.Done {
		return nil
	}
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	locked := time.Now()
	for {
		status, err := e.control.call(ctx, http.MethodPost, pathBegin)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("ending pods was interrupted: %w", ctx.Err())
		case err == nil && status.Done:
			klog.FromContext(ctx).Info("The kubelet has ended the pods of the node")
			return nil
		case err == nil && status.Locks > 0:
			locked = time.Now()
		case time.Since(locked) > lockGrace:
			klog.FromContext(ctx).Error(err, "The kubelet does not end the pods of the node", "instead", e.config.Fallback.Name())
			return e.config.Fallback.End(ctx, resume, deadline, next)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("ending pods was interrupted: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}

// Resume implements shutdown.Local. The kubelet is restarted: after a shutdown that is cancelled,
// it has lost its lock and leaves static pods stopped (seen in 1.36).
func (e *Engine) Resume(ctx context.Context) error {
	_, canceled := e.control.call(ctx, http.MethodPost, pathCancel)
	if err := e.config.Kubelet.Stop(ctx); err != nil {
		return errors.Join(canceled, fmt.Errorf("stop the kubelet: %w", err))
	}
	if err := e.config.Kubelet.Start(ctx); err != nil {
		return errors.Join(canceled, fmt.Errorf("start the kubelet: %w", err))
	}
	return canceled
}

// Problem returns a sentence that says why the kubelet would not end the pods, empty if it would.
func (e *Engine) Problem(ctx context.Context) string {
	status, err := e.control.call(ctx, http.MethodGet, pathStatus)
	switch {
	case err != nil:
		return fmt.Sprintf("The kubelet cannot be told to end its pods, %s would: %v.", e.config.Fallback.Name(), err)
	case status.Locks == 0 && !status.Pending:
		return fmt.Sprintf("The kubelet holds no lock on the agent's bus, so %s would end the pods: set the kubelet's "+
			"shutdownGracePeriodByPodPriority, and restart the kubelet.", e.config.Fallback.Name())
	}
	return ""
}
