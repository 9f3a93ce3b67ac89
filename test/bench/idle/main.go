// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command idle measures the cost of a drain that makes no progress: thousands of Evacuations of
// pods under closed budgets. It creates the pods in a development cluster of its own, drains their
// nodes, and waits until all pods are blocked. Then it measures for a while the processor time of
// haulout-apiserver, and the requests that it sends to kube-apiserver according to the audit log.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/test/bench/internal/devcluster"
	"haulout.dev/haulout/test/bench/internal/usage"
)

// podsPerNode is the number of pods for which a simulated node has room.
const podsPerNode = 250

type settings struct {
	pods, budgets, nodes int
	settle, duration     time.Duration
	gogc                 int
	bin, use, json       string
	keep                 bool
}

func main() {
	// Logs of libraries would be in the table. The program gets all failures as errors.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	var s settings
	flag.IntVar(&s.pods, "pods", 10000, "number of pods that cannot leave")
	flag.IntVar(&s.budgets, "budgets", 60, "number of budgets of these pods")
	flag.IntVar(&s.nodes, "nodes", 100, "number of nodes of these pods")
	flag.DurationVar(&s.settle, "settle", time.Minute, "how long to wait after the last pod was reported as blocked")
	flag.DurationVar(&s.duration, "duration", time.Minute, "how long to measure")
	flag.IntVar(&s.gogc, "gogc", 50, "GOGC of haulout-apiserver; 50 is what its Deployment sets")
	flag.StringVar(&s.bin, "bin", "bin", "folder of the programs of the development cluster")
	flag.StringVar(&s.use, "use", "",
		"folder of the cluster of an earlier run with --keep and the same numbers: only measure")
	flag.BoolVar(&s.keep, "keep", false, "keep the cluster at the end")
	flag.StringVar(&s.json, "json", "bin/bench-idle.json", "file to which the figures are written")
	flag.Parse()
	if err := s.check(); err != nil {
		fmt.Fprintln(os.Stderr, "idle:", err)
		os.Exit(2)
	}
	devcluster.Main("idle", func(ctx context.Context) error { return run(ctx, s, os.Stdout) })
}

func (s settings) check() error {
	if flag.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flag.Arg(0))
	}
	for _, number := range []struct {
		flag       string
		value, min int
	}{{"pods", s.pods, s.budgets}, {"budgets", s.budgets, 1}, {"nodes", s.nodes, 1}, {"gogc", s.gogc, 1}} {
		if number.value < number.min {
			return fmt.Errorf("--%s=%d: must be at least %d", number.flag, number.value, number.min)
		}
	}
	if room := s.nodes * podsPerNode; s.pods > room {
		return fmt.Errorf("--pods=%d: must be at most %d, the number for which --nodes=%d has room",
			s.pods, room, s.nodes)
	}
	if s.settle < 0 || s.duration < time.Second {
		return fmt.Errorf("--settle=%v must not be negative, --duration=%v must be at least 1s", s.settle, s.duration)
	}
	return nil
}

func run(ctx context.Context, s settings, out io.Writer) (err error) {
	c := &cluster{Cluster: &devcluster.Cluster{Bin: s.bin, Dir: s.use}, out: out}
	defer func() {
		switch {
		case c.Cluster == nil:
		case s.keep || s.use != "":
			fmt.Fprintln(out, "The cluster is kept in", c.Dir)
		default:
			err = errors.Join(err, c.Stop(ctx))
		}
	}()
	if s.use == "" {
		if err := c.start(ctx, s); err != nil {
			return err
		}
	}
	if err := c.connect(); err != nil {
		return err
	}
	if s.use == "" {
		if err := c.drain(ctx, s); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "Wait for %v, then measure for %v\n", s.settle, s.duration)
	if err := usage.Pause(ctx, s.settle); err != nil {
		return err
	}
	r, err := c.measure(ctx, s)
	if err != nil {
		return err
	}
	return r.publish(out, s.json)
}
