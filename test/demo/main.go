/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Command demo shows on a cluster of its own how Haulout takes four nodes out of service and puts
// them back, and checks what it says.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/cmd/screen"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() { os.Exit(run()) }

func run() int {
	// Libraries log to the error output, in the middle of what is redrawn. What matters comes back
	// as an error.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	settings, err := newSettings(os.Getenv, os.Executable)
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return exitUsage
	}
	if err := settings.check(); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return exitUsage
	}
	if len(os.Args) > 1 {
		if len(os.Args) == 2 && os.Args[1] == "check" {
			return 0
		}
		fmt.Fprintln(os.Stderr, "Error: the demo takes the argument check, which looks at its settings only, or none; "+
			"its settings are the environment variables KEEP, CLUSTER_DIR and NODES")
		return exitUsage
	}
	// SIGPIPE and SIGHUP, too: a reader or a terminal that goes away must not leave a cluster
	// behind. The signals stay caught until the end, so that a second Ctrl-C does not keep the
	// cluster from being stopped.
	ctx, stop := signal.NotifyContext(
		context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE,
	)
	defer stop()
	s := screen.New(os.Stdout, os.Getenv)
	d := &demo{settings: settings, screen: s, programs: &programs{settings: settings}}

	runErr := d.run(ctx)
	interrupted := ctx.Err() != nil
	stopErr := d.finish(runErr, interrupted)
	switch {
	case runErr == nil && stopErr == nil:
		return 0
	case interrupted:
		return exitInterrupted
	default:
		return exitFailed
	}
}
