// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command rollout measures what rollouts cost: their speed beside a loop that drains, works and
// uncordons, the writes for each node, the time of a decision, the memory of the server, and the
// speed of drains without rollouts. It runs on development clusters. The figures do not come from
// Haulout: the command watches the nodes, and counts requests in logs and metrics.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/test/bench/internal/devcluster"
	"haulout.dev/haulout/test/bench/internal/names"
)

// The parts of the measurement.
const (
	partTrips    = "trips"
	partWrites   = "writes"
	partDecision = "decision"
	partMemory   = "memory"
	partDrains   = "drains"
)

var partNames = []string{partTrips, partWrites, partDecision, partMemory, partDrains}

const (
	// mostPercent is the default of the server's flag --max-unavailable-nodes.
	mostPercent = 20
	// podsPerNode is the number of pods for which a simulated node has room.
	podsPerNode = 250
)

// settings are the flags.
type settings struct {
	parts                   []string
	nodes, percent          int
	pods, deployments       int
	work, loopPause         time.Duration
	settle, idle, timeout   time.Duration
	repetitions, drains     int
	memoryNodes, memoryPods int
	gogc                    int
	bin, before, json       string
}

// places returns how many nodes may be out of service at the same time.
func (s settings) places() int { return max(1, s.nodes*s.percent/100) }

func main() {
	// Logs of libraries would break up the table. The program receives all failures as errors.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	s, err := readSettings(os.Args[1:])
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "rollout:", err)
		}
		os.Exit(2)
	}
	devcluster.Main("rollout", func(ctx context.Context) error { return run(ctx, s, os.Stdout) })
}

func readSettings(args []string) (settings, error) {
	s := settings{parts: partNames}
	flags := flag.NewFlagSet("rollout", flag.ContinueOnError)
	names.Var(flags, &s.parts, "parts", partNames,
		"what to measure, separated by commas: "+strings.Join(partNames, ", ")+"; drains needs --before")
	flags.IntVar(&s.nodes, "nodes", 200, "number of nodes of the rollouts of trips and writes")
	flags.IntVar(&s.percent, "percent", 10, "percentage of these nodes that may be out of service at the same time")
	flags.IntVar(&s.pods, "pods", 1000, "number of pods of trips")
	flags.IntVar(&s.deployments, "deployments", 50, "number of Deployments of these pods, each with a budget of 10%")
	flags.DurationVar(&s.work, "work", 5*time.Second, "how long the work on a node takes")
	flags.DurationVar(&s.loopPause, "loop-pause", 0,
		"how long the loop waits between the cordon and the drain of a node; Haulout waits 5s, in which the scheduler may still bind a pod")
	flags.IntVar(&s.repetitions, "repetitions", 1, "number of repetitions of trips and decision, by turns; the goals are compared with medians")
	flags.DurationVar(&s.settle, "settle", time.Minute, "how long to wait for the last writes of a rollout")
	flags.DurationVar(&s.idle, "idle", 2*time.Minute, "how long to count the writes of an idle server")
	flags.DurationVar(&s.timeout, "timeout", 30*time.Minute, "timeout of a rollout and of the loop")
	flags.IntVar(&s.memoryNodes, "memory-nodes", 5000, "number of nodes of memory")
	flags.IntVar(&s.memoryPods, "memory-pods", 150000, "number of pods of memory")
	flags.IntVar(&s.drains, "drains", 5, "number of drains with each of the two servers")
	flags.StringVar(&s.before, "before", "",
		"folder of the programs of another commit, with which drains compares; if it is empty, drains is left out")
	flags.IntVar(&s.gogc, "gogc", 50, "GOGC of haulout-apiserver; 50 is what its Deployment sets")
	flags.StringVar(&s.bin, "bin", "bin", "folder of the programs")
	flags.StringVar(&s.json, "json", "bin/bench-rollout.json", "file to which the figures are written")
	if err := flags.Parse(args); err != nil {
		return settings{}, err
	}
	if flags.NArg() > 0 {
		return settings{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return s, s.check()
}

func (s settings) check() error {
	for _, number := range []struct {
		flag            string
		value, min, max int
	}{
		{"percent", s.percent, 1, mostPercent}, {"deployments", s.deployments, 1, s.pods}, {"repetitions", s.repetitions, 1, 100},
		{"drains", s.drains, 1, 100}, {"memory-nodes", s.memoryNodes, 1, 5000}, {"memory-pods", s.memoryPods, s.memoryNodes, 1_000_000},
		{"gogc", s.gogc, 1, 1000}, {"pods", s.pods, s.deployments, (s.nodes - s.places()) * podsPerNode},
	} {
		if number.value < number.min || number.value > number.max {
			return fmt.Errorf("--%s=%d: must be from %d to %d", number.flag, number.value, number.min, number.max)
		}
	}
	if s.nodes < 3*s.places() {
		return fmt.Errorf("--nodes=%d: must be at least three times the number of nodes that may be out of service, which is %d", s.nodes, s.places())
	}
	if s.pods%s.deployments != 0 {
		return fmt.Errorf("--pods=%d: must be a multiple of --deployments=%d, which have equal numbers of pods", s.pods, s.deployments)
	}
	if s.before != "" {
		if _, err := os.Stat(filepath.Join(s.before, "haulout-apiserver")); err != nil {
			return fmt.Errorf("--before=%s: must be a folder with haulout-apiserver and the programs of its development cluster: %w", s.before, err)
		}
	}
	for _, duration := range []struct {
		flag       string
		value, min time.Duration
	}{{"work", s.work, 0}, {"loop-pause", s.loopPause, 0}, {"settle", s.settle, 0}, {"idle", s.idle, time.Second}, {"timeout", s.timeout, time.Second}} {
		if duration.value < duration.min {
			return fmt.Errorf("--%s=%v: must be at least %v", duration.flag, duration.value, duration.min)
		}
	}
	return nil
}

func run(ctx context.Context, s settings, out io.Writer) error {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	minute, _, _ := strings.Cut(string(load), " ")
	r := &report{
		CPUs: runtime.NumCPU(), Started: time.Now().UTC(), Load: minute, Nodes: s.nodes, Places: s.places(), Pods: s.pods,
		Work: s.work.Seconds(), LoopPause: s.loopPause.Seconds(),
	}
	has := func(part string) bool { return slices.Contains(s.parts, part) }
	for _, part := range []struct {
		wanted  bool
		measure func(context.Context, settings, *report, io.Writer) error
	}{
		{has(partTrips) || has(partWrites), measureCluster},
		{has(partDecision), measureDecision},
		{has(partMemory), measureMemory},
		{has(partDrains) && s.before != "", measureDrains},
	} {
		if !part.wanted {
			continue
		}
		if err = part.measure(ctx, s, r, out); err != nil {
			break
		}
	}
	if has(partDrains) && s.before == "" {
		fmt.Fprintln(out, "Drains without rollouts are not compared: --before names no folder")
	}
	// After a failure, the parts before it still count.
	r.judge()
	return errors.Join(err, r.publish(out, s.json))
}

// measureCluster measures the writes and the trips on one cluster.
func measureCluster(ctx context.Context, s settings, r *report, out io.Writer) (err error) {
	c, err := startCluster(ctx, s)
	if c != nil {
		defer func() { err = errors.Join(err, c.Stop(ctx)) }()
	}
	if err != nil {
		return err
	}
	version, err := c.kube.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	r.Kubernetes = version.GitVersion
	// The nodes have no pods before the trips.
	if slices.Contains(s.parts, partWrites) {
		if err := c.measureWrites(ctx, s, r, out); err != nil {
			return fmt.Errorf("writes: %w", err)
		}
	}
	if slices.Contains(s.parts, partTrips) {
		return c.measureTrips(ctx, s, r, out)
	}
	return nil
}

// measureTrips lets both contenders take all nodes out of service and back, by turns.
func (c *cluster) measureTrips(ctx context.Context, s settings, r *report, out io.Writer) error {
	type contender struct {
		name  string
		run   func(context.Context, settings, string) error
		trips *[]trip
	}
	contenders := []contender{{"rollout", c.roll, &r.Rollouts}, {"loop", c.loop, &r.Loops}}
	for repetition := range s.repetitions {
		for _, contender := range contenders {
			// With another version, the nodes are not done because of the contender before.
			version := fmt.Sprintf("%s-%d", contender.name, repetition)
			t, err := c.measureTrip(ctx, s, version, contender.run)
			if err != nil {
				return fmt.Errorf("%s: %w", contender.name, err)
			}
			fmt.Fprintf(out, "%s: %.1f s, %.1f s after the ramp\n", contender.name, t.Seconds, t.AfterSeconds)
			*contender.trips = append(*contender.trips, t)
		}
		slices.Reverse(contenders)
	}
	return nil
}

func (c *cluster) measureTrip(
	ctx context.Context, s settings, version string, contender func(context.Context, settings, string) error,
) (trip, error) {
	if err := c.prepare(ctx, s); err != nil {
		return trip{}, err
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	recorder, err := record(following, c.kube)
	if err != nil {
		return trip{}, err
	}
	if err := contender(ctx, s, version); err != nil {
		return trip{}, err
	}
	// The watch may be behind.
	if err := eventually(ctx, func(context.Context) (bool, error) { return recorder.isIdle() }); err != nil {
		return trip{}, err
	}
	return recorder.trip(len(c.nodes), s.places())
}
