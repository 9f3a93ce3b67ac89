// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command memory measures how much memory haulout-apiserver uses for a large cluster: it creates
// nodes and pods of realistic size in a separate development cluster, starts the server, previews
// drains and drains nodes. No kubelet and no controller of pods runs: evicted pods stay, and are
// not replaced. The program itself ends them where a part says so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/test/bench/internal/devcluster"
	"haulout.dev/haulout/test/bench/internal/goals"
	"haulout.dev/haulout/test/bench/internal/names"
)

// The parts of the measurement.
const (
	// partPreview previews the drain of all nodes, on a leader and on another replica.
	partPreview = "preview"
	// partCancelled drains some nodes, whose pods stay, and cancels the drain.
	partCancelled = "cancelled"
	// partFinished drains other nodes, whose pods leave, and completes the maintenance.
	partFinished = "finished"
	// partFull drains all nodes.
	partFull = "full"
)

var partNames = []string{partPreview, partCancelled, partFinished, partFull}

type settings struct {
	nodes, pods, drain int
	gogc               int
	memoryLimit        string
	parts              []string
	bin, use, json     string
	keep, rollout      bool
	rest               time.Duration
}

func main() {
	// Logs of libraries would break up the table. The program receives all failures as errors.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	s, err := readSettings(os.Args[1:])
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "memory:", err)
		}
		os.Exit(2)
	}
	devcluster.Main("memory", func(ctx context.Context) error { return run(ctx, s, os.Stdout) })
}

func readSettings(args []string) (settings, error) {
	s := settings{parts: []string{partPreview, partCancelled, partFinished}}
	flags := flag.NewFlagSet("memory", flag.ContinueOnError)
	names.Var(flags, &s.parts, "parts", partNames,
		"what to measure, separated by commas: "+strings.Join(partNames, ", ")+"; full drains all nodes, which takes hours by default")
	flags.IntVar(&s.nodes, "nodes", 5000, "number of nodes")
	flags.IntVar(&s.pods, "pods", 150000, "number of pods, spread evenly over the nodes")
	flags.IntVar(&s.drain, "drain", 250, "number of nodes to drain in cancelled, and in finished")
	flags.IntVar(&s.gogc, "gogc", 50, "GOGC of haulout-apiserver; 50 is what its Deployment sets")
	flags.StringVar(&s.memoryLimit, "memory-limit", "3686MiB", "GOMEMLIMIT of haulout-apiserver; 3686MiB is what its Deployment sets")
	flags.StringVar(&s.bin, "bin", "bin", "folder of the programs")
	flags.StringVar(&s.use, "use", "",
		"folder of the cluster of an earlier run with --keep, the same numbers, and without the parts finished and full, which delete pods; its server is restarted")
	flags.BoolVar(&s.keep, "keep", false, "keep the cluster at the end")
	flags.BoolVar(&s.rollout, "rollout", false,
		"instead of the parts, roll a maintenance over all nodes, whose pods stay, and compare the heap of the server before and after it")
	flags.DurationVar(&s.rest, "rest", 3*time.Minute,
		"how long the server rests before its memory counts as that of a server at rest; Go collects garbage at least every two minutes")
	flags.StringVar(&s.json, "json", "bin/bench-memory.json", "file to which the figures are written")
	if err := flags.Parse(args); err != nil {
		return settings{}, err
	}
	if flags.NArg() > 0 {
		return settings{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return s, s.check()
}

func (s settings) check() error {
	if s.nodes < 1 || s.pods < s.nodes || s.drain < 1 || s.drain > s.nodes {
		return fmt.Errorf("--nodes is %d, --pods %d, --drain %d: want --nodes of at least 1, --pods of at least --nodes, --drain of 1 to --nodes",
			s.nodes, s.pods, s.drain)
	}
	if slices.Contains(s.parts, partFinished) && !s.rollout && 2*s.drain > s.nodes {
		return fmt.Errorf("--drain is %d, --nodes %d: finished drains other nodes than cancelled, so --drain must be at most half of --nodes", s.drain, s.nodes)
	}
	return nil
}

// report is the content of the JSON file.
type report struct {
	CPUs    int          `json:"cpus"`
	Started time.Time    `json:"started"`
	Nodes   int          `json:"nodes"`
	Pods    int          `json:"pods"`
	Drain   int          `json:"drain"`
	Steps   []step       `json:"steps"`
	Goals   []goals.Goal `json:"goals"`
}

// step has the figures of a step of a part.
type step struct {
	Part    string  `json:"part"`
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	// Resident is the resident memory of the server after the step, File the part of it that are
	// pages of files, Peak the maximum of Resident during the step, and Heap the size of the Go
	// heap after the step, including free space in it. All are in bytes.
	Resident int64 `json:"residentBytes"`
	File     int64 `json:"fileBytes"`
	Peak     int64 `json:"peakBytes"`
	Heap     int64 `json:"heapBytes"`
}

func run(ctx context.Context, s settings, out io.Writer) (err error) {
	c := &cluster{settings: s, dir: s.use, out: out}
	if s.use == "" {
		if c.dir, err = os.MkdirTemp("", "haulout-memory-"); err != nil {
			return err
		}
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
		if err := c.fill(ctx); err != nil {
			return err
		}
		fmt.Fprintf(c.out, "%d nodes and %d pods created in %v\n", s.nodes, s.pods,
			time.Since(started).Round(time.Second))
	}
	if s.rollout {
		return c.compareRollout(ctx)
	}
	return c.measureParts(ctx)
}

// measureParts measures the parts, and publishes their figures. After a failure, the parts before
// it still count.
func (c *cluster) measureParts(ctx context.Context) error {
	r := &report{CPUs: runtime.NumCPU(), Started: time.Now().UTC(), Nodes: c.nodes, Pods: c.pods, Drain: c.settings.drain}
	fmt.Fprintf(c.out, "%-10s %-28s %10s %10s %10s %10s %8s\n", "PART", "STEP", "RESIDENT", "OF FILES", "PEAK", "GO HEAP", "AFTER")
	var failed error
	for _, part := range partNames {
		if failed != nil || !slices.Contains(c.parts, part) {
			continue
		}
		if err := c.measure(ctx, part, r); err != nil {
			failed = fmt.Errorf("%s: %w", part, err)
		}
	}
	r.Goals = goals.Judge(r.Goals...)
	table := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	goals.Print(table, r.Goals)
	return errors.Join(failed, table.Flush(), goals.WriteReport(c.json, r))
}
