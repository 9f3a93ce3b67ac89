// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Service is a unit to start and stop. Each call uses a new connection, so that a restart of the
// bus does not matter.
type Service struct {
	// Root is the directory where the root of the host is mounted, or "".
	Root string
	// Unit is the name of the unit, with its suffix.
	Unit string
}

// Start starts the unit and waits until it has started.
func (s Service) Start(ctx context.Context) error {
	return s.do(ctx, (*Client).StartUnit)
}

// End ends the unit, which must be a service. It works even while the system goes down, see
// EndService.
func (s Service) End(ctx context.Context) error {
	return s.do(ctx, (*Client).EndService)
}

// State returns systemd's state of the unit.
func (s Service) State(ctx context.Context) (UnitState, error) {
	var state UnitState
	err := s.do(ctx, func(c *Client, ctx context.Context, unit string) (err error) {
		state, err = c.Unit(ctx, unit)
		return err
	})
	return state, err
}

// Ending reports whether systemd stops the service because the system goes down, and how much time
// is left. It makes such a shutdown irreversible, see Client.MakeIrreversible. It connects to
// systemd directly and uses the bus only if that fails, because the bus may be broken during a
// shutdown.
func (s Service) Ending(ctx context.Context) (ending Ending, err error) {
	ask := func(c *Client, ctx context.Context, unit string) (err error) {
		if ending, err = c.Ending(ctx, unit); err != nil || !ending.Stopping {
			return err
		}
		return c.MakeIrreversible(ctx)
	}
	conn, err := connectDirectly(ctx, s.Root)
	if err == nil {
		defer conn.Close()
		if err = ask(NewClient(conn), ctx, s.Unit); err == nil || ending.Stopping {
			return ending, err
		}
	}
	if busErr := s.do(ctx, ask); busErr != nil {
		return ending, errors.Join(err, busErr)
	}
	return ending, nil
}

func (s Service) do(ctx context.Context, act func(*Client, context.Context, string) error) error {
	client, err := Dial(ctx, s.Root)
	if err != nil {
		return err
	}
	defer client.Close()
	return act(client, ctx, s.Unit)
}

// endReserve is the part of a target's time limit in which systemd ends the containers and services
// that remain after the agent. It is systemd's default time for each of them, and at most half of
// the limit.
const endReserve = 90 * time.Second

// Ending describes the shutdown in which systemd ends the system.
type Ending struct {
	// Stopping is set if the system goes down.
	Stopping bool
	// Kind is KindReboot, KindPowerOff, or "" if unknown.
	Kind string
	// Limit is the time that systemd waits for the unit. After that, systemd kills the unit, or it
	// ends the system regardless of running units (after 30 minutes in systemd's own targets).
	Limit time.Duration
}

// Ending reports whether systemd stops a service because the system goes down, and how much time is
// left. It makes such a shutdown irreversible, see MakeIrreversible.
func (c *Client) Ending(ctx context.Context, name string) (Ending, error) {
	state, err := c.SystemState(ctx)
	if err != nil || state != StateStopping {
		return Ending{}, err
	}
	ending := Ending{Stopping: true}
	ending.Limit, err = c.timeout(ctx, name, serviceInterface, "TimeoutStopUSec")
	if err != nil {
		return ending, err
	}
	target, err := c.shutdownTarget(ctx)
	if err != nil || target == "" {
		return ending, err
	}
	ending.Kind = KindOf(target)
	limit, err := c.timeout(ctx, target, unitInterface, "JobTimeoutUSec")
	ending.Limit = min(ending.Limit, limit-min(endReserve, limit/2))
	return ending, err
}

// MakeIrreversible prevents that the shutdown in progress is cancelled. Otherwise a shutdown by
// `systemctl start reboot.target` ends half-way when the kubelet starts a pod: the job that starts
// the pod's slice conflicts with the job of shutdown.target and removes it.
func (c *Client) MakeIrreversible(ctx context.Context) error {
	target, err := c.shutdownTarget(ctx)
	if err != nil || target == "" {
		return err
	}
	return c.call(ctx, "make the start of "+target+" irreversible", "StartUnit", target, "replace-irreversibly")
}

// timeout reads a property in microseconds, which can be infinity.
func (c *Client) timeout(ctx context.Context, name, iface, key string) (time.Duration, error) {
	object, err := c.load(ctx, name)
	if err != nil {
		return math.MaxInt64, err
	}
	usec, err := Property[uint64](ctx, object, iface, key)
	if err != nil {
		return math.MaxInt64, fmt.Errorf("read %s of unit %s: %w", key, name, err)
	}
	return Duration(usec), nil
}

// Duration converts microseconds, and limits values that exceed a Duration.
func Duration(usec uint64) time.Duration {
	if usec > math.MaxInt64/uint64(time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(usec) * time.Microsecond
}

const (
	// killAfter is the time between SIGTERM and SIGKILL.
	killAfter = 10 * time.Second
	// endPoll is the interval at which endProcess checks the context while a process ends.
	endPoll = 100 * time.Millisecond
)

// EndProcess ends a process without systemd, but in the same way: with SIGTERM, and after 10
// seconds with SIGKILL. It returns when the process is gone. It returns nil if the process does not
// exist.
func EndProcess(ctx context.Context, pid int) error {
	return endProcess(ctx, pid, func(fd int, signal syscall.Signal) error { return unix.PidfdSendSignal(fd, signal, nil, 0) })
}

// endProcess ends a process; send sends a signal to it. The file descriptor refers to this process
// even if another process gets its ID.
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
