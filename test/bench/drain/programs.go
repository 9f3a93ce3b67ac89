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

package main

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

// programs runs programs for the cluster in a folder.
type programs struct {
	binDir, dir string
}

func (p programs) bin(name string) string { return filepath.Join(p.binDir, name) }

func (p programs) kubeconfig() string { return filepath.Join(p.dir, "kubeconfig") }

// run runs a program as the cluster's administrator and returns the time that it took of the processors. The error has what it printed.
func (p programs) run(ctx context.Context, environment []string, path string, args ...string) (time.Duration, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(append(os.Environ(), "KUBECONFIG="+p.kubeconfig()), environment...)
	cmd.Stdout, cmd.Stderr = &out, &out
	// Ctrl-C reaches every process of the terminal's foreground group. These get it from here alone, once, so that they can clean up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTime
	err := cmd.Run()
	var cpu time.Duration
	if cmd.ProcessState != nil {
		cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if ctx.Err() != nil {
		return cpu, context.Cause(ctx)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return cpu, fmt.Errorf("%s %s: %w\n%s", filepath.Base(path), args[0], err, strings.TrimSpace(out.String()))
	}
	return cpu, err
}
