// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command drain compares the speed and the cost of six ways to drain nodes: kubectl drain of all
// nodes and of each node, a bare loop that calls the Eviction API, and a NodeMaintenance with
// surge, without it, and beside bad input. They drain the same workloads on one development
// cluster, one after another, from the same state. The figures do not come from the contenders:
// the command watches the pods, and reads the audit log of kube-apiserver and the processor times
// of the kernel.
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
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/test/bench/internal/names"
)

const exitUsage = 2

func main() { os.Exit(run()) }

func run() int {
	// Logs of libraries would break up the table. The program receives all failures as errors.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	// Stop the cluster after SIGHUP and SIGPIPE as well, because the terminal or the reader of the
	// output may be closed.
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

// podsPerNode is the number of pods for which a simulated node has room.
const podsPerNode = 250

// settings are the flags.
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
	s := settings{workloads: workloadNames, contenders: defaultContenders}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&s.pods, "pods", 600, "number of pods to drain")
	flags.IntVar(&s.deployments, "deployments", 30,
		"number of Deployments of the workload many-budgets, each with a budget")
	flags.IntVar(&s.singles, "singles", 50,
		"number of Deployments of the workload single-replicas, each with one pod and a closed budget")
	flags.IntVar(&s.nodes, "nodes", 20, "number of nodes to drain")
	flags.IntVar(&s.spare, "spare", 10, "number of nodes to which the pods can move")
	flags.IntVar(&s.workers, "workers", 50, "number of concurrent evictions of the bare loop")
	flags.DurationVar(&s.retry, "retry", 100*time.Millisecond,
		"how long a worker of the bare loop waits after a refused eviction")
	flags.IntVar(&s.repetitions, "repetitions", 1,
		"number of repetitions; the order of the contenders changes each time, and the table shows medians")
	names.Var(flags, &s.workloads, "workloads", workloadNames, "workloads, separated by commas")
	names.Var(flags, &s.contenders, "contenders", contenderNames,
		"contenders, separated by commas, in the order of the first repetition; the default is all except "+drainPoolWebhook+
			". With "+maintenance+", the command also measures what the webhook of eviction interception costs")
	flags.DurationVar(&s.timeout, "timeout", 15*time.Minute, "timeout of a drain")
	flags.DurationVar(
		&s.patience,
		"patience",
		time.Minute,
		"timeout of the contenders that can never drain the workload single-replicas, because they start no replacement before an eviction",
	)
	flags.IntVar(&s.gogc, "gogc", 50, "GOGC of haulout-apiserver; 50 is what its Deployment sets")
	flags.StringVar(&s.bin, "bin", "bin", "folder of the programs of the development cluster")
	flags.StringVar(&s.json, "json", "bin/bench.json", "file to which the figures are written")
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
		return fmt.Errorf("--pods=%d: must be a multiple of --deployments=%d, which have equal numbers of pods", s.pods,
			s.deployments)
	}
	if room := min(s.nodes, s.spare) * podsPerNode; s.pods > room {
		return fmt.Errorf("--pods=%d: must be at most %d, the number for which --nodes=%d and --spare=%d each have room",
			s.pods, room, s.nodes, s.spare)
	}
	if room := min(s.nodes, s.spare) * podsPerNode; s.singles > room {
		return fmt.Errorf(
			"--singles=%d: must be at most %d, the number for which --nodes=%d and --spare=%d each have room",
			s.singles,
			room,
			s.nodes,
			s.spare,
		)
	}
	if s.retry < 0 || s.timeout <= 0 || s.patience <= 0 {
		return fmt.Errorf("--retry=%v, --timeout=%v, --patience=%v: must not be negative, and --timeout and --patience not 0",
			s.retry, s.timeout, s.patience)
	}
	return nil
}

// order returns the contenders in the order of a repetition. Each repetition, counted from 0, moves
// the first contender to the end, so that no contender always runs on the newest cluster.
func order(contenders []string, repetition int) []string {
	first := repetition % len(contenders)
	return slices.Concat(contenders[first:], contenders[:first])
}
