// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

const (
	// rageTime is the time of the faults in a trial, drainTime the time that the drains may take
	// after the last fault.
	rageTime  = 10 * time.Second
	drainTime = 2 * time.Minute
)

// TestRandomFaults drains nodes during faults that the seed chooses: processes are killed, stopped
// and slowed down, connections are cut, silenced, delayed and dropped without a reset, the disk is
// full, a webhook denies writes of the server or does not answer, the Lease is deleted, and a
// tenant fills the storage. Then the drains finish and the nodes are released. An observer checks
// that no budget was broken, no pod was evicted without a maintenance, no cordon of others was
// undone, and no acknowledged write was lost.
func TestRandomFaults(t *testing.T) { testRandomFaults(t, false, 2, 60) }

// TestRandomFaultsOfEtcdCluster is TestRandomFaults with an etcd cluster of three in place of the
// embedded etcd. Its leader fails, too.
func TestRandomFaultsOfEtcdCluster(t *testing.T) { testRandomFaults(t, true, 1, 40) }

func testRandomFaults(t *testing.T, withEtcd bool, small, full int) {
	t.Helper()
	r := newRig(t, withEtcd)
	count := small
	if framework.Full(t) {
		count = full
	}
	if value := os.Getenv("E2E_SEEDS"); value != "" {
		var err error
		if count, err = strconv.Atoi(value); err != nil || count < 1 {
			t.Fatalf("E2E_SEEDS=%q: must be a whole number of at least 1", value)
		}
	}
	for _, seed := range seeds(t, count) {
		name := fmt.Sprintf("E2E_SEED=%d", seed)
		if !t.Run(name, func(t *testing.T) { newTrial(t, r, seed).run() }) {
			// If the seed fails a second time, the failure does not depend on chance.
			t.Run(name+" again", func(t *testing.T) { newTrial(t, r, seed).run() })
		}
	}
}

// seeds returns the given number of random seeds, or only the seed in E2E_SEED.
func seeds(t *testing.T, count int) []uint64 {
	t.Helper()
	if value := os.Getenv("E2E_SEED"); value != "" {
		seed, err := strconv.ParseUint(value, 10, 64)
		must.True(t, err == nil, "E2E_SEED=%q: %v", value, err)
		return []uint64{seed}
	}
	list := make([]uint64, count)
	for i := range list {
		list[i] = rand.Uint64() //nolint:gosec // nothing here is secret
	}
	return list
}

// trial is the run of one seed.
type trial struct {
	*rig

	t               *testing.T
	seed            uint64
	random          *rand.Rand
	pool, namespace string
	nodes           []string
	// foreign has the names of the nodes that a user has cordoned.
	foreign []string
	judge   *oracle.Recorder
	ledger  *ledger
	// calledOff is the name of the maintenance that a user completes before it is drained.
	maintenances []*v1alpha1.NodeMaintenance
	calledOff    string
	tenant       *tenant
}

// newTrial creates nodes and workloads.
func newTrial(t *testing.T, r *rig, seed uint64) *trial {
	t.Helper()
	x := &trial{rig: r, t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // nothing here is secret
	x.pool, x.nodes = r.NewPool(t, 8, true)
	x.namespace = r.NewNamespace(t)
	for i := range 4 {
		name := fmt.Sprintf("app-%d", i)
		replicas := 4 + x.random.Int32N(6)
		var modify []func(*appsv1.Deployment)
		if x.random.IntN(2) == 0 {
			modify = append(modify, framework.WithSurge)
		}
		r.Deployment(t, x.namespace, name, x.pool, replicas, modify...)
		if i > 0 {
			r.Budget(t, x.namespace, name, 1+x.random.IntN(2))
		}
	}
	// A maintenance selects the first node but not the last one.
	x.foreign = []string{x.nodes[0], x.nodes[7]}
	for _, node := range x.foreign {
		r.MustKubectl(t, "", "cordon", node)
	}
	overlap := x.random.IntN(2)
	x.maintain(x.nodes[0:3])
	x.maintain(x.nodes[3-overlap : 5])
	if x.random.IntN(3) == 0 {
		x.calledOff = one(x.random, x.maintenances).Name
	}
	x.judge = r.record(t, x.pool, x.namespace)
	x.ledger = newLedger(r.As(t).Haulout)
	x.tenant = newTenant(t, r)
	return x
}

func (x *trial) maintain(nodes []string) {
	x.maintenances = append(x.maintenances, framework.Maintenance(x.pool, v1alpha1.NodeMaintenanceStageDrain,
		func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, nodes...)
		}))
}

func (x *trial) run() {
	x.t.Helper()
	defer func() {
		if x.t.Failed() {
			x.Diagnose(x.t)
		}
		x.removeMaintenances()
	}()
	ctx, cancel := context.WithCancel(x.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { x.ledger.write(ctx) })
	wg.Go(func() { x.tenant.fill(ctx) })
	wg.Go(x.act)
	newBreakage(x.t, x.rig, x.namespace).rage(x.seed, rageTime)
	cancel()
	wg.Wait()
	x.t.Logf("the tenant has made %d objects", x.tenant.made)
	calm := time.Now()
	go x.nudge(x.t.Context(), x.namespace)
	var names, drained []string
	for _, nm := range x.maintenances {
		names = append(names, nm.Name)
		if nm.Name != x.calledOff {
			drained = append(drained, nm.Name)
		}
	}
	framework.Await(x.t, x.judge, drainTime, oracle.Drained(drained...))
	x.t.Logf("the nodes were drained %s after everything ran again", time.Since(calm).Round(100*time.Millisecond))
	for _, name := range names {
		x.complete(name)
	}
	framework.Await(x.t, x.judge, drainTime, oracle.PutBack(x.foreign, names...))
	must.Do(x.t, x.judge.Settle(x.t.Context()))
	found, err := x.judge.Verdict(oracle.Rules{Server: serverUser, SeesLate: true}, x.foreign...)
	framework.Accept(x.t, found, err)
	x.ledger.check(x.t)
}

// nudgeInterval is the time between two changes of the pods that kwok may have forgotten.
const nudgeInterval = 2 * time.Second

// nudge changes the pods of a namespace until the context ends, so that kwok processes them again.
func (r *rig) nudge(ctx context.Context, namespace string) {
	for ctx.Err() == nil {
		<-time.After(nudgeInterval)
		// The error names the pods that do not run; the next nudge changes them again.
		_ = framework.Nudge(ctx, r.observer.Pods(namespace))
	}
}

// act creates the maintenances during the faults, and may complete one early.
func (x *trial) act() {
	random := rand.New(rand.NewPCG(x.seed, breakers+1)) //nolint:gosec // nothing here is secret
	for _, nm := range x.maintenances {
		<-time.After(time.Duration(random.Int64N(int64(rageTime / 4))))
		x.acknowledged(func(ctx context.Context) error {
			_, err := x.As(x.t).Maintenances().Create(ctx, nm, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
	}
	if x.calledOff != "" {
		<-time.After(time.Duration(random.Int64N(int64(rageTime / 2))))
		x.complete(x.calledOff)
	}
}

func (x *trial) complete(name string) {
	patch := fmt.Appendf(nil, `{"spec":{"stage":%q}}`, v1alpha1.NodeMaintenanceStageComplete)
	x.acknowledged(func(ctx context.Context) error {
		_, err := x.As(x.t).Maintenances().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// acknowledged repeats a write until it succeeds.
func (x *trial) acknowledged(write func(context.Context) error) {
	framework.EventuallyWithin(x.t, repairTime, "a write is acknowledged", func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*writeTime)
		defer cancel()
		err := write(ctx)
		return err == nil, err
	})
}

// removeMaintenances deletes the maintenances, which would disturb the next trial.
func (x *trial) removeMaintenances() {
	for _, nm := range x.maintenances {
		x.Remove(x.t, nm.Name)
	}
}
