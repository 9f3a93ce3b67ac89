// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package program runs the programs of the development cluster until they end.
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

// stopTime is the maximum time from SIGTERM to the end of a program.
const stopTime = time.Minute

// Program describes how to run a program.
type Program struct {
	Path string
	// Dir is the working directory. If it is "", the current directory is used.
	Dir string
	// Environment is added to the environment of this process, and overrides it.
	Environment []string
}

// Result is the result of a run.
type Result struct {
	// Output has the standard output and the standard error of the program.
	Output string
	// CPU is the processor time of the program.
	CPU time.Duration
}

// Run runs a program. If the context ends, Run sends SIGTERM and waits up to a minute, so that the
// program can clean up. The error of a failed program contains its output.
func (p Program) Run(ctx context.Context, args ...string) (Result, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, p.Path, args...)
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), p.Environment...)
	cmd.Stdout, cmd.Stderr = &out, &out
	// Ctrl-C sends SIGINT to every process of the terminal's foreground group. In a separate group,
	// the program receives only the SIGTERM of Run, and can clean up.
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
