// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// rivals are two haulout-schedulers with the same lease: the cluster's scheduler, and another one.
type rivals struct {
	config string
	other  *exec.Cmd
	// leader is the identity in the lease. otherLeads is true if it is the identity of the other
	// scheduler.
	leader     string
	otherLeads bool
	// killed is true after the leader was killed, while the lease still names it.
	killed bool
	kills  int
}

// startRivals restarts the cluster's scheduler with leader election, until stop is called.
func startRivals(t *testing.T) (r *rivals, stop func()) {
	t.Helper()
	r = &rivals{config: schedulerConfig(t, func(config map[string]any) {
		config["leaderElection"] = map[string]any{
			"leaderElect": true, "leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms",
		}
	})}
	leases := cluster.As(t).Kube.CoordinationV1().Leases(metav1.NamespaceSystem)
	if err := leases.Delete(t.Context(), "kube-scheduler", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	// The flag --leader-elect of the cluster has precedence over the configuration.
	restore := withScheduler(t, "--config="+r.config, "--leader-elect=true")
	framework.Eventually(t, "the cluster's scheduler leads", func(ctx context.Context) (bool, error) {
		r.leader = r.holder(ctx, t)
		return r.leader != "", nil
	})
	r.startOther(t)
	return r, func() {
		_ = r.other.Process.Kill()
		_ = r.other.Wait()
		restore()
	}
}

// holder returns the identity in the lease, or "".
func (r *rivals) holder(ctx context.Context, t *testing.T) string {
	t.Helper()
	lease, err := cluster.As(t).Kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, "kube-scheduler", metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

func (r *rivals) startOther(t *testing.T) {
	t.Helper()
	r.other = exec.Command(filepath.Join(cluster.Root(), "bin", "haulout-scheduler"), "--config="+r.config, "--secure-port=0")
	must.Do(t, r.other.Start())
}

// kill kills the leader with SIGKILL.
func (r *rivals) kill(t *testing.T) {
	t.Helper()
	if r.otherLeads {
		must.Do(t, r.other.Process.Kill())
		_ = r.other.Wait()
	} else {
		cluster.Kill(t, "kube-scheduler")
	}
	r.killed = true
	r.kills++
}

// complete reports whether one scheduler leads and the other one waits. It restarts a killed
// scheduler after the other one has got the lease.
func (r *rivals) complete(ctx context.Context, t *testing.T) bool {
	t.Helper()
	if !r.killed {
		return true
	}
	holder := r.holder(ctx, t)
	if holder == "" || holder == r.leader {
		return false
	}
	if r.otherLeads {
		r.startOther(t)
	} else if err := cluster.Up(); err != nil {
		t.Fatal(err)
	}
	r.leader, r.otherLeads, r.killed = holder, !r.otherLeads, false
	return true
}

// TestLeaderIsKilled kills the leading scheduler repeatedly, at random moments after a change of a
// budget, while pods below the threshold try to preempt guarded pods.
func TestLeaderIsKilled(t *testing.T) {
	const atLeast = 3
	random := framework.Random(t)
	r, stop := startRivals(t)
	defer stop()
	s := newStorm(t, smallStorm)
	s.createPending(t, belowThreshold)
	s.moveBudgets(t, random, func() { r.killAtRandom(t, random) })
	framework.Eventually(t, "a scheduler leads", func(ctx context.Context) (bool, error) { return r.complete(ctx, t), nil })
	s.waitSettled(t)

	// No pod may exceed a budget: each deletion of a guarded pod is wrong.
	log := settled(t, s.recorder)
	verdict := judge(log, func(string) int32 { return 0 })
	placed, _ := s.placed(log)
	t.Logf("%d kills, %d evictions, %d of %d pods placed", r.kills, verdict.Evicted, placed, s.wanting)
	framework.Accept(t, verdict.Found, nil)
	if r.kills < atLeast || verdict.Evicted == 0 {
		t.Errorf("%d kills and %d evictions, want at least %d and 1", r.kills, verdict.Evicted, atLeast)
	}
}

// killAtRandom kills the leader with a probability of one third, at a random moment while the
// leader handles a change of a budget.
func (r *rivals) killAtRandom(t *testing.T, random *rand.Rand) {
	t.Helper()
	const reaction = 300 * time.Millisecond
	if !r.complete(t.Context(), t) || random.IntN(3) > 0 {
		return
	}
	<-time.After(time.Duration(random.Int64N(int64(reaction))))
	r.kill(t)
}
