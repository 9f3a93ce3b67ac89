// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package cri ends the pods of a node through its container runtime, without the API server and
// without the kubelet.
package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/buckets"
	"haulout.dev/haulout/pkg/agent/local/pods"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
)

const (
	// minimumGrace is the shortest time between the signal to end and the one to kill, as in the
	// kubelet. Each later bucket keeps this much if the deadline comes before the end of all.
	minimumGrace = 2 * time.Second
	// stopMargin is added to the time of a container: the runtime needs it to kill and to answer.
	stopMargin = 10 * time.Second
	// lastWait is how long the last containers may take to be killed after the time of their
	// bucket.
	lastWait = 3 * time.Second
	// sandboxTime limits the removal of a pod's network, which can hang when the API server is
	// unreachable.
	sandboxTime = 5 * time.Second
	// listInterval is the time between two looks for pods that appear while a bucket ends.
	listInterval = time.Second
	// retryInterval is the time between two attempts to reach the runtime.
	retryInterval = 250 * time.Millisecond
	// runtimePatience is how long the runtime may not answer before there is nothing to end.
	runtimePatience = 30 * time.Second
	// kubeletInterval is the time between two looks for a kubelet that was started again.
	kubeletInterval = time.Second
)

// Kubelet stops and starts the kubelet. Both are idempotent. Stop returns nil only when no process
// of a kubelet is left.
type Kubelet interface {
	Stop(ctx context.Context) error
	Start(ctx context.Context) error
}

// Pods tells what the container runtime does not know of the pods: their priorities.
type Pods interface {
	Pods() []pods.Pod
}

// Config is what an Engine needs.
type Config struct {
	// Endpoint returns the runtime's socket, unix://<path>, or on Windows its pipe, npipe://<path>.
	// It is asked before each connection, because the kubelet decides.
	Endpoint func() string
	// Table has the time of each priority. It must not be empty.
	Table buckets.Table
	// Pods are the pods of the node.
	Pods Pods
	// Kubelet is stopped before the first pod ends: it would restart the containers.
	Kubelet Kubelet
	// Final means that the kubelet cannot be started again before the machine has restarted, as on
	// Windows while it shuts down.
	Final bool
	// Problem returns why the kubelet cannot be stopped, empty if it can. Then no pods are ended,
	// because the kubelet would start them again, and the kubelet is left alone. nil means that it
	// can.
	Problem func() string
}

// Engine ends the pods of a node. It implements shutdown.Local.
type Engine struct {
	config  Config
	runtime *client
	// patience is runtimePatience, and less in tests.
	patience time.Duration
}

var _ shutdown.Local = &Engine{}

// New returns an engine. It does not connect to the runtime, which may be down when the agent
// starts.
func New(config Config) (*Engine, error) {
	if len(config.Table) == 0 {
		return nil, errors.New("table of buckets is empty, must have at least one")
	}
	if config.Pods == nil || config.Kubelet == nil || config.Endpoint == nil {
		return nil, errors.New("pods, kubelet and endpoint must be set")
	}
	if config.Problem == nil {
		config.Problem = func() string { return "" }
	}
	runtime, err := newClient(config.Endpoint)
	if err != nil {
		return nil, err
	}
	return &Engine{config: config, runtime: runtime, patience: runtimePatience}, nil
}

// Close closes the connection to the runtime.
func (e *Engine) Close() error {
	return e.runtime.conn.Close()
}

// Name implements shutdown.Local.
func (e *Engine) Name() string { return "CRI" }

// Running reports whether a container of a pod runs. The uid is the one that the runtime knows: for
// a static pod not that of its mirror pod, but that in its annotation kubernetes.io/config.mirror.
func (e *Engine) Running(ctx context.Context, podUID string) (bool, error) {
	return e.runtime.running(ctx, podUID)
}

// Resume starts the kubelet.
func (e *Engine) Resume(ctx context.Context) error {
	if e.config.Problem() != "" {
		return nil // it was not stopped
	}
	if e.config.Final {
		return shutdown.ErrFinal
	}
	if err := e.config.Kubelet.Start(ctx); err != nil {
		return fmt.Errorf("start the kubelet: %w", err)
	}
	return nil
}

// End implements shutdown.Local. It stops the kubelet and then ends the pods, the lowest bucket
// first. It calls next after every bucket that had pods, from its own goroutine, with the pods that
// have ended since the last call. Static pods are ended and not passed to next: the status of their
// mirror pods belongs to the kubelet, which would not restart them if it was Failed.
//
// A pod that has not ended when the time of its bucket is over does not hold up the later ones, and
// after the last bucket it is no error: the shutdown must not wait for it any longer. If
// a deadline is too short for the table, the earlier buckets lose time before the later ones lose
// their last 2 seconds. A zero deadline is none. If the runtime does not answer for 30 seconds, it
// has nothing that could be ended in order: the error is then shutdown.ErrNothingToEnd. It is asked
// before the kubelet is stopped, which thus keeps running on a machine without a runtime.
//
// Volumes are not unmounted: the kubelet would do it.
func (e *Engine) End(ctx context.Context, resume state.Local, deadline time.Time, next func(state.Local, []state.KilledPod) bool) error {
	if resume.Done {
		return nil
	}
	if problem := e.config.Problem(); problem != "" {
		return fmt.Errorf("%w: %s", shutdown.ErrNothingToEnd, problem)
	}
	if resume.Started.IsZero() {
		resume.Started = time.Now()
	}
	r := newRun(e, resume, next)
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !deadline.IsZero() {
		// From here on the clock of the machine may be set: only the time that is left counts.
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("pods cannot be ended: the deadline %s is over", deadline.Format(time.RFC3339))
		}
		r.deadline = time.Now().Add(left)
		var stop context.CancelFunc
		runCtx, stop = context.WithTimeout(runCtx, left)
		defer stop()
	}
	if _, err := r.awaitRuntime(runCtx, r.first); err != nil {
		return err
	}
	if err := e.config.Kubelet.Stop(runCtx); err != nil {
		return fmt.Errorf("stop the kubelet: %w", err)
	}
	r.pods.Go(func() { r.keepStopped(runCtx) })
	err := r.buckets(runCtx)
	left := r.left()
	cancel()
	r.pods.Wait()
	r.reportRest()
	switch {
	case r.progress.Done:
		// The buckets are over, whatever has happened since.
	case ctx.Err() != nil:
		return fmt.Errorf("ending pods was interrupted: %w", ctx.Err())
	case r.overdue():
		return fmt.Errorf("deadline is over and %d pods have not ended", left)
	case err != nil:
		return err
	}
	klog.FromContext(ctx).Info("Ended the pods of the node", "bucket", r.progress.Bucket, "done", r.progress.Done, "podsLeft", left)
	return nil
}
