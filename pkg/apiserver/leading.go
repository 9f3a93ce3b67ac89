// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
)

// LeaderElection configures the election of the replica that runs the controllers. The Lease is in
// the host cluster.
type LeaderElection struct {
	// Enabled is false if the controllers run without a Lease.
	Enabled bool
	// Namespace and Name identify the Lease.
	Namespace, Name string
	// Identity is the name of this replica in the Lease. A server that is killed and starts again
	// with the same identity gets its Lease back immediately, so two servers that may run at the
	// same time must have different identities.
	Identity string
	// LeaseDuration is the time that other replicas wait before they acquire the Lease from a
	// holder that does not renew it. A holder that cannot renew the Lease stops its controllers
	// after RenewDeadline. RetryPeriod is the time between attempts.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

const (
	// CallGrace is the time for which a call to the host cluster may continue after the end of the
	// controllers' context. A completed call is better than an interrupted one, but each call must
	// end before another replica can acquire the Lease.
	CallGrace = 4 * time.Second
	// StopTimeout is the time in which the controllers must stop after the Lease could not be
	// renewed. After that the process exits.
	StopTimeout = CallGrace + time.Second

	// shutdownTimeout is the time in which the controllers must stop while the Lease is still
	// renewed.
	shutdownTimeout = 20 * time.Second
)

// Controllers runs a set of controllers whenever this replica leads.
type Controllers struct {
	// Leases is the client for the Lease. It has its own connection and rate limiter: renewals must
	// not wait for requests of the controllers.
	Leases coordinationclient.LeasesGetter
	// Election configures whether and when this replica leads.
	Election LeaderElection
	// Run creates a new set of controllers, runs them until the context ends, and returns when the
	// last of their writes is done. It is called again if this replica loses and regains
	// leadership. The controllers must call mayAct before each write, and must not write if it
	// returns an error: when a suspended process resumes, its controllers can run before their
	// context ends.
	Run func(ctx context.Context, mayAct func(grace time.Duration) error) error
	// StandBy runs while the controllers of this replica do not run, until its context ends; nil if
	// there is nothing to do.
	StandBy func(ctx context.Context)
	// Storage describes the storage of this server; nil if unknown.
	Storage *Storage
	// Service is the Service in front of this server. Registered returns the Service in the
	// APIService, or the zero value if there is none. A replica leads only while both are the same.
	Service    types.NamespacedName
	Registered func(context.Context) (types.NamespacedName, error)
	// Recorder records events with the reason why this replica does not lead.
	Recorder events.EventRecorder
	// Exit ends the process. It is called if two replicas could otherwise act at the same time.
	Exit func(reason error)

	// Liveness reports whether the controllers' loops make progress; nil means always healthy.
	Liveness func(*http.Request) error

	watchdog  *leaderelection.HealthzAdaptor
	standby   standby
	gate      gate
	sightings sightings
}

func (c *Controllers) addTo(server *genericapiserver.GenericAPIServer) error {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	registerMetrics()
	if c.Election.Enabled {
		// Do not make this part of readiness: the server can still serve requests while no replica
		// leads. Otherwise kube-apiserver would treat the API as unavailable, and could not delete
		// namespaces.
		if err := server.AddLivezChecks(0, healthz.NamedCheck(leaderElectionCheck, c.watch())); err != nil {
			cancel()
			return err
		}
		server.Handler.NonGoRestfulMux.HandleFunc("/readyz/"+leaderElectionCheck, c.serveReady)
	}
	if c.Liveness != nil {
		// Do not make this part of readiness: the server can still serve requests with a stuck
		// controller.
		if err := server.AddLivezChecks(0, healthz.NamedCheck("controllers", c.Liveness)); err != nil {
			cancel()
			return err
		}
	}
	var start sync.Once
	if err := server.AddPostStartHook("start-controllers", func(hook genericapiserver.PostStartHookContext) error {
		logger := klog.FromContext(hook).WithName("controllers")
		start.Do(func() {
			go func() {
				defer close(stopped)
				c.lead(klog.NewContext(ctx, logger))
			}()
		})
		return nil
	}); err != nil {
		cancel()
		return err
	}
	// The controllers write through this server, so they must end before it stops serving.
	return server.AddPreShutdownHook("stop-controllers", func() error {
		cancel()
		start.Do(func() { close(stopped) })
		select {
		case <-stopped:
			return nil
		case <-time.After(shutdownTimeout):
			return errors.New("controllers did not stop in time")
		}
	})
}

// leaderElectionCheck is the name of the checks of the leader election: /livez/leader-election is
// part of /livez; /readyz/leader-election is separate from /readyz.
const leaderElectionCheck = "leader-election"

// serveReady responds with success if this replica leads, follows or may lead; otherwise with
// status 500 and the reason.
func (c *Controllers) serveReady(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if err := c.checkReady(); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprintf(w, "%s check failed: %v\n", leaderElectionCheck, err)
		return
	}
	_, _ = fmt.Fprint(w, "ok")
}

// watch returns a health check. A follower is healthy. A leader is not healthy if it has not
// renewed the Lease for twice LeaseDuration.
func (c *Controllers) watch() func(*http.Request) error {
	c.watchdog = leaderelection.NewLeaderHealthzAdaptor(c.Election.LeaseDuration)
	return c.watchdog.Check
}

// lead runs the controllers each time this replica becomes the leader, until the context ends.
func (c *Controllers) lead(ctx context.Context) {
	c.sightings.begin()
	defer c.standby.end()
	for ctx.Err() == nil {
		c.standby.begin(ctx, c.StandBy)
		switch {
		case !c.Election.Enabled:
			c.runOnce(ctx, func(time.Duration) error { return nil })
		case c.mayLead(ctx):
			c.takePartInElection(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(c.Election.RetryPeriod):
		}
	}
}

// runOnce runs one set of controllers and returns when it has ended.
func (c *Controllers) runOnce(ctx context.Context, mayAct func(grace time.Duration) error) {
	if ctx.Err() != nil {
		return
	}
	c.standby.end()
	logger := klog.FromContext(ctx)
	logger.Info("Controllers start", "identity", c.Election.Identity)
	leaderGauge.Set(1)
	defer leaderGauge.Set(0)
	if err := c.Run(ctx, mayAct); err != nil && ctx.Err() == nil {
		logger.Error(err, "The controllers ended, restarting them")
		return
	}
	logger.Info("Controllers stopped", "cause", context.Cause(ctx))
}

// standby is the run of StandBy while no controllers run.
type standby struct {
	mu sync.Mutex
	// stop ends the run and waits for its end; nil if there is none.
	stop func()
}

// begin starts a run, unless there is one.
func (s *standby) begin(ctx context.Context, run func(context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if run == nil || s.stop != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() { run(ctx) })
	s.stop = func() { cancel(); ended.Wait() }
}

// end ends the run, if there is one, and returns when it has ended.
func (s *standby) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}
