// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"os"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/systemd"
)

// stopper decides when a service that is asked to stop does so. If the whole system goes down, the
// agent is stopped before the kubelet (the order of their units), and this is the last chance to
// let the pods leave in order.
type stopper struct {
	// limit is the longest time that the agent may take.
	limit time.Duration
	// machine and notifier are told that the system goes down.
	machine interface {
		Stopping(kind string, limit time.Duration)
	}
	notifier interface{ Stopping(status string) error }
	// ask returns whether the system goes down, and how long systemd waits.
	ask func(context.Context) (systemd.Ending, error)
	// down returns a channel that is closed when the shutdown was released.
	down func() <-chan struct{}
}

// wait returns when the agent has to end.
func (s *stopper) wait(ctx context.Context, signals <-chan os.Signal) {
	logger := klog.FromContext(ctx)
	select {
	case <-ctx.Done():
		return
	case received := <-signals:
		logger.Info("Received a signal to stop", "signal", received.String())
		if received != syscall.SIGTERM {
			return
		}
	}
	ending, err := s.ask(ctx)
	if err != nil {
		logger.Error(err, "Cannot ask systemd why the service stops")
	}
	if !ending.Stopping {
		return
	}
	limit := s.limit
	if ending.Limit > 0 {
		limit = min(limit, ending.Limit)
	}
	logger.Info("The system goes down, ending after the pods have left", "kind", ending.Kind, "limit", limit)
	s.machine.Stopping(ending.Kind, limit)
	if err := s.notifier.Stopping("the system goes down, the pods leave first"); err != nil {
		logger.Error(err, "Cannot tell systemd that the service stops")
	}
	released := s.down()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-released:
			return
		case <-timer.C:
			return
		case received := <-signals:
			if received != syscall.SIGTERM {
				return
			}
		}
	}
}
