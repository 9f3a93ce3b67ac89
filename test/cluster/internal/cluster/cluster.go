// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster starts a development cluster, stops it and reports its status.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"haulout.dev/haulout/test/cluster/internal/controlplane"
	"haulout.dev/haulout/test/cluster/internal/layout"
	"haulout.dev/haulout/test/cluster/internal/options"
	"haulout.dev/haulout/test/cluster/internal/process"
	"haulout.dev/haulout/test/cluster/internal/state"
)

// startOrder is the order in which processes are started; they are stopped in the reverse order.
var startOrder = []string{
	layout.Network, layout.Etcd, layout.APIServer, layout.ControllerManager, layout.Scheduler, layout.Kwok, layout.Haulout,
}

// Cluster is one development cluster. Its methods Up, Down and Status are the commands of the
// program.
type Cluster struct {
	Layout layout.Layout
	Out    io.Writer

	options options.Options
	plane   controlplane.ControlPlane

	// mu guards the fields below: processes are started in parallel.
	mu    sync.Mutex
	state *state.State
	// watched has the processes that must run until the end of this run.
	watched map[string]process.Record
	// started has the names of the processes that this run has started.
	started map[string]bool
	// changed is set after this run has changed the cluster.
	changed bool
}

// processError is an error of a process; the log of the process has the reason.
type processError struct {
	name string
	err  error
}

func (e *processError) Error() string { return e.name + " " + e.err.Error() }
func (e *processError) Unwrap() error { return e.err }

var errEnded = errors.New("ended")

func (c *Cluster) printf(format string, args ...any) {
	fmt.Fprintf(c.Out, format+"\n", args...)
}

// lock locks the cluster's folder and reads its state.
func (c *Cluster) lock(ctx context.Context) (unlock func(), found bool, err error) {
	unlock, err = state.Lock(ctx, c.Layout.LockFile(), func() {
		c.printf("Another program changes the cluster in %s, waiting for it", c.Layout.Dir)
	})
	if err != nil {
		return nil, false, fmt.Errorf("lock %s: %w", c.Layout.LockFile(), err)
	}
	c.state, found, err = state.Load(c.Layout.StateFile())
	if err != nil {
		unlock()
		return nil, false, err
	}
	c.watched, c.started = map[string]process.Record{}, map[string]bool{}
	return unlock, found, nil
}

// record writes a process to the state file immediately after its start, so that a later run finds
// it.
func (c *Cluster) record(name string, record process.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Processes[name] = record
	c.watched[name] = record
	c.started[name] = true
	c.changed = true
	return c.state.Save(c.Layout.StateFile())
}

func (c *Cluster) recorded(name string) (process.Record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	record, ok := c.state.Processes[name]
	return record, ok
}

func (c *Cluster) watch(name string, record process.Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watched[name] = record
}

// noteChange records that this run has changed the cluster, so that Up reports it.
func (c *Cluster) noteChange() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = true
}

func (c *Cluster) forget(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.state.Processes, name)
	delete(c.started, name)
	c.changed = true
	return c.state.Save(c.Layout.StateFile())
}

// ensure starts or restarts a process unless it runs as specified. It reports whether it has
// started the process.
func (c *Cluster) ensure(ctx context.Context, spec process.Spec) (started bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, context.Cause(ctx)
	}
	record, known := c.recorded(spec.Name)
	binary, err := process.FingerprintOf(spec.Path, record.Binary)
	if err != nil {
		return false, fmt.Errorf("%s cannot be started: %w", spec.Name, err)
	}
	switch reason := record.Outdated(spec, binary); {
	case !known:
	case !record.Alive():
		c.printf("%s has ended, restarting it", spec.Name)
	case reason == "":
		c.watch(spec.Name, record)
		return false, nil
	default:
		c.printf("Restarting %s: %s", spec.Name, reason)
		if err := c.stop(ctx, spec.Name); err != nil {
			return false, err
		}
	}
	record, err = process.Start(spec, binary)
	if err != nil {
		return false, fmt.Errorf("%s cannot be started: %w", spec.Name, err)
	}
	return true, c.record(spec.Name, record)
}

// waitReady waits until the probe of a process succeeds.
func (c *Cluster) waitReady(ctx context.Context, name string) error {
	for {
		lastErr := c.plane.Probe(ctx, name)
		if lastErr == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return c.notReady(ctx, name, lastErr)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// notReady returns the error of a process that did not become ready, or the error of the process
// whose end has ended the wait.
func (c *Cluster) notReady(ctx context.Context, name string, lastErr error) error {
	var died *processError
	if cause := context.Cause(ctx); errors.As(cause, &died) || errors.Is(cause, context.Canceled) {
		return cause
	}
	return &processError{name, fmt.Errorf("is not ready (%w): %w", context.Cause(ctx), lastErr)}
}

// supervise cancels the returned context when a process ends that this run has started or has found
// running. Otherwise, a wait for a server that has ended would only report a timeout.
func (c *Cluster) supervise(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if name := c.ended(); name != "" {
				cancel(&processError{name, errEnded})
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

func (c *Cluster) ended() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range slices.Concat(startOrder, realNodeNames()) {
		if record, ok := c.watched[name]; ok && !record.Alive() {
			return name
		}
	}
	return ""
}

// grace is the time after SIGTERM before a process is killed.
var grace = map[string]time.Duration{
	// The server completes requests and releases its lease.
	layout.Haulout: 20 * time.Second,
}

const defaultGrace = 10 * time.Second

func (c *Cluster) stop(ctx context.Context, name string) error {
	record, ok := c.recorded(name)
	if !ok {
		return nil
	}
	limit, ok := grace[name]
	if !ok {
		limit = defaultGrace
	}
	// stop ends the process, so supervise must ignore its end.
	c.mu.Lock()
	delete(c.watched, name)
	c.mu.Unlock()
	killed, err := record.Stop(ctx, limit)
	if err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	if killed {
		c.printf("%s did not end on SIGTERM and was killed", name)
	}
	return c.forget(name)
}

// stopAll stops the processes for which wanted returns true: haulout-apiserver while kube-apiserver
// still runs, then the real nodes, the other clients of kube-apiserver, kube-apiserver itself, etcd
// and the network.
func (c *Cluster) stopAll(ctx context.Context, wanted func(name string) bool) error {
	steps := [][]string{
		{layout.Haulout},
		realNodeNames(),
		{layout.Kwok, layout.Scheduler, layout.ControllerManager},
		{layout.APIServer},
		{layout.Etcd},
		{layout.Network},
	}
	var errs []error
	for _, step := range steps {
		var group sync.WaitGroup
		results := make([]error, len(step))
		for i, name := range step {
			if wanted(name) {
				group.Go(func() { results[i] = c.stop(ctx, name) })
			}
		}
		group.Wait()
		errs = append(errs, results...)
	}
	return errors.Join(errs...)
}

func removeAll(paths []string) error {
	var errs []error
	for _, path := range paths {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}
