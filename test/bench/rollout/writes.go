// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/bench/internal/requests"
	"haulout.dev/haulout/test/bench/internal/scrape"
	"haulout.dev/haulout/test/bench/internal/usage"
	"haulout.dev/haulout/test/oracle"
)

// writes counts requests that change objects, by verb and resource.
type writes struct {
	Seconds float64 `json:"seconds"`
	// Own are those at the API of Haulout, of the server and of the worker. Host are those that the
	// server has sent to kube-apiserver.
	Own  map[string]int `json:"haulout"`
	Host map[string]int `json:"kubeAPIServer"`
}

func (w *writes) all() float64 {
	sum := 0
	for _, counts := range []map[string]int{w.Own, w.Host} {
		for _, count := range counts {
			sum += count
		}
	}
	return float64(sum)
}

// onNodes returns the number of those of the server that change Nodes.
func (w *writes) onNodes() float64 {
	sum := 0
	for kind, count := range w.Host {
		_, resource, _ := strings.Cut(kind, " ")
		if resource == "nodes" || strings.HasPrefix(resource, "nodes/") {
			sum += count
		}
	}
	return float64(sum)
}

// countWrites counts the writes while do runs.
func (c *cluster) countWrites(ctx context.Context, do func(context.Context) error) (*writes, error) {
	scraper, err := scrape.New(c.config, c.Dir)
	if err != nil {
		return nil, err
	}
	log, err := oracle.OpenAuditLog(c.AuditLog())
	if err != nil {
		return nil, err
	}
	metrics, err := scraper.Read(ctx)
	if err != nil {
		return nil, err
	}
	began, before := time.Now(), requests.Writes(metrics)
	if err := do(ctx); err != nil {
		return nil, err
	}
	w := &writes{Seconds: time.Since(began).Seconds()}
	if metrics, err = scraper.Read(ctx); err != nil {
		return nil, err
	}
	w.Own = difference(before, requests.Writes(metrics))
	return w, log.Read(func(log io.Reader) (err error) {
		w.Host, err = requests.CountWrites(log)
		return err
	})
}

// difference returns what was added to each counter.
func difference(before, after map[string]int) map[string]int {
	added := map[string]int{}
	for kind, count := range after {
		added[kind] = count - before[kind]
	}
	maps.DeleteFunc(added, func(_ string, count int) bool { return count == 0 })
	return added
}

// measureWrites counts the writes of a rollout over nodes without pods, and those of a server that
// has nothing to do: one rollout is complete, one is held, and one waits for its window.
func (c *cluster) measureWrites(ctx context.Context, s settings, r *report, out io.Writer) error {
	var err error
	fmt.Fprintf(out, "Roll %d nodes without pods\n", s.nodes)
	if r.Trip, err = c.countWrites(ctx, func(ctx context.Context) error {
		if err := c.roll(ctx, s, "empty"); err != nil {
			return err
		}
		return usage.Pause(ctx, s.settle)
	}); err != nil {
		return err
	}
	held, waiting := newRollout("held", s.percent), newRollout("waiting", s.percent)
	held.Spec.Holds = []v1alpha1.RolloutHold{{Name: "bench"}}
	waiting.Spec.Windows = []v1alpha1.RolloutWindow{{
		Start: ptr.To(metav1.NewTime(time.Now().Add(24 * time.Hour))), Duration: metav1.Duration{Duration: time.Hour},
	}}
	for _, rollout := range []*v1alpha1.NodeMaintenanceRollout{held, waiting} {
		if _, err := c.haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts().Create(ctx, rollout, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := usage.Pause(ctx, s.settle); err != nil {
		return err
	}
	fmt.Fprintf(out, "Count the writes of an idle server for %v\n", s.idle)
	r.Idle, err = c.countWrites(ctx, func(ctx context.Context) error { return usage.Pause(ctx, s.idle) })
	return err
}
