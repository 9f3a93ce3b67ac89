// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// serverUser is who the server is to kube-apiserver.
const serverUser = "system:serviceaccount:haulout-system:haulout-apiserver"

// startDeadline is how long evacuators have for their first report.
const startDeadline = 2 * time.Second

// cluster is that of the test.
var cluster *framework.Cluster

// start brings up a cluster with short times, or uses the one that is given.
func start(t *testing.T) {
	t.Helper()
	if os.Getenv("E2E_CLUSTER_DIR") == "" {
		t.Setenv("HAULOUT_FLAGS",
			fmt.Sprintf("--evacuator-start-deadline=%s --completed-evacuation-ttl=10s", startDeadline))
	}
	var err error
	if cluster, err = framework.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// size is how long the storm is and how often the worst happens in it.
type size struct {
	// lasts is how long things are done with the server there, kills how often it is killed in that
	// time.
	lasts time.Duration
	kills int
}

var (
	smallSize = size{lasts: 22 * time.Second, kills: 2}
	fullSize  = size{lasts: 6 * time.Minute, kills: 20}
)

const (
	// workers do things at the same time, so many a second in all.
	workers   = 8
	perSecond = 55
	// settles is how long it may take until everything has ended or says what blocks it: some
	// turns, on a machine that is busy.
	settles = 90 * time.Second
)

// storm is the test's world.
type storm struct {
	t          *testing.T
	size       size
	seed       uint64
	pool       string
	nodes      []string
	namespaces []string
	witness    *oracle.Witness
	admin      framework.Clients
	as         map[string]framework.Clients

	mu sync.Mutex
	// outcomes counts the answers, by what was done.
	outcomes map[string]map[string]int
	// serial tells pods apart that follow each other.
	serial int
	// old are Evacuations as they once were, for actors that work with an old version.
	old []*v1alpha1.Evacuation
	// down is when the server was killed last, up when it was back, lost for how long it was away
	// before that.
	down, up time.Time
	lost     time.Duration
}

func TestProtocol(t *testing.T) {
	start(t)
	s := newStorm(t)
	log := cluster.AuditLog(t)
	s.follow()
	judged := false
	defer func() {
		// What was waited for in vain does not hide what was found before.
		if !judged {
			framework.Accept(t, s.witness.Found(), nil)
		}
	}()
	s.blow()
	t.Log(s.summary())

	s.askOnceMore()
	s.letEveryPodGo()
	s.settle()
	s.callOff()
	s.settle()
	s.clearAway()
	framework.EventuallyWithin(t, settles, "everything has ended", func(ctx context.Context) (bool, error) {
		s.giveUp(ctx)
		var left []string
		for _, e := range s.witness.Evacuations() {
			left = append(left, fmt.Sprintf("%s/%s: %v, %+v", e.Namespace, e.Name, e.Finalizers, e.Status))
		}
		return settled(left)
	})
	calls := must.Get(log.Calls())(t)
	found, evictions := s.witness.Judge(calls, serverUser)
	judged = true
	framework.Accept(t, found, nil)
	counts := s.witness.Counts()
	t.Logf("%s; %d evictions were tried", counts, evictions)
	if counts.HandOvers == 0 || counts.Completed == 0 || counts.Vanished == 0 || counts.Forbidden == 0 ||
		len(counts.Blocked) < 2 || evictions == 0 {
		t.Error("the witness has not seen every part of the protocol")
	}
}

// settle waits until everything has ended or says what blocks it.
func (s *storm) settle() {
	s.t.Helper()
	framework.EventuallyWithin(
		s.t, settles, "everything has ended or says what blocks it",
		func(ctx context.Context) (bool, error) {
			s.giveUp(ctx)
			return settled(s.witness.Unsettled())
		},
	)
}

func settled(left []string) (bool, error) {
	if len(left) == 0 {
		return true, nil
	}
	return false, fmt.Errorf("%d left, first %s", len(left), left[0])
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	s := &storm{
		t: t, size: smallSize, witness: oracle.NewWitness(startDeadline), admin: cluster.As(t),
		as: map[string]framework.Clients{}, outcomes: map[string]map[string]int{},
	}
	if framework.Full(t) {
		s.size = fullSize
	}
	s.seed = framework.Random(t).Uint64()
	s.pool, s.nodes = cluster.NewPool(t, 4, true)
	for range 4 {
		s.namespaces = append(s.namespaces, cluster.NewNamespace(t))
	}
	s.grant()
	return s
}

// follow has the witness see all that happens in the storm's namespaces, and nothing else.
func (s *storm) follow() {
	s.t.Helper()
	cluster.Record(s.t, oracle.Scope{
		Nodes: labels.SelectorFromSet(labels.Set{framework.Pool: s.pool}), Namespaces: s.namespaces, Witness: s.witness,
	})
}

// blow does what is left to chance. Each worker makes its own choices in its own order, so that a
// seed gives the same ones again.
func (s *storm) blow() {
	s.t.Helper()
	begin := time.Now()
	pace := time.NewTicker(time.Second / perSecond)
	defer pace.Stop()
	turns := make(chan struct{})
	var wg sync.WaitGroup
	for i := range workers {
		random := rand.New(rand.NewPCG(s.seed, uint64(i)+1)) //nolint:gosec // nothing here is secret
		wg.Go(func() {
			for range turns {
				s.step(random)
			}
		})
	}
	kills := s.killTimes()
	steps := 0
	wg.Go(func() {
		defer close(turns)
		for time.Since(begin) < s.size.lasts+s.away() {
			<-pace.C
			turns <- struct{}{}
			steps++
		}
	})
	// The others continue.
	for _, at := range kills {
		if !s.sleep(time.Until(begin.Add(at + s.away()))) {
			return
		}
		s.kill()
	}
	wg.Wait()
	s.t.Logf("%d steps in %v, %d kills of the server", steps, time.Since(begin).Round(time.Second), len(kills))
}

// away is for how long the server has been away so far.
func (s *storm) away() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up.Before(s.down) {
		return s.lost + time.Since(s.down)
	}
	return s.lost
}

// killTimes are when the server is killed, counted from the beginning of the storm without the
// times in which it was away.
func (s *storm) killTimes() []time.Duration {
	chance := rand.New(rand.NewPCG(s.seed, 0)) //nolint:gosec // nothing here is secret
	var at []time.Duration
	for range s.size.kills {
		at = append(at, s.size.lasts/10+time.Duration(chance.Int64N(int64(s.size.lasts*8/10))))
	}
	slices.Sort(at)
	return at
}

// sleep lets time go by, unless the test ends.
func (s *storm) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.t.Context().Done():
		return false
	}
}

// kill kills the server and brings it back.
func (s *storm) kill() {
	s.t.Helper()
	from := time.Now()
	s.mu.Lock()
	s.down = from
	s.mu.Unlock()
	cluster.KillServer(s.t)
	must.Do(s.t, cluster.Up())
	now := time.Now()
	s.mu.Lock()
	s.up = now
	s.lost += now.Sub(from)
	s.mu.Unlock()
	// The witness needs a moment to list what it has missed.
	s.witness.Blind(from, now.Add(5*time.Second))
}

// step does one thing.
func (s *storm) step(random *rand.Rand) {
	total := 0
	for _, a := range actions {
		total += a.weight
	}
	n := random.IntN(total)
	for _, a := range actions {
		if n -= a.weight; n < 0 {
			s.do(a, random)
			return
		}
	}
}

func (s *storm) do(a action, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	began := time.Now()
	s.account(a.name, began, a.do(s, ctx, random))
}

// errNothing is the answer of who has found nothing to do it to.
var errNothing = errors.New("nothing to do")

// account counts an answer, and reports one that no client should get.
func (s *storm) account(what string, began time.Time, err error) {
	outcome := "ok"
	switch {
	case errors.Is(err, errNothing):
		outcome = "nothing"
	case err != nil:
		outcome = string(apierrors.ReasonForError(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outcomes[what] == nil {
		s.outcomes[what] = map[string]int{}
	}
	s.outcomes[what][outcome]++
	// A client that asks while the server goes down or comes up may get any answer.
	away := !s.down.IsZero() && (s.up.Before(s.down) || began.Before(s.up.Add(2*time.Second)))
	switch metav1.StatusReason(outcome) {
	case "ok", "nothing", metav1.StatusReasonNotFound, metav1.StatusReasonConflict,
		metav1.StatusReasonAlreadyExists, metav1.StatusReasonForbidden,
		metav1.StatusReasonInvalid, metav1.StatusReasonGone:
	default:
		if !away {
			s.witness.Report("%s: %v", what, err)
		}
	}
}

func (s *storm) summary() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var text strings.Builder
	for _, what := range slices.Sorted(maps.Keys(s.outcomes)) {
		fmt.Fprintf(&text, "\n  %-45s", what)
		for _, outcome := range slices.Sorted(maps.Keys(s.outcomes[what])) {
			fmt.Fprintf(&text, " %s %d", outcome, s.outcomes[what][outcome])
		}
	}
	return text.String()
}
