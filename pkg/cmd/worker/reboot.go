// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/worker"
)

// machine is the machine of the node. host implements it.
type machine interface {
	// BootID returns a string that is the same until the kernel boots again, as in the status of
	// the Node.
	BootID() (string, error)
	// Pending reports whether a shutdown is pending or in progress.
	Pending(ctx context.Context) (bool, error)
	// Reboot asks for a reboot, which other programs may delay or refuse.
	Reboot(ctx context.Context) error
}

// host is the machine of this process, whose root directory is mounted in the directory root.
type host struct{ root string }

func (host) BootID() (string, error)                     { return state.BootID() }
func (h host) Pending(ctx context.Context) (bool, error) { return logind.Pending(ctx, h.root) }
func (h host) Reboot(ctx context.Context) error          { return logind.Reboot(ctx, h.root) }

// runReboot reboots a node for maintenances, and reports whether it requires a reboot if file is
// not empty.
func runReboot(ctx context.Context, c clients, node, root, file string) error {
	r := &rebooter{machine: host{root}}
	var reporting sync.WaitGroup
	defer reporting.Wait()
	if file != "" {
		s := &sentinel{kube: c.kube, node: node, file: file}
		reporting.Go(func() { s.run(ctx) })
	}
	return runWorker(ctx, worker.Config{
		Class: v1alpha1.WorkerClassReboot, Holder: "haulout-worker-reboot", NodeName: node,
		Client: c.maintenance, Handler: r.reboot, Finished: r.hasBooted,
	})
}

// rebooter is the worker that reboots the node on which it runs.
type rebooter struct {
	machine machine
}

const (
	// checkPeriod is the time between two checks whether the shutdown is still pending.
	checkPeriod = 5 * time.Second
	// askPeriod is the time between two requests for a reboot that is refused.
	askPeriod = 30 * time.Second
)

// hasBooted reports whether the machine has booted since the node was offered.
func (r *rebooter) hasBooted(_ context.Context, t *worker.Task) bool {
	before := t.Object().Spec.Before.BootID
	id, err := r.machine.BootID()
	return err == nil && before != "" && id != before
}

// reboot reboots the machine, which ends this process: after the boot, hasBooted is true. If the
// reboot is refused, because a program blocks it for example, reboot asks again for as long as the
// server waits for a report.
func (r *rebooter) reboot(ctx context.Context, t *worker.Task) error {
	if t.Object().Spec.Before.BootID == "" {
		return errors.New("the NodeTask has no boot ID, so the worker cannot find out whether the node has booted")
	}
	if _, err := r.machine.BootID(); err != nil {
		return err
	}
	began, message := time.Now(), "The machine is asked to reboot"
	for {
		// The report confirms that the node still belongs to this worker.
		err := t.Report(ctx, worker.Progress{Message: message})
		if err == nil {
			if err = r.machine.Reboot(ctx); err == nil {
				return r.awaitShutdown(ctx, t)
			}
			message = "The machine is asked again to reboot, after a failure: " + err.Error()
			if time.Since(began) >= patience(t) && ctx.Err() == nil {
				return fmt.Errorf("the machine could not be asked to reboot within %s: %w", patience(t), err)
			}
		}
		klog.FromContext(ctx).Error(err, "Cannot reboot, will retry")
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(askPeriod):
		}
	}
}

// patience is how long a worker retries what fails before the work has begun, although it reports:
// as long as the server waits for a worker that does not.
func patience(t *worker.Task) time.Duration {
	return time.Duration(t.Object().Spec.ProgressDeadlineSeconds) * time.Second
}

// awaitShutdown sends heartbeats while the shutdown is delayed, for example by the node agent.
func (r *rebooter) awaitShutdown(ctx context.Context, t *worker.Task) error {
	reported := time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(checkPeriod):
		}
		pending, err := r.machine.Pending(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			// The bus may go down before this process.
			klog.FromContext(ctx).Error(err, "Cannot ask logind whether the shutdown is pending, will retry")
			continue
		case !pending:
			return errors.New("the reboot was cancelled on the node")
		case time.Since(reported) < t.HeartbeatInterval():
			continue
		}
		reported = time.Now()
		message := fmt.Sprintf("The machine will reboot when all programs allow it; see systemd-inhibit --list on %s", t.NodeName)
		if err := t.Report(ctx, worker.Progress{Message: message}); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot report that the reboot is delayed")
		}
	}
}
