// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command cluster runs a development cluster on this machine.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"haulout.dev/haulout/test/cluster/internal/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// If the reader of a pipe exits (`| head`), the start must continue. Call Notify and not
	// Ignore, because the started processes would inherit Ignore.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	err := command.New().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}
