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

package apiserver

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// LeaderElection decides which replica runs the controllers. The lease lives in the host cluster.
type LeaderElection struct {
	// Enabled off lets the controllers run without asking.
	Enabled bool
	// Namespace and Name name the Lease.
	Namespace, Name string
	// Identity is what the holder calls itself. A server with embedded storage uses the identity of its data, so that it gets its lease back
	// at once when it was killed and comes up again.
	Identity string
	// LeaseDuration is how long others wait before they take over from a holder that is silent; RenewDeadline is when a holder that
	// cannot renew gives up; RetryPeriod is the time between attempts.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// Controllers runs a set of controllers whenever this replica leads.
type Controllers struct {
	// Host is the client for the lease.
	Host kubernetes.Interface
	// Election decides whether this replica leads.
	Election LeaderElection
	// Run makes the controllers anew, runs them until the context ends, and returns when the last of their writes is done. It is called
	// again if leadership was lost and comes back.
	Run func(context.Context) error

	// Liveness says whether the controllers' loops move; nil is always healthy.
	Liveness func(*http.Request) error

	watchdog *leaderelection.HealthzAdaptor
	// running is held while a set of controllers runs, so that two never do.
	running sync.Mutex
}

// stopTimeout bounds how long shutting down waits for the controllers to finish what they write.
const stopTimeout = 20 * time.Second

func (c *Controllers) addTo(server *genericapiserver.GenericAPIServer) error {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	if c.Election.Enabled {
		// A follower that waits is healthy; a leader that has not renewed for longer than its lease is stuck.
		c.watchdog = leaderelection.NewLeaderHealthzAdaptor(c.Election.LeaseDuration)
		if err := server.AddHealthChecks(healthz.NamedCheck("leader-election", c.watchdog.Check)); err != nil {
			cancel()
			return err
		}
	}
	if c.Liveness != nil {
		// Not part of readiness: a stuck controller is no reason to refuse requests.
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
	// The controllers write through this very server, so they end before it stops to serve.
	return server.AddPreShutdownHook("stop-controllers", func() error {
		cancel()
		start.Do(func() { close(stopped) })
		select {
		case <-stopped:
			return nil
		case <-time.After(stopTimeout):
			return errors.New("controllers did not stop in time")
		}
	})
}

// lead runs the controllers each time this replica becomes the leader, until the context ends.
func (c *Controllers) lead(ctx context.Context) {
	for ctx.Err() == nil {
		if c.Election.Enabled {
			c.takePartInElection(ctx)
		} else {
			c.runOnce(ctx)
		}
		select {
		case <-ctx.Done():
		case <-time.After(c.Election.RetryPeriod):
		}
	}
	// A set that is still on its way out is waited for.
	c.running.Lock()
	defer c.running.Unlock()
}

// runOnce runs one set of controllers. It starts it only when the one before has come to its end.
func (c *Controllers) runOnce(ctx context.Context) {
	c.running.Lock()
	defer c.running.Unlock()
	if ctx.Err() != nil {
		return
	}
	logger := klog.FromContext(ctx)
	logger.Info("Controllers start", "identity", c.Election.Identity)
	if err := c.Run(ctx); err != nil && ctx.Err() == nil {
		logger.Error(err, "Controllers ended, will start again")
		return
	}
	logger.Info("Controllers stopped")
}

// takePartInElection returns when leadership was held and given up or lost, or when the context ends.
func (c *Controllers) takePartInElection(ctx context.Context) {
	// The election outlives the controllers: to release the lease while they still write would let two leaders act at once.
	electionCtx, endElection := context.WithCancel(context.WithoutCancel(ctx))
	defer endElection()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: c.Election.Name,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.Election.Namespace, Name: c.Election.Name},
			Client:     c.Host.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.Election.Identity},
		},
		LeaseDuration:   c.Election.LeaseDuration,
		RenewDeadline:   c.Election.RenewDeadline,
		RetryPeriod:     c.Election.RetryPeriod,
		ReleaseOnCancel: true,
		WatchDog:        c.watchdog,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				defer endElection()
				runCtx, cancel := context.WithCancel(leading)
				defer cancel()
				stop := context.AfterFunc(ctx, cancel)
				defer stop()
				c.runOnce(runCtx)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Leader election cannot be set up")
		return
	}
	// A replica that does not lead has nothing to finish: it may leave the election at once. One that leads leaves it in OnStartedLeading.
	stop := context.AfterFunc(ctx, func() {
		if c.running.TryLock() {
			c.running.Unlock()
			endElection()
		}
	})
	defer stop()
	elector.Run(electionCtx)
}
