// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/worker"
	"haulout.dev/haulout/test/bench/internal/goals"
	"haulout.dev/haulout/test/bench/internal/scrape"
)

const (
	rolloutName = "memory"
	workerClass = "memory.bench.haulout.dev"
	// rolloutTime is the timeout of the rollout.
	rolloutTime = 3 * time.Hour
	// maxHeap limits the heap after the rollout, as a multiple of the heap before it.
	maxHeap = 1.1
)

// rolloutReport is the content of the JSON file of a rollout.
type rolloutReport struct {
	CPUs    int       `json:"cpus"`
	Started time.Time `json:"started"`
	Nodes   int       `json:"nodes"`
	Pods    int       `json:"pods"`
	// RolloutSeconds is how long the rollout took.
	RolloutSeconds float64 `json:"rolloutSeconds"`
	// BeforeBytes and AfterBytes are the minimum of the heap before and after the rollout, each
	// time after a restart of the server.
	BeforeBytes float64      `json:"heapBytesBefore"`
	AfterBytes  float64      `json:"heapBytesAfter"`
	Goals       []goals.Goal `json:"goals"`
}

// compareRollout measures the heap of the server, rolls a maintenance over all nodes, and measures
// the heap again. The rollout keeps a NodeMaintenance for each node.
func (c *cluster) compareRollout(ctx context.Context) error {
	r := rolloutReport{CPUs: runtime.NumCPU(), Started: time.Now().UTC(), Nodes: c.nodes, Pods: c.pods}
	var err error
	if r.BeforeBytes, err = c.restartedHeap(ctx); err != nil {
		return fmt.Errorf("before the rollout: %w", err)
	}
	began := time.Now()
	if err := c.roll(ctx); err != nil {
		return fmt.Errorf("rollout: %w", err)
	}
	r.RolloutSeconds = time.Since(began).Seconds()
	fmt.Fprintf(c.out, "%d nodes done after %v\n", c.nodes, time.Since(began).Round(time.Second))
	if r.AfterBytes, err = c.restartedHeap(ctx); err != nil {
		return fmt.Errorf("after the rollout: %w", err)
	}
	r.Goals = goals.Judge(goals.Goal{
		Text:  fmt.Sprintf("heap with %d done nodes, of that without", c.nodes),
		Value: r.AfterBytes / r.BeforeBytes, Bound: maxHeap,
	})
	table := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\nHEAP BEFORE\tAFTER\n%.0f MB\t%.0f MB\n", r.BeforeBytes/1e6, r.AfterBytes/1e6)
	goals.Print(table, r.Goals)
	if err := table.Flush(); err != nil {
		return err
	}
	return goals.WriteReport(c.json, r)
}

// restartedHeap starts the server, waits until it knows all pods, and returns the minimum of its
// heap.
func (c *cluster) restartedHeap(ctx context.Context) (float64, error) {
	if err := c.restart(ctx, "--max-unavailable-nodes=100%"); err != nil {
		return 0, err
	}
	if err := errors.Join(c.know(ctx, groupCancelled), c.cancel(ctx)); err != nil {
		return 0, err
	}
	scraper, err := scrape.New(c.config, c.dir)
	if err != nil {
		return 0, err
	}
	return scraper.LeastHeap(ctx, c.rest)
}

// roll takes each node out of service and back. The pods stay, because no kubelet would end them,
// and the work takes no time.
func (c *cluster) roll(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := worker.New(worker.Config{
		Class: workerClass, Holder: "memory", Client: c.haulout,
		Handler: func(context.Context, *worker.Task) error { return nil },
	})
	if err != nil {
		return err
	}
	stopped := make(chan error, 1)
	go func() { stopped <- w.Run(ctx) }()
	rollouts := c.haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts()
	if _, err := rollouts.Create(ctx, &v1alpha1.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: rolloutName},
		Spec: v1alpha1.NodeMaintenanceRolloutSpec{
			Stage: v1alpha1.RolloutStageRoll,
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: groupLabel, Operator: corev1.NodeSelectorOpExists}},
			}}},
			Limits: []v1alpha1.RolloutLimit{{MaxUnavailable: ptr.To(intstr.FromString("100%"))}},
			Template: v1alpha1.RolloutTemplate{
				Task: &v1alpha1.NodeMaintenanceTask{Worker: workerClass, Stage: v1alpha1.NodeTaskStageCordon},
			},
		},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 2*time.Second, rolloutTime, true, func(ctx context.Context) (bool, error) {
		r, err := rollouts.Get(ctx, rolloutName, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if stalled := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionStalled); stalled != nil {
			return false, errors.New(stalled.Message)
		}
		return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete) && int(r.Status.Nodes.Done) == c.nodes, nil
	})
	cancel()
	return errors.Join(err, <-stopped)
}
