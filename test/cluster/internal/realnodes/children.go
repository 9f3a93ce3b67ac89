// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// children are the child processes of PID 1: the processes that it has started, and orphans of
// containers, because the kernel makes PID 1 their parent.
type children struct {
	ended chan os.Signal

	mu sync.Mutex
	// started has the processes that PID 1 has started and that have not ended, by PID.
	started map[int]chan unix.WaitStatus
}

func newChildren() *children {
	s := &children{ended: make(chan os.Signal, 1), started: map[int]chan unix.WaitStatus{}}
	signal.Notify(s.ended, unix.SIGCHLD)
	return s
}

// start starts a program. The channel gets the status of the program after its end.
func (s *children) start(p program) (<-chan unix.WaitStatus, error) {
	command, out, err := p.command()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	// reap must not handle the end of the process before its PID is in started.
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	status := make(chan unix.WaitStatus, 1)
	s.started[command.Process.Pid] = status
	// reap waits for the process, not this command.
	_ = command.Process.Release()
	return status, nil
}

// reap waits for every process that ends.
func (s *children) reap() {
	for range s.ended {
		for s.reapOne() {
		}
	}
}

// reapOne waits for one process that has ended, and reports whether there was one.
func (s *children) reapOne() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var status unix.WaitStatus
	pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
	if errors.Is(err, unix.EINTR) {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	if waiting, ours := s.started[pid]; ours {
		delete(s.started, pid)
		waiting <- status
	}
	return true
}
