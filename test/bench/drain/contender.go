// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/oracle"
)

const (
	drainPool  = "drain-pool"
	drainNodes = "drain-nodes"
	bareLoop   = "bare-loop"
	// maintenance is a NodeMaintenance of default Deployments: their pods are replaced before they
	// leave.
	maintenance = "maintenance"
	// noSurge is a NodeMaintenance of Deployments with the annotation surge: Disabled.
	noSurge = "maintenance-no-surge"
	// badInput is the contender maintenance while the server also processes bad input about other
	// pods on other nodes.
	badInput = "maintenance-bad-input"
	// drainPoolWebhook is the contender drain-pool while eviction interception is installed: the
	// pods of Deployments are replaced before they leave. It takes minutes for each workload.
	drainPoolWebhook = "drain-pool-webhook"
	// attempts is the maximum number of runs of kubectl drain, which is repeated after a failure.
	attempts = 20
)

var (
	defaultContenders = []string{drainPool, drainNodes, bareLoop, maintenance, noSurge, badInput}
	contenderNames    = append(slices.Clone(defaultContenders), drainPoolWebhook)
)

// effort is the cost of a contender outside the processes of the cluster.
type effort struct {
	// cpu is the processor time of the contender's programs.
	cpu time.Duration
	// starts is the number of starts of programs.
	starts int
}

// selector selects the nodes to drain.
const selector = poolLabel + "=" + drainedPool

// drain runs a contender, and returns when the contender reports that the nodes are drained.
func (c *cluster) drain(ctx context.Context, contender string, s settings) (effort, error) {
	switch contender {
	case drainPool, drainPoolWebhook:
		return c.kubectlDrain(ctx, s.timeout, "--selector="+selector)
	case drainNodes:
		return c.drainEachNode(ctx, s.timeout)
	case bareLoop:
		return c.runLoop(ctx, s)
	case maintenance, noSurge, badInput:
		return effort{}, c.maintain(ctx)
	default:
		return effort{}, fmt.Errorf("unknown contender %q", contender)
	}
}

// kubectlDrain repeats kubectl drain until it succeeds, as a user would: kubectl stops at responses
// to an eviction that it does not expect, such as a conflict of two evictions that use the same
// budget.
func (c *cluster) kubectlDrain(ctx context.Context, timeout time.Duration, what string) (effort, error) {
	var sum effort
	var errs error
	for sum.starts < attempts {
		cpu, err := c.Run(ctx, nil, c.Program("kubectl"), "drain", what, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout="+timeout.String())
		sum.cpu += cpu
		sum.starts++
		if err == nil || ctx.Err() != nil {
			return sum, err
		}
		errs = errors.Join(errs, err)
	}
	return sum, errs
}

// drainEachNode runs one kubectl drain for each node, all at the same time.
func (c *cluster) drainEachNode(ctx context.Context, timeout time.Duration) (effort, error) {
	var wg sync.WaitGroup
	efforts, errs := make([]effort, len(c.drained)), make([]error, len(c.drained))
	for i, node := range c.drained {
		wg.Go(func() { efforts[i], errs[i] = c.kubectlDrain(ctx, timeout, node) })
	}
	wg.Wait()
	var sum effort
	for _, e := range efforts {
		sum.cpu += e.cpu
		sum.starts += e.starts
	}
	return sum, errors.Join(errs...)
}

func (c *cluster) runLoop(ctx context.Context, s settings) (effort, error) {
	self, err := os.Executable()
	if err != nil {
		return effort{}, err
	}
	cpu, err := c.Run(ctx, nil, self, loopCommand, "--kubeconfig="+c.Kubeconfig(), "--namespace="+namespace, "--nodes="+selector,
		"--workers="+strconv.Itoa(s.workers), "--retry="+s.retry.String())
	return effort{cpu: cpu, starts: 1}, err
}

func inPool(pool string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: poolLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{pool}}},
	}}}
}

// maintain creates a NodeMaintenance and waits for its condition Drained.
func (c *cluster) maintain(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	result := make(chan error, 1)
	tell := func(err error) {
		select {
		case result <- err:
		default:
		}
	}
	if err := oracle.Follow(ctx, oracle.Resource{
		Client: c.haulout.MaintenanceV1alpha1().RESTClient(), Name: "nodemaintenances", Fail: tell,
		See: func(event watch.Event, _ bool) {
			if nm, ok := event.Object.(*v1alpha1.NodeMaintenance); ok && meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained) {
				tell(nil)
			}
		},
	}); err != nil {
		return err
	}
	if _, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Create(ctx, &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: inPool(drainedPool), Stage: v1alpha1.NodeMaintenanceStageDrain,
		},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
