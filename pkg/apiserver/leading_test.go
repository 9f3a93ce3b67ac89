// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// set simulates a set of controllers: it counts the running ones and takes time to stop.
type set struct {
	host             *fake.Clientset
	running, started atomic.Int32
	overlapped       atomic.Bool
	finish           chan struct{}
	holderAtEnd      atomic.Value
}

func (s *set) run(ctx context.Context, _ func(time.Duration) error) error {
	if s.running.Add(1) > 1 {
		s.overlapped.Store(true)
	}
	s.started.Add(1)
	<-ctx.Done()
	<-s.finish
	s.holderAtEnd.Store(holder(s.host))
	s.running.Add(-1)
	return nil
}

func holder(host *fake.Clientset) string {
	lease, err := host.CoordinationV1().Leases("ns").Get(context.Background(), "lease", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func replica(host *fake.Clientset, s *set, identity string) *Controllers {
	return &Controllers{Leases: host.CoordinationV1(), Run: s.run, Exit: func(error) {}, Election: LeaderElection{
		Enabled: true, Namespace: "ns", Name: "lease", Identity: identity,
		LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 50 * time.Millisecond,
	}}
}

func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) { return check(), nil })
	must.True(t, err == nil, "timed out waiting: %s", what)
}

// lead starts a replica and returns a function that stops it. left is closed when the replica has
// left the election.
func lead(t *testing.T, c *Controllers) (stop func(), left <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.lead(ctx)
	}()
	return cancel, done
}

func TestOneReplicaRunsControllersAndHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := fake.NewClientset()
		s := &set{host: host, finish: make(chan struct{})}
		stopA, leftA := lead(t, replica(host, s, "a"))
		eventually(t, "a leads", func() bool { return s.running.Load() == 1 && holder(host) == "a" })
		stopB, leftB := lead(t, replica(host, s, "b"))

		stopA()
		// The controllers of a are stopping and still write: b must not get the Lease before they
		// have stopped.
		s.finish <- struct{}{}
		<-leftA
		if at := s.holderAtEnd.Load(); at != "a" {
			t.Errorf("the lease was with %q while the controllers of a still ran", at)
		}
		eventually(t, "b leads", func() bool { return s.running.Load() == 1 && holder(host) == "b" })
		stopB()
		close(s.finish)
		<-leftB
		is.True(t, !s.overlapped.Load(), "two sets of controllers ran at the same time")
		if got := holder(host); got != "" {
			t.Errorf("the lease was not given back: %q holds it", got)
		}
	})
}

func TestReplicaThatNeverLedLeavesImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := metav1.NewMicroTime(time.Now().Add(time.Hour))
		other, seconds := "other", int32(3600)
		host := fake.NewClientset(&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lease"},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &other, LeaseDurationSeconds: &seconds, RenewTime: &now, AcquireTime: &now,
			},
		})
		s := &set{host: host, finish: make(chan struct{})}
		stop, left := lead(t, replica(host, s, "a"))
		eventually(t, "a has requested the Lease", func() bool { return len(host.Actions()) > 1 })
		stop()
		<-left
		if s.started.Load() != 0 || holder(host) != other {
			t.Errorf("%d sets ran, %q holds the lease", s.started.Load(), holder(host))
		}
	})
}

func TestControllersStopWithTheLeaseAndComeBackWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := fake.NewClientset()
		var down atomic.Bool
		host.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			if down.Load() {
				return true, nil, errors.New("the host cluster is down")
			}
			return false, nil, nil
		})
		s := &set{host: host, finish: make(chan struct{})}
		close(s.finish)
		c := replica(host, s, "a")
		stop, left := lead(t, c)
		eventually(t, "a leads", func() bool { return s.running.Load() == 1 })
		down.Store(true)
		eventually(t, "the controllers stop when the lease cannot be renewed", func() bool {
			return s.running.Load() == 0
		})
		again := time.Now()
		down.Store(false)
		eventually(t, "they start again", func() bool { return s.running.Load() == 1 && s.started.Load() == 2 })
		is.True(t, !c.LeaderSince().Before(again), "it counts as the leader since %v, but could not renew the Lease until %v", c.LeaderSince(), again)
		stop()
		<-left
		is.True(t, !s.overlapped.Load(), "two sets of controllers ran at the same time")
	})
}

// TestStandByRunsWhileNoControllersRun lets a replica gain, lose and regain the Lease.
func TestStandByRunsWhileNoControllersRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := fake.NewClientset()
		other, seconds, now := "other", int32(3600), metav1.NewMicroTime(time.Now().Add(time.Hour))
		var down atomic.Bool
		host.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if down.Load() {
				return true, nil, errors.New("the host cluster is down")
			}
			return false, nil, nil
		})
		held := must.Get(host.CoordinationV1().Leases("ns").Create(t.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lease"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &other, LeaseDurationSeconds: &seconds, RenewTime: &now, AcquireTime: &now},
		}, metav1.CreateOptions{}))(t)
		s := &set{host: host, finish: make(chan struct{})}
		close(s.finish)
		c := replica(host, s, "a")
		var standing, begun atomic.Int32
		c.StandBy = func(ctx context.Context) {
			begun.Add(1)
			standing.Add(1)
			is.True(t, s.running.Load() == 0, "it stands by while controllers run")
			<-ctx.Done()
			<-time.After(time.Second)
			standing.Add(-1)
		}
		stop, left := lead(t, c)
		eventually(t, "it stands by", func() bool { return standing.Load() == 1 && s.started.Load() == 0 })
		held.Spec.HolderIdentity = new(string)
		must.Get(host.CoordinationV1().Leases("ns").Update(t.Context(), held, metav1.UpdateOptions{}))(t)
		eventually(t, "a leads", func() bool { return s.running.Load() == 1 && standing.Load() == 0 })
		down.Store(true)
		eventually(t, "it stands by again", func() bool { return s.running.Load() == 0 && standing.Load() == 1 })
		down.Store(false)
		eventually(t, "a leads again", func() bool { return s.running.Load() == 1 && standing.Load() == 0 })
		down.Store(true)
		eventually(t, "it stands by a third time", func() bool { return standing.Load() == 1 })
		stop()
		<-left
		is.True(t, standing.Load() == 0 && begun.Load() == 3, "%d stand by, after %d times", standing.Load(), begun.Load())
	})
}

func TestControllersThatFailStartAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, election := range []bool{true, false} {
			host := fake.NewClientset()
			var attempts atomic.Int32
			c := replica(host, nil, "a")
			c.Election.Enabled = election
			c.Run = func(context.Context, func(time.Duration) error) error {
				attempts.Add(1)
				return errors.New("no caches")
			}
			stop, left := lead(t, c)
			eventually(t, "a third attempt", func() bool { return attempts.Load() >= 3 })
			stop()
			<-left
		}
	})
}
