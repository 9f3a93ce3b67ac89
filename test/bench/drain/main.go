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
	"syscall"

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
