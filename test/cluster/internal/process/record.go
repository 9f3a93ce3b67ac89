// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

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

// Record identifies a process. A pid alone is not sufficient: the kernel reuses it.
type Record struct {
	PID int `json:"pid"`
	// StartTicks is the start time in clock ticks since boot.
	StartTicks uint64 `json:"startTicks"`
	// BootID identifies the boot of the machine, because ticks start at 0 with each boot.
	BootID string `json:"bootID"`
	// Args, Env and Binary are the parameters of the start. If the specified parameters differ, the
	// process is restarted.
	Args   []string    `json:"args"`
	Env    []string    `json:"env,omitempty"`
	Binary Fingerprint `json:"binary"`
	// LogOffset is the length of the log file when the process was started.
	LogOffset int64 `json:"logOffset"`
}

// stat is the part of /proc/<pid>/stat that a Record needs.
type stat struct {
	state      byte
	startTicks uint64
}

// parseStat parses the content of /proc/<pid>/stat. The second field is the command in parentheses
// and may itself contain spaces and parentheses, so the fields are counted from the last one.
func parseStat(content string) (stat, error) {
	end := strings.LastIndexByte(content, ')')
	if end < 0 {
		return stat{}, errors.New("no command in parentheses")
	}
	fields := strings.Fields(content[end+1:])
	// These are the fields 3 (state) and 22 (starttime) of proc_pid_stat(5).
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

// matches reports whether a process with this stat, in this boot, is the recorded process and runs.
// A zombie does not match: it has ended, and its parent has not read the exit status yet.
func (r Record) matches(boot string, s stat) bool {
	return r.BootID == boot && r.StartTicks == s.startTicks && s.state != 'Z' && s.state != 'X'
}

// Alive reports whether the recorded process runs.
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

// Outdated returns why the process differs from spec, or "" if it does not differ.
func (r Record) Outdated(spec Spec, binary Fingerprint) string {
	switch {
	case r.Binary.SHA256 != binary.SHA256:
		return "its binary has changed"
	case !slices.Equal(r.Args, spec.Args) || !slices.Equal(r.Env, spec.Env):
		return "its flags have changed"
	}
	return ""
}

// Stop sends SIGTERM to the process, and SIGKILL if it still runs after grace. It reports whether
// the process was killed. It never sends a signal to a process other than the recorded one.
func (r Record) Stop(ctx context.Context, grace time.Duration) (killed bool, err error) {
	// On Linux the handle is a pidfd: it identifies the process even if the kernel reuses the pid.
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
	// Wait after SIGKILL even if ctx was canceled: a user who interrupts `down` wants the stop to
	// be faster, but still complete.
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
