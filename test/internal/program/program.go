// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package program runs the programs of the development cluster to their end.
package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// stopTime is how long a program may take to end after it was told to.
const stopTime = time.Minute

// Program is what is run.
type Program struct {
	Path string
	// Dir is where it is run; empty is here.
	Dir string
	// Environment are variables that it gets beside those of this process, and instead of those of
	// the same names.
	Environment []string
}

// Result is what came of a run.
type Result struct {
	// Output is what it printed to both of its outputs.
	Output string
	// CPU is the time that it took of the processors.
	CPU time.Duration
}

// Run runs a program. If the context ends, the program is told to end as well and gets a minute to
// clean up. The error of one that fails has what it printed.
func (p Program) Run(ctx context.Context, args ...string) (Result, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, p.Path, args...)
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), p.Environment...)
	cmd.Stdout, cmd.Stderr = &out, &out
	// Ctrl-C reaches every process of the terminal's foreground group. These get it from here
	// alone, once, so that they can clean up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTime
	err := cmd.Run()
	result := Result{Output: out.String()}
	if cmd.ProcessState != nil {
		result.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if ctx.Err() != nil {
		return result, context.Cause(ctx)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		what := strings.Join(append([]string{filepath.Base(p.Path)}, args[:min(1, len(args))]...), " ")
		return result, fmt.Errorf("%s: %w\n%s", what, err, strings.TrimSpace(result.Output))
	}
	return result, err
}
