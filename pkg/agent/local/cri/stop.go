// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// stopContainers ends the containers of a pod: it runs their preStop hooks, then stops all
// containers at the same time, except the sidecars. The runtime kills containers that do not end.
func (r *run) stopContainers(ctx context.Context, p *pod, until time.Time) error {
	ended := make([]chan struct{}, len(p.running))
	for i := range ended {
		ended[i] = make(chan struct{})
	}
	errs := make([]error, len(p.running))
	var containers sync.WaitGroup
	for i, c := range p.running {
		containers.Go(func() {
			// Close the channel even after a failure: the sidecars of a pod that cannot be ended
			// now must not wait for it.
			defer close(ended[i])
			r.preStop(ctx, p, c, until)
			for _, other := range p.waitsFor(c.name) {
				waitFor(ctx, ended[other], until)
			}
			if err := r.engine.runtime.stopContainer(ctx, c.id, stopTimeout(time.Until(until))); err != nil {
				errs[i] = fmt.Errorf("stop container %s: %w", c.name, err)
			}
		})
	}
	containers.Wait()
	return errors.Join(errs...)
}

// preStop runs the hook of a container once, within the time of the pod. As in the kubelet, a
// failed hook does not stop the end of the container.
func (r *run) preStop(ctx context.Context, p *pod, c container, until time.Time) {
	raw := c.annotations[annotationPreStop]
	if raw == "" || time.Until(until) <= 0 {
		return
	}
	r.mu.Lock()
	again := r.hooked[c.id]
	r.hooked[c.id] = true
	r.mu.Unlock()
	if again {
		return
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	logger := klog.FromContext(ctx)
	began := time.Now()
	err := r.engine.runtime.runHook(ctx, c, raw)
	if err != nil {
		// Do not log this by default: the error of a hook can contain secrets of the pod.
		logger.V(2).Info("PreStop hook failed", "pod", klog.KRef(p.namespace, p.name), "container", c.name, "err", err)
	}
	logger.V(1).Info("Ran preStop hook", "pod", klog.KRef(p.namespace, p.name), "container", c.name,
		"failed", err != nil, "took", time.Since(began).Round(time.Millisecond))
}

// stopSandboxes stops the rest of a pod, above all its network. The pod counts as ended even if
// this fails: a network that needs the API server cannot be removed without it.
func (r *run) stopSandboxes(ctx context.Context, p *pod) {
	for _, id := range p.ready {
		err := r.engine.runtime.stopSandbox(ctx, id)
		if err == nil || status.Code(err) == codes.Unavailable || ctx.Err() != nil {
			continue
		}
		r.mu.Lock()
		r.untouchable[id] = true
		r.mu.Unlock()
		klog.FromContext(ctx).Error(err, "Sandbox of an ended pod was not stopped", "pod", klog.KRef(p.namespace, p.name), "sandbox", id)
	}
}

// stopTimeout returns the time between the two signals, in whole seconds, as the runtime requires.
// It rounds, because a bucket of five seconds has 4.99 left when its pods are stopped.
func stopTimeout(left time.Duration) time.Duration {
	return max(minimumGrace, left.Round(time.Second))
}

func wholeSeconds(d time.Duration) int64 {
	return max(1, int64(math.Ceil(d.Seconds())))
}

// wait waits, and returns false if the context ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// waitFor waits until a channel is closed, a time is reached, or the context ends.
func waitFor(ctx context.Context, done <-chan struct{}, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
