// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command clients has many clients use the API at the same time: each of them watches, lists,
// creates and deletes NodeMaintenances over a connection of its own, through the aggregator. It
// prints how long the answers took, the errors, and what the clients have left behind in the server
// when they are gone: goroutines and memory.
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
)

type settings struct {
	clients        int
	duration, rest time.Duration
	gogc           int
	bin, json      string
}

func main() {
	// Logs of libraries would be in the table. The program gets all failures as errors.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	var s settings
	flag.IntVar(&s.clients, "clients", 200, "number of clients")
	flag.DurationVar(&s.duration, "duration", 5*time.Minute, "how long they use the API")
	flag.DurationVar(&s.rest, "rest", 5*time.Minute, "how long to wait for what they leave behind to go; Go collects garbage at least every two minutes")
	flag.IntVar(&s.gogc, "gogc", 50, "GOGC of haulout-apiserver; 50 is what its Deployment sets")
	flag.StringVar(&s.bin, "bin", "bin", "folder of the programs of the development cluster")
	flag.StringVar(&s.json, "json", "bin/bench-clients.json", "file to which the figures are written")
	flag.Parse()
	if err := s.check(); err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(2)
	}
	devcluster.Main("clients", func(ctx context.Context) error { return run(ctx, s, os.Stdout) })
}

func (s settings) check() error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unknown argument %q", flag.Arg(0))
	case s.clients < 1:
		return fmt.Errorf("--clients=%d: must be at least 1", s.clients)
	case s.gogc < 1:
		return fmt.Errorf("--gogc=%d: must be at least 1", s.gogc)
	case s.duration < time.Second || s.rest < 0:
		return fmt.Errorf("--duration=%v must be at least 1s, --rest=%v must not be negative", s.duration, s.rest)
	}
	return nil
}

func run(ctx context.Context, s settings, out io.Writer) (err error) {
	c, err := devcluster.Start(ctx, s.bin, 1, s.gogc)
	if c != nil {
		defer func() { err = errors.Join(err, c.Stop(ctx)) }()
	}
	if err != nil {
		return err
	}
	r, err := measure(ctx, s, c)
	if err != nil {
		return err
	}
	return r.publish(out, s.json)
}
