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

// serverUser is the user of the server in the host cluster.
const serverUser = "system:serviceaccount:haulout-system:haulout-apiserver"

// startDeadline is the time within which an evacuator must send its first report.
const startDeadline = 2 * time.Second

// cluster is the cluster of the test.
var cluster *framework.Cluster

// start starts a cluster with short deadlines, or uses the cluster of E2E_CLUSTER_DIR.
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

// size is the length of the storm and the number of kills.
type size struct {
	// lasts is the duration of the requests, not counting the downtime of the server.
	lasts time.Duration
	// kills is the number of times that the server is killed.
	kills int
}

var (
	smallSize = size{lasts: 22 * time.Second, kills: 2}
	fullSize  = size{lasts: 6 * time.Minute, kills: 20}
)

const (
	// workers is the number of concurrent workers, which together send perSecond requests.
	workers   = 8
	perSecond = 55
	// settles is the time that all Evacuations may take to end or to report what blocks them, on a
	// busy machine.
	settles = 90 * time.Second
)

// storm is the state of the test.
type storm struct {
	t          *testing.T
	size       size
	seed       uint64
	pool       string
	nodes      []string
	namespaces []string
	recorder   *oracle.Recorder
	admin      framework.Clients
	as         map[string]framework.Clients

	mu sync.Mutex
	// found describes the forbidden requests that the server accepted.
	found []string
	// outcomes counts the responses, by the name of the action.
	outcomes map[string]map[string]int
	// serial distinguishes successive pods of the same name.
	serial int
	// old has earlier states of Evacuations, for actors that write with an old resource version.
	old []*v1alpha1.Evacuation
	// down is the time of the last kill of the server, and up the time of the last restart. lost is
	// the total downtime until up.
	down, up time.Time
	lost     time.Duration
}

func TestProtocol(t *testing.T) {
	start(t)
	s := newStorm(t)
	judged := false
	defer func() {
		// Report the findings even if a later wait fails.
		if !judged {
			log, err := s.recorder.Log()
			s.mu.Lock()
			found := slices.Clone(s.found)
			s.mu.Unlock()
			for _, text := range slices.Concat(found, oracle.Protocol(log, startDeadline)) {
				t.Error(text)
			}
			framework.Accept(t, nil, err)
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
		s.evictAgain(ctx)
		var left []string
		for _, e := range s.recorder.View().Evacuations() {
			left = append(left, fmt.Sprintf("%s/%s: %v, %+v", e.Namespace, e.Name, e.Finalizers, e.Status))
		}
		return settled(left)
	})
	log := must.Get(s.recorder.Log())(t)
	found, evictions := oracle.OutOfTurn(log, serverUser)
	judged = true
	framework.Accept(t, slices.Concat(s.found, oracle.Protocol(log, startDeadline), oracle.EndedEarly(log), found), nil)
	counts := oracle.CountsOf(log)
	t.Logf("%s; %d evictions were tried", counts, evictions)
	if counts.HandOvers == 0 || counts.Completed == 0 || counts.Vanished == 0 || counts.Forbidden == 0 ||
		len(counts.Blocked) < 2 || evictions == 0 {
		t.Error("the log does not have every part of the protocol")
	}
}

// settle waits until all Evacuations have ended or report what blocks them.
func (s *storm) settle() {
	s.t.Helper()
	framework.EventuallyWithin(
		s.t, settles, "everything has ended or says what blocks it",
		func(ctx context.Context) (bool, error) {
			s.giveUp(ctx)
			return settled(oracle.Unsettled(s.recorder.View().Evacuations()))
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
		t: t, size: smallSize, admin: cluster.As(t), as: map[string]framework.Clients{}, outcomes: map[string]map[string]int{},
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
	cluster.InterceptEvictions(t, s.pool, s.nodes[0], s.namespaces...)
	s.recorder = cluster.Record(t, oracle.Scope{
		Nodes: labels.SelectorFromSet(labels.Set{framework.Pool: s.pool}), Namespaces: s.namespaces,
	})
	return s
}

// accuse records something that the server must not have allowed.
func (s *storm) accuse(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found = append(s.found, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// blow sends random requests. Each worker has a separate sequence of choices, so that a seed
// repeats the choices.
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
		for time.Since(begin) < s.size.lasts+s.downtime() {
			<-pace.C
			turns <- struct{}{}
			steps++
		}
	})
	// The workers continue to send requests during the kills.
	for _, at := range kills {
		if !s.sleep(time.Until(begin.Add(at + s.downtime()))) {
			return
		}
		s.kill()
	}
	wg.Wait()
	s.t.Logf("%d steps in %v, %d kills of the server", steps, time.Since(begin).Round(time.Second), len(kills))
}

// downtime returns the total time for which the server has been down so far.
func (s *storm) downtime() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up.Before(s.down) {
		return s.lost + time.Since(s.down)
	}
	return s.lost
}

// killTimes returns the times of the kills since the beginning of the storm, not counting the
// downtime of the server.
func (s *storm) killTimes() []time.Duration {
	chance := rand.New(rand.NewPCG(s.seed, 0)) //nolint:gosec // nothing here is secret
	var at []time.Duration
	for range s.size.kills {
		at = append(at, s.size.lasts/10+time.Duration(chance.Int64N(int64(s.size.lasts*8/10))))
	}
	slices.Sort(at)
	return at
}

// sleep waits for a duration. It returns false if the test ends first.
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

// kill kills the server and restarts it.
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
	// The recorder needs a moment to list the Evacuations again.
	s.recorder.NoteGap(from, now.Add(5*time.Second))
}

// step runs a random action.
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

// errNothing is the result of an action that has found no object.
var errNothing = errors.New("nothing to do")

// account counts a response, and reports a response that no client should get.
func (s *storm) account(what string, began time.Time, err error) {
	outcome := "ok"
	switch {
	case errors.Is(err, errNothing):
		outcome = "nothing"
	case err != nil:
		outcome = string(apierrors.ReasonForError(err))
	}
	s.mu.Lock()
	if s.outcomes[what] == nil {
		s.outcomes[what] = map[string]int{}
	}
	s.outcomes[what][outcome]++
	// While the server stops or starts, a client may get any response.
	away := !s.down.IsZero() && (s.up.Before(s.down) || began.Before(s.up.Add(2*time.Second)))
	s.mu.Unlock()
	switch metav1.StatusReason(outcome) {
	case "ok", "nothing", metav1.StatusReasonNotFound, metav1.StatusReasonConflict,
		metav1.StatusReasonAlreadyExists, metav1.StatusReasonForbidden,
		metav1.StatusReasonInvalid, metav1.StatusReasonGone:
	default:
		if !away {
			s.accuse("%s: %v", what, err)
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
