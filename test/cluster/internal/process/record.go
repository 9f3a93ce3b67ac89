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

// Package process starts processes that outlive the program that started them, and finds them
// again.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Record identifies a process. A pid alone does not: the kernel gives it to another process sooner
// or later.
type Record struct {
	PID int `json:"pid"`
	// StartTicks is the start time in clock ticks since boot.
	StartTicks uint64 `json:"startTicks"`
	// BootID tells the boots of the machine apart, since ticks start again with each.
	BootID string `json:"bootID"`
	// Args, Env and Binary are what the process was started with. If they are not what is wanted
	// now, it is restarted.
	Args   []string    `json:"args"`
	Env    []string    `json:"env,omitempty"`
	Binary Fingerprint `json:"binary"`
	// LogOffset is the length of the log file when the process was started.
	LogOffset int64 `json:"logOffset"`
}

// stat is the part of /proc/<pid>/stat that is needed here.
type stat struct {
	state      byte
	startTicks uint64
}

// parseStat reads the content of /proc/<pid>/stat. The second field is the command in parentheses
// and may itself contain spaces and parentheses, so the fields are counted from the last one.
func parseStat(content string) (stat, error) {
	end := strings.LastIndexByte(content, ')')
	if end < 0 {
		return stat{}, errors.New("no command in parentheses")
	}
	fields := strings.Fields(content[end+1:])
	// Fields 3 (state) and 22 (starttime) of proc_pid_stat(5).
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("%d fields after the command, expected at least 20", len(fields))
	}
	ticks, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("start time: %w", err)
	}
	return stat{state: fields[0][0], startTicks: ticks}, nil
}

func readStat(pid int) (stat, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(string(content))
}

func bootID() (string, error) {
	content, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(content)), err
}

// matches tells whether a process with this stat, in this boot, is the recorded one and still runs.
// A zombie does not: it has ended, and only its parent has not asked for the exit status yet.
func (r Record) matches(boot string, s stat) bool {
	return r.BootID == boot && r.StartTicks == s.startTicks && s.state != 'Z' && s.state != 'X'
}

// Alive tells whether the recorded process runs.
func (r Record) Alive() bool {
	if r.PID <= 0 {
		return false
	}
	boot, err := bootID()
	if err != nil {
		return false
	}
	s, err := readStat(r.PID)
	return err == nil && r.matches(boot, s)
}

// Outdated tells why the process is not what spec asks for; empty if it is.
func (r Record) Outdated(spec Spec, binary Fingerprint) string {
	switch {
	case r.Binary.SHA256 != binary.SHA256:
		return "its binary has changed"
	case !slices.Equal(r.Args, spec.Args) || !slices.Equal(r.Env, spec.Env):
		return "its flags have changed"
	}
	return ""
}

// Stop asks the process to end and kills it when it has not done so after grace. It returns how the
// process ended and nothing but the recorded process is ever signalled.
func (r Record) Stop(ctx context.Context, grace time.Duration) (killed bool, err error) {
	// On Linux this holds a pidfd: from here on the pid cannot come to mean another process.
	handle, err := os.FindProcess(r.PID)
	if err != nil || !r.Alive() {
		return false, nil
	}
	defer handle.Release()
	if err := signal(handle, syscall.SIGTERM); err != nil {
		return false, err
	}
	if r.waitGone(ctx, grace) {
		return false, nil
	}
	if err := signal(handle, syscall.SIGKILL); err != nil {
		return false, err
	}
	// Killing works even when ctx was cancelled: somebody who interrupts `down` wants it faster,
	// not half done.
	if !r.waitGone(context.WithoutCancel(ctx), 10*time.Second) {
		return true, fmt.Errorf("process %d survived SIGKILL", r.PID)
	}
	return true, nil
}

func signal(handle *os.Process, s syscall.Signal) error {
	if err := handle.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v to process %d: %w", s, handle.Pid, err)
	}
	return nil
}

func (r Record) waitGone(ctx context.Context, limit time.Duration) bool {
	deadline := time.After(limit)
	for r.Alive() {
		select {
		case <-ctx.Done():
			return false
		case <-deadline:
			return !r.Alive()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return true
}
