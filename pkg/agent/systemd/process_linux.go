// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killAfter is how long a process has between the signal to end and the one that kills it.
	killAfter = 10 * time.Second
	// endPoll is how often the end of the context is seen while a process ends.
	endPoll = 100 * time.Millisecond
)

// EndProcess ends a process as systemd does, without systemd: by SIGTERM, and after 10 seconds by
// SIGKILL. It returns when the process is gone. A process that does not exist is gone.
func EndProcess(ctx context.Context, pid int) error {
	return endProcess(ctx, pid, func(fd int, signal syscall.Signal) error { return unix.PidfdSendSignal(fd, signal, nil, 0) })
}

// endProcess ends a process with a function that sends signals to it. The file descriptor means
// this process also when another one gets its number.
func endProcess(ctx context.Context, pid int, send func(fd int, signal syscall.Signal) error) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	for _, signal := range []syscall.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := send(fd, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end process %d: %w", pid, err)
		}
		limit, cancel := context.WithTimeout(ctx, killAfter)
		ended, err := awaitEnd(limit, fd)
		cancel()
		if err != nil {
			return fmt.Errorf("wait for the end of process %d: %w", pid, err)
		}
		if ended {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the end of process %d: %w", pid, ctx.Err())
		}
	}
	return fmt.Errorf("process %d has not ended %s after SIGKILL", pid, killAfter)
}

// awaitEnd reports whether a process ends before the context does.
func awaitEnd(ctx context.Context, fd int) (bool, error) {
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(endPoll.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, err
		}
		if n > 0 {
			return true, nil
		}
	}
	return false, nil
}
