// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command drain measures how fast nodes are emptied, by what they are emptied, and at what price:
// kubectl drain, a bare loop against the Eviction API, and a NodeMaintenance drain the same
// workloads on one development cluster, one after another, each from the same state. Nothing that
// it reports comes from the contenders: it watches the pods, reads kube-apiserver's audit log and
// asks Linux what the processes took.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

const exitUsage = 2

func main() { os.Exit(run()) }

func run() int {
	// Libraries would log into the table. What matters comes back as an error.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	// SIGHUP and SIGPIPE, too: a terminal or a reader that goes away must not leave a cluster
	// behind.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP,
		syscall.SIGPIPE)
	defer stop()
	do, args, out := bench, os.Args[1:], io.Writer(os.Stdout)
	if len(args) > 0 && args[0] == loopCommand {
		do, args = loop, args[1:]
	}
	err := do(ctx, args, out)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return exitUsage
	case ctx.Err() != nil:
		err = errors.New("interrupted")
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	return 1
}

// podsPerNode is how many pods a simulated node has room for.
const podsPerNode = 250

// settings say what is measured, and on what.
type settings struct {
	pods, deployments int
	singles           int
	nodes, spare      int
	workers           int
	retry             time.Duration
	repetitions       int
	workloads         []string
	contenders        []string
	timeout, patience time.Duration
	gogc              int
	bin, json         string
}

func readSettings(args []string) (settings, error) {
	var s settings
	var workloads, contenders string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&s.pods, "pods", 600, "number of pods to drain")
	flags.IntVar(&s.deployments, "deployments", 30,
		"number of Deployments that the workload many-budgets has, each with a budget")
	flags.IntVar(&s.singles, "singles", 50,
		"number of Deployments of one pod that the workload single-replicas has, each with a budget that lets none go")
	flags.IntVar(&s.nodes, "nodes", 20, "number of nodes to drain")
	flags.IntVar(&s.spare, "spare", 10, "number of nodes that the pods can go to")
	flags.IntVar(&s.workers, "workers", 50, "number of evictions that the bare loop sends at the same time")
	flags.DurationVar(&s.retry, "retry", 100*time.Millisecond,
		"how long a worker of the bare loop waits after an eviction that was refused")
	flags.IntVar(&s.repetitions, "repetitions", 1,
		"how often all is measured; the order of the contenders is another one each time, and the table shows medians")
	flags.StringVar(&workloads, "workloads", strings.Join(workloadNames, ","), "which workloads, separated by commas")
	flags.StringVar(&contenders, "contenders", strings.Join(contenderNames, ","),
		"which contenders, separated by commas, in the order of the first repetition")
	flags.DurationVar(&s.timeout, "timeout", 15*time.Minute, "how long a drain may take before it counts as failed")
	flags.DurationVar(
		&s.patience,
		"patience",
		time.Minute,
		"how long contenders are watched that will never drain the workload single-replicas, since they bring no pods before they evict others",
	)
	flags.IntVar(&s.gogc, "gogc", 50, "GOGC of haulout-apiserver; 50 is what its Deployment sets")
	flags.StringVar(&s.bin, "bin", "bin", "folder of the programs of the development cluster")
	flags.StringVar(&s.json, "json", "bin/bench.json", "file that the figures are written to")
	if err := flags.Parse(args); err != nil {
		return settings{}, err
	}
	if flags.NArg() > 0 {
		return settings{}, fmt.Errorf("%q is no flag", flags.Arg(0))
	}
	s.workloads, s.contenders = strings.Split(workloads, ","), strings.Split(contenders, ",")
	return s, s.check()
}

func (s settings) check() error {
	for _, number := range []struct {
		flag       string
		value, min int
	}{
		{"pods", s.pods, 1}, {"deployments", s.deployments, 1}, {"singles", s.singles, 1}, {"nodes", s.nodes, 1},
		{"spare", s.spare, 1}, {"workers", s.workers, 1},
		{"repetitions", s.repetitions, 1}, {"gogc", s.gogc, 1},
	} {
		if number.value < number.min {
			return fmt.Errorf("--%s=%d: must be at least %d", number.flag, number.value, number.min)
		}
	}
	if s.pods%s.deployments != 0 {
		return fmt.Errorf("--pods=%d: must be a multiple of --deployments=%d, which have equal parts of them", s.pods,
			s.deployments)
	}
	if room := min(s.nodes, s.spare) * podsPerNode; s.pods > room {
		return fmt.Errorf("--pods=%d: must be at most %d, which is what --nodes=%d and --spare=%d each have room for",
			s.pods, room, s.nodes, s.spare)
	}
	if room := min(s.nodes, s.spare) * podsPerNode; s.singles > room {
		return fmt.Errorf(
			"--singles=%d: must be at most %d, which is what --nodes=%d and --spare=%d each have room for",
			s.singles,
			room,
			s.nodes,
			s.spare,
		)
	}
	if s.retry < 0 || s.timeout <= 0 || s.patience <= 0 {
		return fmt.Errorf("--retry=%v, --timeout=%v, --patience=%v: must not be negative, and leave time for a drain",
			s.retry, s.timeout, s.patience)
	}
	for _, choice := range []struct {
		flag        string
		given, from []string
	}{{"workloads", s.workloads, workloadNames}, {"contenders", s.contenders, contenderNames}} {
		for _, name := range choice.given {
			if !slices.Contains(choice.from, name) {
				return fmt.Errorf("--%s: %q must be one of %s", choice.flag, name, strings.Join(choice.from, ", "))
			}
		}
	}
	return nil
}

// order returns the contenders in the order of a repetition, counted from 0: the first of one is
// the last of the next, so that none of them always gets the cluster when it is youngest.
func order(contenders []string, repetition int) []string {
	first := repetition % len(contenders)
	return slices.Concat(contenders[first:], contenders[:first])
}
