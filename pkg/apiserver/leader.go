// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
)

// ErrLeaseLost is the cause with which the controllers' context ends if the Lease was deleted or
// got another holder while this replica held it. Another replica may already act, so the calls of
// the controllers are cancelled without CallGrace.
var ErrLeaseLost = errors.New("the lease was deleted or has another holder")

var (
	errNotRenewed = errors.New("the lease was not renewed in time")
	errMayNotLead = errors.New("this replica may no longer lead")
)

// gatePeriod is the interval at which a replica that takes part in the election checks whether it
// still may lead.
const gatePeriod = 10 * time.Second

// term is one term of leadership: from acquiring the Lease until the controllers have ended.
type term struct {
	*Controllers
	lease *lease
	// server is a context that ends when the server shuts down. allowed also ends when this replica
	// may no longer lead.
	server, allowed context.Context
	// ended is a channel that is closed when the controllers have ended.
	ended chan struct{}
	// leave is a function that ends the participation in the election, which stops the renewals.
	leave context.CancelFunc
}

// takePartInElection returns when this replica has released or lost leadership, or when the context
// ends. Another replica can acquire the Lease only after the controllers of this one have ended:
// this replica renews the Lease while they stop, and releases it afterwards. If the Lease was
// deleted or has another holder, this replica cancels the calls of its controllers immediately. If
// it cannot renew the Lease, it stops the controllers after RenewDeadline, cancels their calls
// after CallGrace, and exits if they still run. All of this takes less than LeaseDuration, the
// minimum time that other replicas wait. A process that was suspended for longer than that notices
// before its next write that the Lease is too old.
func (c *Controllers) takePartInElection(ctx context.Context) {
	electionCtx, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	allowed, forbid := context.WithCancelCause(ctx)
	defer forbid(nil)
	l := newLease(c.Leases, c.Election, c.Storage, &c.sightings)
	t := &term{Controllers: c, lease: l, server: ctx, allowed: allowed, ended: make(chan struct{}), leave: leave}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name:          c.Election.Name,
		Lock:          l,
		LeaseDuration: c.Election.LeaseDuration,
		RenewDeadline: c.Election.RenewDeadline,
		RetryPeriod:   c.Election.RetryPeriod,
		// With true, client-go would release the Lease before the controllers stop.
		ReleaseOnCancel: false,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: t.run,
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot set up leader election")
		return
	}
	if c.watchdog != nil {
		// client-go itself sets the elector of the watchdog only in RunOrDie.
		c.watchdog.SetLeaderElection(elector)
		defer c.watchdog.SetLeaderElection(nil)
	}
	// A replica that does not lead leaves the election immediately. The leader leaves it when its
	// controllers have ended.
	stop := context.AfterFunc(allowed, func() {
		if !l.isHeld() {
			leave()
		}
	})
	defer stop()
	go wait.UntilWithContext(electionCtx, func(ctx context.Context) {
		if c.mustNotLead(ctx) {
			forbid(errMayNotLead)
		}
	}, gatePeriod)
	elector.Run(electionCtx)
	if l.isHeld() {
		<-t.ended
	}
	l.release(context.WithoutCancel(ctx))
}

// run runs the controllers until the server shuts down, this replica may no longer lead, the
// election ends, or the Lease has not been renewed for RenewDeadline.
func (t *term) run(leading context.Context) {
	defer t.leave()
	defer close(t.ended)
	ctx, cancel := context.WithCancelCause(leading)
	defer cancel(nil)
	defer context.AfterFunc(t.allowed, func() { cancel(context.Cause(t.allowed)) })()
	defer context.AfterFunc(leading, func() { t.endIfStuck(errNotRenewed, StopTimeout) })()
	t.lease.onLoss(func() {
		cancel(ErrLeaseLost)
		go t.endIfStuck(ErrLeaseLost, StopTimeout)
	})
	defer t.lease.onDeadline(func() {
		cancel(errNotRenewed)
		t.endIfStuck(errNotRenewed, StopTimeout)
	})()
	defer context.AfterFunc(ctx, func() {
		// When the server shuts down, its shutdown hook waits for the controllers.
		if t.server.Err() == nil {
			t.endIfStuck(context.Cause(ctx), shutdownTimeout)
		}
	})()
	if t.forget(ctx) {
		t.runOnce(ctx, t.lease.check)
	}
}

// forget deletes the NodeTasks of an outdated storage. It repeats that until it has succeeded, and
// returns false if the term has ended before.
func (t *term) forget(ctx context.Context) bool {
	if t.Storage == nil || !t.Storage.outdated.Load() {
		return true
	}
	err := wait.PollUntilContextCancel(ctx, t.Election.RetryPeriod, true, func(ctx context.Context) (bool, error) {
		err := t.lease.check(CallGrace)
		if err == nil && t.Storage.Forget != nil {
			err = t.Storage.Forget(ctx)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot delete the NodeTasks of a storage that is older than the cluster, the controllers wait")
		}
		return err == nil, nil
	})
	if err != nil {
		return false
	}
	t.Storage.outdated.Store(false)
	return true
}

// endIfStuck ends the process if the controllers have not ended after the given time.
func (t *term) endIfStuck(cause error, after time.Duration) {
	select {
	case <-t.ended:
	case <-time.After(after):
		t.Exit(fmt.Errorf("the controllers have not stopped within %v (%w)", after, cause))
	}
}
