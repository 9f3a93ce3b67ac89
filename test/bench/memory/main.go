// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command memory measures how much memory haulout-apiserver uses for a large cluster: it creates
// nodes and pods of realistic size in a development cluster of its own, starts the server, drains
// some of the nodes and cancels the drain. No kubelet runs, so evicted pods stay: the figures of
// the drain are the maximum for that number of pods.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"haulout.dev/haulout/test/bench/internal/devcluster"
	"haulout.dev/haulout/test/bench/internal/usage"
	"haulout.dev/haulout/test/internal/program"
)

type settings struct {
	nodes, pods, drain int
	gogc               int
	bin, use           string
	keep               bool
}

func main() {
	var s settings
	flag.IntVar(&s.nodes, "nodes", 5000, "number of nodes")
	flag.IntVar(&s.pods, "pods", 150000, "number of pods, spread evenly over the nodes")
	flag.IntVar(&s.drain, "drain", 250, "number of nodes to drain")
	flag.IntVar(&s.gogc, "gogc", 50, "GOGC of haulout-apiserver; 50 is what its Deployment sets")
	flag.StringVar(&s.bin, "bin", "bin", "folder of the programs")
	flag.StringVar(&s.use, "use", "",
		"folder of the cluster of an earlier run with --keep and the same numbers; its server is restarted")
	flag.BoolVar(&s.keep, "keep", false, "keep the cluster at the end")
	flag.Parse()
	if s.nodes < 1 || s.pods < s.nodes || s.drain < 1 || s.drain > s.nodes {
		fmt.Fprintf(
			os.Stderr, "memory: --nodes is %d, --pods %d, --drain %d: "+
				"want --nodes of at least 1, --pods of at least --nodes, --drain of 1 to --nodes\n",
			s.nodes, s.pods, s.drain,
		)
		os.Exit(2)
	}
	devcluster.Main("memory", func(ctx context.Context) error { return run(ctx, s, os.Stdout) })
}

func run(ctx context.Context, s settings, out io.Writer) (err error) {
	c := &cluster{dir: s.use, bin: s.bin, out: out}
	if s.use == "" {
		if c.dir, err = os.MkdirTemp("", "haulout-memory-"); err != nil {
			return err
		}
	}
	// Without the controllers that would evict pods from the nodes, which send no heartbeats.
	c.environment = []string{
		"CLUSTER_DIR=" + c.dir, "NODES=0",
		"CONTROLLER_MANAGER_FLAGS=--controllers=*," +
			"-node-lifecycle-controller,-taint-eviction-controller,-node-ipam-controller",
	}
	defer func() {
		if s.keep {
			fmt.Fprintln(c.out, "The cluster is kept in", c.dir)
			return
		}
		err = errors.Join(err, c.manage(context.WithoutCancel(ctx), "down"), os.RemoveAll(c.dir))
	}()
	if err := c.manage(ctx, "up", "HAULOUT=false"); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	if s.use == "" {
		started := time.Now()
		if err := c.fill(ctx, s); err != nil {
			return err
		}
		fmt.Fprintf(c.out, "%d nodes and %d pods created in %v\n", s.nodes, s.pods,
			time.Since(started).Round(time.Second))
	}
	return c.measure(ctx, s)
}

// measure prints the figures after each step of a drain.
func (c *cluster) measure(ctx context.Context, s settings) error {
	if err := c.manage(ctx, "up", "HAULOUT=true", fmt.Sprintf("GOGC=%d", s.gogc)); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "%-24s %10s %10s %10s %8s\n", "STEP", "RESIDENT", "PEAK", "GO HEAP", "AFTER")
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"all pods known", func(ctx context.Context) error { return c.know(ctx, s) }},
		{"a minute later", func(ctx context.Context) error { return usage.Pause(ctx, time.Minute) }},
		{fmt.Sprintf("%d nodes draining", s.drain), func(ctx context.Context) error { return c.drain(ctx, s) }},
		{"a minute later", func(ctx context.Context) error { return usage.Pause(ctx, time.Minute) }},
		{"cancelled", c.cancel},
		{"a minute later", func(ctx context.Context) error { return usage.Pause(ctx, time.Minute) }},
	} {
		started := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		figures, err := c.figures(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(c.out, "%-24s %7d MB %7d MB %7d MB %8v\n", step.name, figures.resident/1e6, figures.peak/1e6,
			figures.heap/1e6, time.Since(started).Round(time.Second))
	}
	return nil
}

// manage runs bin/cluster.
func (c *cluster) manage(ctx context.Context, verb string, environment ...string) error {
	_, err := program.Program{
		Path: filepath.Join(c.bin, "cluster"), Environment: slices.Concat(c.environment, environment),
	}.Run(ctx, verb)
	return err
}

// patience is the timeout of a step.
const patience = 30 * time.Minute

func eventually(ctx context.Context, check func(context.Context) (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, time.Second, patience, true, check)
}
