// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// shutdownFeature is the feature gate of the kubelet's own graceful node shutdown.
const shutdownFeature = "GracefulNodeShutdown"

// ticksPerSecond is the unit of times in /proc (USER_HZ), the same on all architectures of Go.
const ticksPerSecond = 100

// Find returns the running kubelet; the oldest kubelet if there are several. It considers only
// processes of the agent's own user and PID namespace that are not in a pod: any user can start a
// process with the name kubelet, and containers of a node can be nodes themselves.
func Find(context.Context) (Process, error) {
	return findIn("/proc", os.Getuid())
}

func findIn(proc string, uid int) (Process, error) {
	namespace, err := os.Readlink(filepath.Join(proc, "self", "ns", "pid"))
	if err != nil {
		return Process{}, fmt.Errorf("read the own PID namespace: %w", err)
	}
	boot, bootTime, err := bootOf(proc)
	if err != nil {
		return Process{}, err
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return Process{}, err
	}
	var found Process
	oldest := uint64(0)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, entry.Name())
		// Skip a process that ends meanwhile.
		args, ok := kubeletArgs(dir, uid, namespace)
		if !ok {
			continue
		}
		ticks, err := startOf(dir)
		if err != nil || found.PID != 0 && ticks >= oldest {
			continue
		}
		cwd, err := os.Readlink(filepath.Join(dir, "cwd"))
		if err != nil {
			continue
		}
		oldest = ticks
		found = Process{
			PID: pid, ID: fmt.Sprintf("%s/%d/%d", boot, pid, ticks), Args: args, Dir: cwd,
			Started: bootTime.Add(time.Duration(ticks) * time.Second / ticksPerSecond),
		}
	}
	if found.PID == 0 {
		return Process{}, ErrNotRunning
	}
	return found, nil
}

// kubeletArgs returns the command line of a process if it is a kubelet of the given user and PID
// namespace.
func kubeletArgs(dir string, uid int, namespace string) ([]string, bool) {
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return nil, false
	}
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	if !isKubelet(args) {
		return nil, false
	}
	var owner syscall.Stat_t
	if syscall.Stat(dir, &owner) != nil || int(owner.Uid) != uid {
		return nil, false
	}
	if own, err := os.Readlink(filepath.Join(dir, "ns", "pid")); err != nil || own != namespace {
		return nil, false
	}
	return args, !inPod(dir) || inPod(filepath.Join(filepath.Dir(dir), "self"))
}

// inPod reports whether a process is in the cgroup of a pod. If the agent itself is in one, the
// whole node runs in a pod, and the cgroup does not identify pods of this node.
func inPod(dir string) bool {
	groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	return err == nil && strings.Contains(string(groups), "kubepods")
}

// startOf returns the start time of a process in ticks since the boot.
func startOf(dir string) (uint64, error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, err
	}
	// The second field is the name in parentheses, which may have spaces and parentheses.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const startTime = 22 - 3
	if len(fields) <= startTime {
		return 0, fmt.Errorf("%s/stat has %d fields", dir, len(fields))
	}
	return strconv.ParseUint(fields[startTime], 10, 64)
}

func bootOf(proc string) (string, time.Time, error) {
	id, err := os.ReadFile(filepath.Join(proc, "sys", "kernel", "random", "boot_id"))
	if err != nil {
		return "", time.Time{}, fmt.Errorf("read the ID of the boot: %w", err)
	}
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return "", time.Time{}, fmt.Errorf("read the time of the boot: %w", err)
	}
	for line := range strings.Lines(string(stat)) {
		if value, ok := strings.CutPrefix(line, "btime "); ok {
			seconds, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return strings.TrimSpace(string(id)), time.Unix(seconds, 0), err
		}
	}
	return "", time.Time{}, fmt.Errorf("%s/stat has no time of the boot", proc)
}

// DefaultRuntimeEndpoint is the endpoint of the CRI that the kubelet uses by default.
const DefaultRuntimeEndpoint = "unix:///run/containerd/containerd.sock"
