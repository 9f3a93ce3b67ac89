// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package cri ends the pods of a node through its container runtime, without the API server and the
// kubelet.
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
	// minimumGrace is the minimum time between SIGTERM and SIGKILL, as in the kubelet. If the time
	// until the deadline is too short for all buckets, each later bucket still has this time.
	minimumGrace = 2 * time.Second
	// stopMargin is added to the time of a container: the runtime needs it to kill the container
	// and to respond.
	stopMargin = 10 * time.Second
	// lastWait is the time in which the runtime must kill the last containers after the end of
	// their bucket's time.
	lastWait = 3 * time.Second
	// sandboxTime limits the removal of a pod's network, which can hang while the API server is
	// unreachable.
	sandboxTime = 5 * time.Second
	// listInterval is the interval at which the engine lists new pods while a bucket ends.
	listInterval = time.Second
	// retryInterval is the time between two attempts to reach the runtime.
	retryInterval = 250 * time.Millisecond
	// runtimePatience is the time without a response of the runtime after which the engine gives
	// up.
	runtimePatience = 30 * time.Second
	// kubeletInterval is the interval at which the engine checks whether the kubelet was started
	// again.
	kubeletInterval = time.Second
)

// Kubelet stops and starts the kubelet. Both methods are idempotent. Stop returns nil only when no
// kubelet process is left.
type Kubelet interface {
	Stop(ctx context.Context) error
	Start(ctx context.Context) error
}

// Config has the dependencies and options of an Engine.
type Config struct {
	// Endpoint returns the runtime's socket, unix://<path>, or on Windows its pipe, npipe://<path>.
	// The engine calls it before each connection, because the kubelet's configuration can change.
	Endpoint func() string
	// Table has the time of each priority. It must not be empty.
	Table buckets.Table
	// Pods returns the pods of the node, with their priorities, which the container runtime does
	// not know.
	Pods func() []pods.Pod
	// Kubelet is stopped before the first pod ends: otherwise it would restart the containers.
	Kubelet Kubelet
	// Final is set if the kubelet cannot be started again before the machine has restarted, as
	// during a shutdown on Windows.
	Final bool
	// Problem returns the reason why the kubelet cannot be stopped; empty if it can. With a
	// problem, the engine ends no pods, because the kubelet would start them again, and does not
	// stop the kubelet. A nil Problem means that there is none.
	Problem func() string
}

// Engine ends the pods of a node. It implements shutdown.Local.
type Engine struct {
	config  Config
	runtime *client
	// patience is runtimePatience, or shorter in tests.
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

// Running reports whether a container of a pod runs. podUID is the UID in the container runtime:
// for a static pod, it is not the UID of the mirror pod but the UID in the annotation
// kubernetes.io/config.mirror.
func (e *Engine) Running(ctx context.Context, podUID string) (bool, error) {
	return e.runtime.running(ctx, podUID)
}

// Resume starts the kubelet.
func (e *Engine) Resume(ctx context.Context) error {
	if e.config.Problem() != "" {
		return nil // the kubelet was not stopped
	}
	if e.config.Final {
		return shutdown.ErrFinal
	}
	if err := e.config.Kubelet.Start(ctx); err != nil {
		return fmt.Errorf("start the kubelet: %w", err)
	}
	return nil
}

// End implements shutdown.Local. It stops the kubelet and then ends the pods, beginning with the
// lowest bucket. After every bucket that had pods, it calls next from its own goroutine, with the
// pods that have ended since the last call. It ends static pods but does not pass them to next: the
// kubelet owns the status of their mirror pods, and would not restart static pods in phase Failed.
//
// A pod that exceeds the time of its bucket does not delay later buckets. If it still runs after
// the last bucket, End returns no error: the shutdown must not wait any longer. If the deadline is
// too short for the table, earlier buckets lose time before later ones lose their last 2 seconds. A
// zero deadline means no deadline. If the runtime does not answer for 30 seconds, the error is
// shutdown.ErrNothingToEnd: nothing can be ended in order. End checks this before it stops the
// kubelet, so that the kubelet keeps running on a machine without a runtime.
//
// End does not unmount volumes, which the kubelet would do.
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
		// Use only the remaining time from here on: the clock of the machine may be set.
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("cannot stop the pods: the deadline %s has passed", deadline.Format(time.RFC3339))
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
		// All buckets have ended, so ignore any error.
	case ctx.Err() != nil:
		return fmt.Errorf("ending pods was interrupted: %w", ctx.Err())
	case r.overdue():
		return fmt.Errorf("the deadline has passed and %d pods have not ended", left)
	case err != nil:
		return err
	}
	klog.FromContext(ctx).Info("Ended the pods of the node", "bucket", r.progress.Bucket, "done", r.progress.Done, "podsLeft", left)
	return nil
}
