// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// wire is a connection to the host cluster that can break.
type wire struct {
	coordinationclient.LeasesGetter
	// broken returns the result of each call while it is set.
	broken atomic.Pointer[func(context.Context) error]
}

func (w *wire) Leases(namespace string) coordinationclient.LeaseInterface {
	return wiredLeases{w.LeasesGetter.Leases(namespace), w}
}

func (w *wire) fail(how func(context.Context) error) { w.broken.Store(&how) }

func (w *wire) pass(ctx context.Context) error {
	if f := w.broken.Load(); f != nil {
		return (*f)(ctx)
	}
	return nil
}

type wiredLeases struct {
	coordinationclient.LeaseInterface
	wire *wire
}

func (l wiredLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := l.wire.pass(ctx); err != nil {
		return nil, err
	}
	return l.LeaseInterface.Get(ctx, name, o)
}

func (l wiredLeases) Update(
	ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	if err := l.wire.pass(ctx); err != nil {
		return nil, err
	}
	return l.LeaseInterface.Update(ctx, lease, o)
}

// swallow never responds, like a network that drops packets.
func swallow(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// stage records which replica acts. It fails the test if two replicas act at the same time.
type stage struct {
	t      *testing.T
	mu     sync.Mutex
	acting string
	begun  int
}

// act returns a Run function that simulates a set of controllers. The last call of the controllers
// may continue for the time lasts after their context has ended.
func (s *stage) act(identity string, lasts time.Duration) func(context.Context, func(time.Duration) error) error {
	return func(ctx context.Context, mayAct func(time.Duration) error) error {
		if err := mayAct(0); err != nil {
			s.t.Errorf("%s has begun to lead and may not act: %v", identity, err)
		}
		s.mu.Lock()
		is.True(s.t, s.acting == "", "%s acts while %s still does", identity, s.acting)
		s.acting = identity
		s.begun++
		s.mu.Unlock()
		<-ctx.Done()
		<-time.After(lasts)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.acting == identity {
			s.acting = ""
		}
		return nil
	}
}

// terms returns the number of sets of controllers that have begun to act.
func (s *stage) terms() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

func (s *stage) now() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acting
}

// shipped returns a replica with the default timing of the server.
func shipped(leases coordinationclient.LeasesGetter, identity string, run func(context.Context, func(time.Duration) error) error) *Controllers {
	return &Controllers{Leases: leases, Run: run, Exit: func(error) {}, Election: LeaderElection{
		Enabled: true, Namespace: "ns", Name: "lease", Identity: identity,
		LeaseDuration: 12 * time.Second, RenewDeadline: 6 * time.Second, RetryPeriod: 1500 * time.Millisecond,
	}}
}

// TestSuspendedLeaderMayNotAct advances the clock while no timer of the process fires.
func TestSuspendedLeaderMayNotAct(t *testing.T) {
	const deadline, grace = 6 * time.Second, 4 * time.Second
	for name, test := range map[string]struct {
		renewed time.Time
		grace   time.Duration
		may     bool
	}{
		"renewed just now":                            {renewed: time.Now(), may: true},
		"renewed before the deadline":                 {renewed: time.Now().Add(-deadline / 2), may: true},
		"not renewed":                                 {renewed: time.Now().Add(-deadline)},
		"not renewed, in the grace period":            {renewed: time.Now().Add(-deadline), grace: grace, may: true},
		"not renewed, and after the grace period":     {renewed: time.Now().Add(-deadline - grace), grace: grace},
		"never renewed":                               {grace: grace},
		"not renewed since the process was suspended": {renewed: time.Now().Add(-deadline).Round(0)},
		"renewed before the clock jumped":             {renewed: time.Now().Add(deadline), may: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := &lease{deadline: deadline, renewed: test.renewed}
			if err := l.check(test.grace); (err == nil) != test.may {
				t.Errorf("got %v, want that it may act: %t", err, test.may)
			}
		})
	}
}

func TestReplicasNeverActAtTheSameTime(t *testing.T) {
	for name, broken := range map[string]func(stop <-chan struct{}) func(context.Context) error{
		"when the network of the leader drops its calls": func(<-chan struct{}) func(context.Context) error {
			return swallow
		},
		"when its calls hang and do not end with their context": func(
			stop <-chan struct{},
		) func(context.Context) error {
			return func(context.Context) error {
				<-stop
				return errors.New("closed")
			}
		},
		"when its calls fail": func(<-chan struct{}) func(context.Context) error {
			return func(context.Context) error { return errors.New("connection refused") }
		},
		"when only the responses are lost for a while": func(<-chan struct{}) func(context.Context) error {
			began := time.Now()
			return func(ctx context.Context) error {
				if time.Since(began) > 5*time.Second {
					return nil
				}
				return swallow(ctx)
			}
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			host := fake.NewClientset()
			s := &stage{t: t}
			toA := &wire{LeasesGetter: host.CoordinationV1()}
			stopA, leftA := lead(t, shipped(toA, "a", s.act("a", StopTimeout-100*time.Millisecond)))
			eventually(t, "a acts", func() bool { return s.now() == "a" })
			stopB, leftB := lead(t, shipped(host.CoordinationV1(), "b", s.act("b", StopTimeout-100*time.Millisecond)))
			// This time is not a multiple of the retry period.
			<-time.After(24*time.Second + 500*time.Millisecond)
			stop := make(chan struct{})
			toA.fail(broken(stop))
			<-time.After(13 * time.Second)
			eventually(t, "a replica acts again", func() bool { return s.terms() == 2 })
			stopA()
			close(stop)
			stopB()
			<-leftA
			<-leftB
		})
	}
}

// TestDeletedLeaseGivesNoSecondLeader deletes the Lease at many moments between two renewals, as a
// user or a cleanup tool may do.
func TestDeletedLeaseGivesNoSecondLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := fake.NewClientset()
		s := &stage{t: t}
		stopA, leftA := lead(t, shipped(host.CoordinationV1(), "a", s.act("a", 0)))
		eventually(t, "a acts", func() bool { return s.now() == "a" })
		stopB, leftB := lead(t, shipped(host.CoordinationV1(), "b", s.act("b", 0)))
		const deletions = 40
		for i := range deletions {
			<-time.After(30*time.Second + time.Duration(i)*137*time.Millisecond)
			must.Do(t, host.CoordinationV1().Leases("ns").Delete(t.Context(), "lease", metav1.DeleteOptions{}))
		}
		<-time.After(30 * time.Second)
		if s.now() == "" || s.terms() != deletions+1 {
			t.Errorf("%q acts after %d terms, want one term after each of %d deletions", s.now(), s.terms(), deletions)
		}
		stopA()
		stopB()
		<-leftA
		<-leftB
	})
}

// TestReplicaThatStartsAfterADeletion deletes the Lease at many moments between two renewals, just
// before the start of a replica that has never read the Lease. Only the first leader of a storage
// does not wait.
func TestReplicaThatStartsAfterADeletion(t *testing.T) {
	for i := range 20 {
		synctest.Test(t, func(t *testing.T) {
			host := fake.NewClientset()
			s := &stage{t: t}
			var mark atomic.Int64
			replica := func(identity string) *Controllers {
				c := shipped(host.CoordinationV1(), identity, s.act(identity, 0))
				c.Storage = storageAt(500)
				c.Storage.Embedded = false
				c.Storage.Mark = func(context.Context) (int64, error) { return mark.Load(), nil }
				c.Storage.SetMark = func(context.Context) (int64, error) { return mark.Add(1), nil }
				return c
			}
			a, b := replica("a"), replica("b")
			begun := time.Now()
			stopA, leftA := lead(t, a)
			eventually(t, "a acts", func() bool { return s.now() == "a" })
			if waited := time.Since(begun); waited >= a.Election.LeaseDuration {
				t.Errorf("the first leader of a new storage has waited for %v", waited)
			}
			<-time.After(30*time.Second + time.Duration(i)*137*time.Millisecond)
			must.Do(t, host.CoordinationV1().Leases("ns").Delete(t.Context(), "lease", metav1.DeleteOptions{}))
			stopB, leftB := lead(t, b)
			<-time.After(30 * time.Second)
			if s.now() == "" || s.terms() != 2 {
				t.Errorf("%q acts after %d terms, want one term after the deletion", s.now(), s.terms())
			}
			stopA()
			stopB()
			<-leftA
			<-leftB
		})
	}
}

// TestLeaseOfAnotherEndsTheTerm replaces the holder of the Lease, or the Lease itself.
func TestLeaseOfAnotherEndsTheTerm(t *testing.T) {
	for name, change := range map[string]func(*coordinationv1.Lease){
		"another holder": func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = ptr.To("b") },
		"no holder":      func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = nil },
		"another Lease with the same holder, from a backup": func(lease *coordinationv1.Lease) { lease.UID = "restored" },
	} {
		bubble.Run(t, name, func(t *testing.T) {
			host := fake.NewClientset()
			cause := make(chan error, 10)
			c := shipped(host.CoordinationV1(), "a", func(ctx context.Context, mayAct func(time.Duration) error) error {
				<-ctx.Done()
				cause <- context.Cause(ctx)
				if err := mayAct(0); !errors.Is(err, ErrLeaseLost) {
					t.Errorf("it may act: %v", err)
				}
				return nil
			})
			var changed atomic.Bool
			host.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				if !changed.Load() {
					return false, nil, nil
				}
				return true, nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "lease", nil)
			})
			host.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				if !changed.Load() {
					return false, nil, nil
				}
				lease := leaseOf("", "")
				lease.Spec.HolderIdentity = ptr.To("a")
				change(lease)
				return true, lease, nil
			})
			stop, left := lead(t, c)
			eventually(t, "a leads", func() bool { return holder(host) == "a" })
			<-time.After(time.Minute)
			changed.Store(true)
			began := time.Now()
			if got := <-cause; !errors.Is(got, ErrLeaseLost) || time.Since(began) > 1500*time.Millisecond {
				t.Errorf("the term ended after %v because %v", time.Since(began), got)
			}
			// The replica must repeat the release after a conflict.
			changed.Store(false)
			stop()
			<-left
		})
	}
}

// TestReleaseThatConflicts makes all writes of the Lease conflict after its leader has stopped.
func TestReleaseThatConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := fake.NewClientset()
		stop, left := lead(t, shipped(host.CoordinationV1(), "a", func(ctx context.Context, _ func(time.Duration) error) error {
			<-ctx.Done()
			return nil
		}))
		eventually(t, "a leads", func() bool { return holder(host) == "a" })
		var tries atomic.Int32
		host.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			if tries.Add(1) > 1000 {
				return true, nil, apierrors.NewForbidden(coordinationv1.Resource("leases"), "lease", nil)
			}
			return true, nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "lease", nil)
		})
		began := time.Now()
		stop()
		<-left
		// The number includes renewals, one every 1.5 s for at most 6 s.
		if took, n := time.Since(began), tries.Load(); took > 8*time.Second || n < 2 || n > 6 {
			t.Errorf("%d tries to release the Lease in %v", n, took)
		}
	})
}

// TestWhoKnowsOfNoLeader tests the warning of replicas that do not lead.
func TestWhoKnowsOfNoLeader(t *testing.T) {
	for name, test := range map[string]struct {
		lease *coordinationv1.Lease
		// renews is the interval at which another replica renews the Lease; 0 means never.
		renews time.Duration
		lasts  time.Duration
		// failsFrom is the time from which on reads of the Lease fail; 0 means never, -1 means
		// always.
		failsFrom time.Duration
		warns     bool
		// unknown is set if it is not known for long whether a replica leads.
		unknown bool
	}{
		"a server that starts does not warn":                       {lease: leaseOf("", ""), lasts: 23 * time.Second},
		"a server with a Lease that is never renewed warns":        {lease: leaseOf("", ""), lasts: 25 * time.Second, warns: true},
		"a server without a Lease warns":                           {lasts: 25 * time.Second, warns: true},
		"a server with a Lease that is renewed does not warn":      {lease: leaseOf("", ""), renews: 6 * time.Second, lasts: time.Hour},
		"a server that can never read the Lease does not warn":     {failsFrom: -1, lasts: time.Hour, unknown: true},
		"a server that can no longer read the Lease does not warn": {lease: leaseOf("", ""), failsFrom: time.Minute, lasts: time.Hour, unknown: true},
		"a server that has just read the Lease warns":              {lease: leaseOf("", ""), failsFrom: time.Minute, lasts: time.Minute + 2*time.Second, warns: true},
		"a server with a Lease that is renewed each minute warns":  {lease: leaseOf("", ""), renews: time.Minute, lasts: time.Hour - time.Second, warns: true},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			host := fake.NewClientset()
			if test.lease != nil {
				host = fake.NewClientset(test.lease.DeepCopy())
			}
			began := time.Now()
			host.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				if test.failsFrom != 0 && time.Since(began) >= test.failsFrom {
					return true, nil, apierrors.NewForbidden(coordinationv1.Resource("leases"), "lease", nil)
				}
				return false, nil, nil
			})
			c := shipped(host.CoordinationV1(), "a", (&stage{t: t}).act("a", 0))
			// This replica must not become the leader.
			c.Registered = func(context.Context) (types.NamespacedName, error) {
				return types.NamespacedName{Name: "other"}, nil
			}
			stop, left := lead(t, c)
			defer func() { <-left }()
			defer stop()
			for end := time.Now().Add(test.lasts); test.renews > 0 && time.Now().Add(test.renews).Before(end); {
				<-time.After(test.renews)
				renewed := test.lease.DeepCopy()
				renewed.Spec.RenewTime = ptr.To(metav1.NowMicro())
				must.Get(host.CoordinationV1().Leases("ns").Update(t.Context(), renewed, metav1.UpdateOptions{}))(t)
			}
			if test.renews == 0 {
				<-time.After(test.lasts)
			} else {
				<-time.After(test.renews - time.Second)
			}
			if got := c.NoLeader(); strings.HasPrefix(got, protocol.NoLeaderWarning) != test.warns {
				t.Errorf("got %q, want a warning: %t", got, test.warns)
			}
			if got := c.NoKnownLeader(); (got != "") != (test.warns || test.unknown) {
				t.Errorf("got %q, want a reason: %t", got, test.warns || test.unknown)
			}
		})
	}
}

// TestLeaderSince lets another replica acquire and renew the Lease.
func TestLeaderSince(t *testing.T) {
	bubble.Run(t, "with a Lease", func(t *testing.T) {
		c := shipped(nil, "a", nil)
		began := time.Now()
		since := func() time.Duration { return c.LeaderSince().Sub(began) }
		<-time.After(time.Minute)
		is.Equal(t, since(), time.Minute, "before it looks for a leader")
		began = time.Now()
		c.sightings.begin()
		for _, step := range []struct {
			what           string
			after          time.Duration
			holder         string
			acquired, want time.Duration
		}{
			{"the first leader that it sees has led for long", 4 * time.Second, "b", -time.Hour, 4 * time.Second},
			{"it renews the Lease", 4 * time.Second, "b", -time.Hour, 4 * time.Second},
			{"it acquires the Lease again", 4 * time.Second, "b", 11 * time.Second, 12 * time.Second},
			{"another replica acquires the Lease", 4 * time.Second, "c", 15 * time.Second, 16 * time.Second},
			{"it releases the Lease", 4 * time.Second, "", 15 * time.Second, 16 * time.Second},
			{"nothing holds the Lease", 4 * time.Second, "", 15 * time.Second, 24 * time.Second},
			{"the first one acquires it", 4 * time.Second, "b", 28 * time.Second, 28 * time.Second},
		} {
			<-time.After(step.after)
			c.sightings.note(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &step.holder, RenewTime: ptr.To(metav1.NowMicro()), AcquireTime: ptr.To(metav1.NewMicroTime(began.Add(step.acquired))),
			}})
			is.Equal(t, since(), step.want, step.what)
		}
		<-time.After(7 * time.Second)
		is.Equal(t, since(), 35*time.Second, "it does not renew the Lease")
	})
	bubble.Run(t, "without a Lease", func(t *testing.T) {
		c := &Controllers{}
		c.sightings.begin()
		began := time.Now()
		<-time.After(time.Hour)
		is.Equal(t, c.LeaderSince().Sub(began), 0)
	})
}

func TestProcessEndsIfItsControllersDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := fake.NewClientset()
		s := &stage{t: t}
		toA := &wire{LeasesGetter: host.CoordinationV1()}
		end := make(chan struct{})
		a := shipped(toA, "a", func(ctx context.Context, mayAct func(time.Duration) error) error {
			err := s.act("a", 0)(ctx, mayAct)
			<-end
			return err
		})
		var exits atomic.Int32
		a.Exit = func(error) {
			// Check only the first call. In production it ends the process, so there is no second
			// call.
			if got := holder(host); exits.Add(1) == 1 && got != "a" {
				t.Errorf("the process ends when %q holds the lease, want a: another replica may act already", got)
			}
		}
		stopA, leftA := lead(t, a)
		eventually(t, "a acts", func() bool { return s.now() == "a" })
		stopB, leftB := lead(t, shipped(host.CoordinationV1(), "b", s.act("b", 0)))
		<-time.After(24 * time.Second)
		toA.fail(swallow)
		<-time.After(30 * time.Second)
		is.True(t, exits.Load() != 0, "the process continues although its controllers do")
		stopA()
		close(end)
		stopB()
		<-leftA
		<-leftB
	})
}

func TestHealthOfALeader(t *testing.T) {
	for name, tc := range map[string]struct {
		// holder is the first holder of the Lease.
		holder string
		broken func(stop <-chan struct{}) func(context.Context) error
		want   bool
	}{
		"a leader that renews is healthy": {want: true},
		"a leader that is stuck in a renewal is not healthy": {broken: func(stop <-chan struct{}) func(context.Context) error {
			return func(context.Context) error {
				<-stop
				return errors.New("closed")
			}
		}},
		"a leader that has stopped because it could not renew is healthy": {
			broken: func(<-chan struct{}) func(context.Context) error { return swallow }, want: true,
		},
		"a replica that waits for the Lease is healthy": {holder: "b", want: true},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			host := fake.NewClientset()
			if tc.holder != "" {
				seconds := int32(3600)
				now := metav1.NowMicro()
				must.Get(host.CoordinationV1().Leases("ns").Create(t.Context(), &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lease"},
					Spec: coordinationv1.LeaseSpec{
						HolderIdentity: &tc.holder, LeaseDurationSeconds: &seconds, RenewTime: &now,
					},
				}, metav1.CreateOptions{}))(t)
			}
			w := &wire{LeasesGetter: host.CoordinationV1()}
			c := shipped(w, "a", (&stage{t: t}).act("a", 0))
			check := c.watch()
			stop, left := lead(t, c)
			<-time.After(time.Minute)
			broken := make(chan struct{})
			if tc.broken != nil {
				w.fail(tc.broken(broken))
			}
			<-time.After(time.Minute)
			err := check(&http.Request{})
			is.True(t, (err == nil) == tc.want, "got %v, want healthy: %v", err, tc.want)
			close(broken)
			stop()
			<-left
		})
	}
}
