// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const ownID, otherID = "own", "other"

func storageAt(revision int64) *Storage {
	return &Storage{ID: ownID, Embedded: true, Revision: func(context.Context) (int64, error) { return revision, nil }}
}

// leaseOf returns the Lease of a previous server with the given storage; if id is empty, the Lease
// has no annotations.
func leaseOf(id, revision string) *coordinationv1.Lease {
	holder, seconds := "gone", int32(12)
	renewed := metav1.NewMicroTime(time.Now().Add(time.Hour))
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lease"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed},
	}
	if id != "" {
		lease.Annotations = map[string]string{annotationStorageID: id, annotationStorageRevision: revision}
	}
	return lease
}

// markedLease returns the Lease of a leader whose storage is not embedded.
func markedLease(revision, mark string) *coordinationv1.Lease {
	lease := leaseOf(ownID, revision)
	lease.Annotations[annotationStorageMark] = mark
	return lease
}

// shared makes the storage an etcd that is shared with others, with a revision and a mark.
func shared(revision, mark int64) func(*Storage) {
	return func(s *Storage) {
		s.Embedded = false
		s.Revision = func(context.Context) (int64, error) { return revision, nil }
		var last atomic.Int64
		last.Store(mark)
		s.Mark = func(context.Context) (int64, error) { return last.Load(), nil }
		s.SetMark = func(context.Context) (int64, error) { last.Store(revision); return revision, nil }
	}
}

func TestWhoMayLead(t *testing.T) {
	front := types.NamespacedName{Namespace: "ns", Name: "service"}
	for name, tc := range map[string]struct {
		lease      *coordinationv1.Lease
		registered types.NamespacedName
		storage    func(*Storage)
		want       offReason
	}{
		"the first server of a cluster leads":               {registered: front},
		"a server after a leader without annotations leads": {registered: front, lease: leaseOf("", "")},
		"a server with the storage in the Lease leads":      {registered: front, lease: leaseOf(ownID, "500")},
		"a server without an APIService does not lead":      {want: offElsewhere},
		"a server whose APIService refers to another one does not lead": {
			registered: types.NamespacedName{Namespace: "blue", Name: "service"}, want: offElsewhere,
		},
		"a server after a leader with other storage does not lead": {
			registered: front, lease: leaseOf(otherID, "5"), want: offOtherStorage,
		},
		"a server that adopts the other storage leads": {
			registered: front, lease: leaseOf(otherID, "5"), storage: func(s *Storage) { s.Adopt = otherID },
		},
		"a server that adopts a third storage does not lead": {
			registered: front, lease: leaseOf(otherID, "5"), storage: func(s *Storage) { s.Adopt = "third" },
			want: offOtherStorage,
		},
		"a server with a lower revision than the Lease does not lead": {registered: front, lease: leaseOf(ownID, "501"), want: offRestored},
		"a server with a storage that was restored with a higher revision does not lead": {
			registered: front, lease: leaseOf(ownID, "400"),
			storage: func(s *Storage) {
				s.Revision = func(context.Context) (int64, error) { return 1_000_000_300, nil }
			},
			want: offRestored,
		},
		"a server with a shared etcd that had many writes without a leader leads": {
			registered: front, lease: markedLease("400", "300"), storage: shared(1_000_000_300, 300),
		},
		"a server with a shared etcd that was restored with a higher revision does not lead": {
			registered: front, lease: markedLease("400", "300"), storage: shared(1_000_000_300, 299), want: offRestored,
		},
		"a server with a shared etcd that was restored and had many writes since does not lead": {
			registered: front, lease: markedLease("400", "300"), storage: shared(450, 200), want: offRestored,
		},
		"a server with a shared etcd without a mark leads if the Lease has none": {
			registered: front, lease: leaseOf(ownID, "400"), storage: shared(1_000_000_300, 0),
		},
		"a server with an accepted backup leads": {
			registered: front, lease: leaseOf(ownID, "501"), storage: func(s *Storage) { s.AcceptRestored = true },
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			registerMetrics()
			host := fake.NewClientset()
			if tc.lease != nil {
				host = fake.NewClientset(tc.lease.DeepCopy())
			}
			s := &stage{t: t}
			c := shipped(host.CoordinationV1(), "a", s.act("a", 0))
			c.Storage = storageAt(500)
			if tc.storage != nil {
				tc.storage(c.Storage)
			}
			recorder := events.NewFakeRecorder(10)
			c.Recorder, c.Service = recorder, front
			c.Registered = func(context.Context) (types.NamespacedName, error) { return tc.registered, nil }
			c.Exit = func(reason error) { t.Errorf("the process ends: %v", reason) }
			forgets := 0
			c.Storage.Forget = func(context.Context) error {
				is.True(t, s.now() == "", "it forgets the NodeTasks of a backup while it leads")
				forgets++
				return nil
			}
			is.True(t, c.Outdated() != "", "the storage counts as current before it is checked")
			stop, left := lead(t, c)
			<-time.After(time.Minute)
			is.Equal(t, c.Outdated() != "", tc.want != "", "the storage is outdated, or not compared")
			adopts := c.Storage.AcceptRestored || c.Storage.Adopt == otherID
			is.Equal(t, forgets, map[bool]int{true: 1}[adopts], "it forgets the NodeTasks of another time")
			if acts := s.now() == "a"; acts != (tc.want == "") {
				t.Errorf("it leads: %v", acts)
			}
			for _, r := range offReasons {
				value, err := testutil.GetGaugeMetricValue(controllersOff.WithLabelValues(string(r)))
				is.True(t, err == nil && value == 1 == (r == tc.want), "the metric is %v for %s (%v)", value, r, err)
			}
			stop()
			<-left
			if tc.want != "" {
				must.True(t, len(recorder.Events) == 1, "%d events, want one", len(recorder.Events))
				if event := <-recorder.Events; !strings.Contains(event, EventControllersOff+" "+string(tc.want)) {
					t.Errorf("the event is %q", event)
				}
				return
			}
			lease, err := host.CoordinationV1().Leases("ns").Get(t.Context(), "lease", metav1.GetOptions{})
			if err != nil || lease.Annotations[annotationStorageID] != ownID ||
				lease.Annotations[annotationStorageRevision] == "" {
				t.Errorf("the Lease has the annotations %v (%v)", lease.Annotations, err)
			}
		})
	}
}

// TestOutdatedStorageStaysOutdated checks that a failing check does not make a restored storage
// current, and that nothing is deleted before this replica leads.
func TestOutdatedStorageStaysOutdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registerMetrics()
		s := &stage{t: t}
		c := shipped(fake.NewClientset(leaseOf(ownID, "501")).CoordinationV1(), "a", s.act("a", 0))
		c.Storage = storageAt(500)
		c.Storage.Forget = func(context.Context) error { t.Error("it deletes NodeTasks"); return nil }
		var fails atomic.Bool
		c.Registered = func(context.Context) (types.NamespacedName, error) {
			if fails.Load() {
				return types.NamespacedName{}, errors.New("timeout")
			}
			return types.NamespacedName{}, nil
		}
		stop, left := lead(t, c)
		<-time.After(time.Minute)
		is.True(t, strings.Contains(c.Outdated(), "restored from a backup"), "outdated because %q", c.Outdated())
		fails.Store(true)
		<-time.After(3 * time.Minute)
		is.True(t, strings.Contains(c.Outdated(), "restored from a backup"), "outdated because %q while the check fails", c.Outdated())
		stop()
		<-left
	})
}

// TestForgetThatFails has a first leader that cannot delete the NodeTasks of a backup, and a second
// one that can. Until they are deleted, no controller runs, and no worker may report.
func TestForgetThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registerMetrics()
		leases := fake.NewClientset(leaseOf(ownID, "501")).CoordinationV1()
		s := &stage{t: t}
		server := func(name string, forget func(context.Context) error) *Controllers {
			c := shipped(leases, name, s.act(name, 0))
			c.Storage = storageAt(500)
			c.Storage.AcceptRestored, c.Storage.Forget = true, forget
			return c
		}
		revision := func() string {
			return must.Get(leases.Leases("ns").Get(t.Context(), "lease", metav1.GetOptions{}))(t).Annotations[annotationStorageRevision]
		}
		var tries, deleted atomic.Int32
		first := server("a", func(context.Context) error { tries.Add(1); return errors.New("timeout") })
		stop, left := lead(t, first)
		<-time.After(time.Minute)
		is.True(t, tries.Load() > 1, "the leader tries to delete the NodeTasks %d times in a minute", tries.Load())
		is.Equal(t, s.now(), "", "leader whose controllers run")
		is.True(t, first.Outdated() != "", "the storage counts as current before the NodeTasks are deleted")
		is.Equal(t, revision(), "501", "revision in the Lease")
		stop()
		<-left

		second := server("b", func(context.Context) error { deleted.Add(1); return nil })
		stop, left = lead(t, second)
		<-time.After(time.Minute)
		is.Equal(t, deleted.Load(), 1, "deletions by the second leader")
		is.Equal(t, s.now(), "b", "leader whose controllers run")
		is.Equal(t, second.Outdated(), "", "why the storage is outdated")
		is.Equal(t, revision(), "500", "revision in the Lease")
		stop()
		<-left
	})
}

func TestLeaderStopsWhileTheAPIServiceNamesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registerMetrics()
		host := fake.NewClientset()
		s := &stage{t: t}
		c := shipped(host.CoordinationV1(), "a", s.act("a", 0))
		var elsewhere, unknown atomic.Bool
		c.Registered = func(context.Context) (types.NamespacedName, error) {
			if unknown.Load() {
				return types.NamespacedName{}, errors.New("timeout")
			}
			if elsewhere.Load() {
				return types.NamespacedName{Name: "other"}, nil
			}
			return types.NamespacedName{}, nil
		}
		check := c.watch()
		stop, left := lead(t, c)
		eventually(t, "it leads", func() bool { return s.now() == "a" })
		unknown.Store(true)
		<-time.After(time.Minute)
		is.True(t, s.now() == "a", "a leader stopped because it could not read the APIService")
		unknown.Store(false)
		elsewhere.Store(true)
		<-time.After(2 * gatePeriod)
		if s.now() != "" || holder(host) != "" {
			t.Errorf("%q acts and %q holds the lease", s.now(), holder(host))
		}
		<-time.After(time.Minute)
		if err := check(nil); err != nil {
			t.Errorf("a server that must not lead is taken for dead: %v", err)
		}
		elsewhere.Store(false)
		eventually(t, "it leads again", func() bool { return s.now() == "a" })
		stop()
		<-left
	})
}

// TestEmbeddedServerEndsBesideAnother starts two servers with separate storages at the same time.
func TestEmbeddedServerEndsBesideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := fake.NewClientset()
		s := &stage{t: t}
		exits := map[string]*atomic.Int32{"a": {}, "b": {}}
		var stops []func()
		for name, count := range exits {
			c := shipped(host.CoordinationV1(), name, s.act(name, 0))
			c.Storage = storageAt(7)
			c.Storage.ID = "storage of " + name
			c.Exit = func(error) { count.Add(1) }
			stop, left := lead(t, c)
			stops = append(stops, stop, func() { <-left })
		}
		<-time.After(30 * time.Second)
		for name, count := range exits {
			if leads := s.now() == name; leads == (count.Load() > 0) {
				t.Errorf("%s leads: %v, and has ended %d times", name, leads, count.Load())
			}
		}
		stops[0]()
		stops[2]()
		stops[1]()
		stops[3]()
	})
}

// TestLeaderMarksSharedStorage checks the number of marks that a leader writes to the storage in an
// hour.
func TestLeaderMarksSharedStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := fake.NewClientset(markedLease("400", "300"))
		s := &stage{t: t}
		c := shipped(host.CoordinationV1(), "a", s.act("a", 0))
		c.Storage = storageAt(0)
		shared(500, 300)(c.Storage)
		var marks atomic.Int64
		c.Storage.Mark = func(context.Context) (int64, error) { return 500 + marks.Load(), nil }
		c.Storage.SetMark = func(context.Context) (int64, error) { return 500 + marks.Add(1), nil }
		stop, left := lead(t, c)
		<-time.After(time.Hour)
		lease := must.Get(host.CoordinationV1().Leases("ns").Get(t.Context(), "lease", metav1.GetOptions{}))(t)
		if n := marks.Load(); n < 50 || n > 60 || lease.Annotations[annotationStorageMark] != strconv.FormatInt(500+n, 10) {
			t.Errorf("it was marked %d times, and the Lease has mark %s", n, lease.Annotations[annotationStorageMark])
		}
		stop()
		<-left
	})
}

func TestRevisionOfTheStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := fake.NewClientset()
		s := &stage{t: t}
		c := shipped(host.CoordinationV1(), "a", s.act("a", 0))
		var revision atomic.Int64
		revision.Store(40)
		c.Storage = &Storage{ID: ownID, Revision: func(ctx context.Context) (int64, error) {
			if r := revision.Load(); r > 0 {
				return r, nil
			}
			return 0, swallow(ctx)
		}}
		told := func() string {
			lease, err := host.CoordinationV1().Leases("ns").Get(t.Context(), "lease", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			return lease.Annotations[annotationStorageRevision]
		}
		var renewals atomic.Int32
		host.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			renewals.Add(1)
			return false, nil, nil
		})
		stop, left := lead(t, c)
		eventually(t, "the Lease tells the revision", func() bool { return told() == "40" })
		revision.Store(41)
		eventually(t, "a renewal tells the next one", func() bool { return told() == "41" })
		revision.Store(0)
		renewals.Store(0)
		<-time.After(time.Minute)
		if s.now() != "a" || renewals.Load() < 10 || told() != "41" {
			t.Errorf("with a storage that does not respond, %q acts, after %d renewals, and the Lease has %s",
				s.now(), renewals.Load(), told())
		}
		stop()
		<-left
	})
}

// TestCheckThatFailsIsReported revokes the right of the server to read its APIService, as an
// upgrade of the server without its new cluster role does.
func TestCheckThatFailsIsReported(t *testing.T) {
	for name, fails := range map[string]func(context.Context) error{
		"when it is refused": func(context.Context) error { return errors.New("apiservices is forbidden") },
		"when it hangs":      swallow,
	} {
		bubble.Run(t, name, func(t *testing.T) {
			registerMetrics()
			host := fake.NewClientset()
			s := &stage{t: t}
			c := shipped(host.CoordinationV1(), "a", s.act("a", 0))
			recorder := events.NewFakeRecorder(10)
			c.Recorder = recorder
			var failing atomic.Bool
			failing.Store(true)
			c.Registered = func(ctx context.Context) (types.NamespacedName, error) {
				if failing.Load() {
					return types.NamespacedName{}, fails(ctx)
				}
				return types.NamespacedName{}, nil
			}
			expect := func(when string, off, leads float64, ready bool, events int) {
				t.Helper()
				gotOff, err := testutil.GetGaugeMetricValue(controllersOff.WithLabelValues(string(offCheckFails)))
				is.True(t, err == nil && gotOff == off, "%s: haulout_controllers_off is %v (%v), want %v", when, gotOff, err, off)
				if got, err := testutil.GetGaugeMetricValue(leaderGauge); err != nil || got != leads {
					t.Errorf("%s: haulout_leader is %v (%v), want %v", when, got, err, leads)
				}
				if got := readiness(c); (got == http.StatusOK) != ready {
					t.Errorf("%s: /readyz/leader-election responds %d, want that it is ready: %t", when, got, ready)
				}
				is.True(t, len(recorder.Events) == events, "%s: %d events, want %d", when, len(recorder.Events), events)
			}
			stop, left := lead(t, c)
			<-time.After(30 * time.Second)
			expect("after half a minute", 1, 0, true, 0)
			<-time.After(24 * time.Hour)
			expect("after a day", 1, 0, false, 1)
			if event := <-recorder.Events; !strings.Contains(event, EventControllersOff+" "+string(offCheckFails)) {
				t.Errorf("the event is %q", event)
			}
			if got := c.NoLeader(); !strings.HasPrefix(got, protocol.NoLeaderWarning) {
				t.Errorf("users are warned with %q", got)
			}
			failing.Store(false)
			eventually(t, "it leads", func() bool { return s.now() == "a" })
			<-time.After(gatePeriod)
			expect("when the check succeeds", 0, 1, true, 0)
			if got := c.NoLeader(); got != "" {
				t.Errorf("users are warned with %q of a leader", got)
			}
			stop()
			<-left
			expect("when it has stopped", 0, 0, true, 0)
		})
	}
}

// readiness returns the status of /readyz/leader-election.
func readiness(c *Controllers) int {
	response := httptest.NewRecorder()
	c.serveReady(response, nil)
	return response.Code
}
