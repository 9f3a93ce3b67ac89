// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/agent/systemd/install"
)

const (
	logName = "agent.log"
	// endKubelet is an argument that makes the agent end the kubelet when the system goes down.
	endKubelet = "end-kubelet"
)

// record is a line that the agent of the tests writes after each change.
type record struct {
	PID    int
	Args   []string
	State  shutdown.MachineState
	Ending systemd.Ending
	// Kubelet is the state of kubelet.service when the agent got SIGTERM. Ended is the result of
	// ending the kubelet, if the argument requested it.
	Kubelet, Ended string
}

// runAgent is a service that holds the lock, as the node agent does, without a cluster. SIGUSR1
// simulates the end of the drain.
func runAgent() error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGUSR1)
	log, err := os.OpenFile(filepath.Join(shareDir, logName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	stored, err := systemd.ListenFDs()
	if err != nil {
		return err
	}
	notifier := systemd.NewNotifier()
	manager := logind.New(logind.Config{
		Delay: 20 * time.Minute, Stored: stored[logind.StoreName], Store: notifier,
		RetryPeriod: 20 * time.Millisecond, ResyncPeriod: 100 * time.Millisecond,
	})
	current := record{PID: os.Getpid(), Args: os.Args}
	var mu sync.Mutex
	write := func(modify func()) {
		mu.Lock()
		defer mu.Unlock()
		modify()
		current.State = manager.State()
		_ = json.NewEncoder(log).Encode(current)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _ = manager.Run(ctx, func() { write(func() {}) }) }()
	if err := notifier.Ready("holds the lock"); err != nil {
		return err
	}
	for got := range signals {
		if got == unix.SIGUSR1 {
			if err := manager.Release(ctx); err != nil {
				return err
			}
			if current.Ending.Stopping {
				return nil
			}
			continue
		}
		ending, err := systemd.Service{Unit: install.Unit}.Ending(ctx)
		if err != nil {
			return err
		}
		if !ending.Stopping || !manager.State().LockHeld {
			return nil
		}
		kubelet, err := systemd.Service{Unit: "kubelet.service"}.State(ctx)
		if err != nil {
			kubelet.Active = err.Error()
		}
		write(func() { current.Ending, current.Kubelet = ending, kubelet.Active })
		manager.Stopping(ending.Kind, ending.Limit)
		if slices.Contains(os.Args, endKubelet) {
			err := systemd.Service{Unit: "kubelet.service"}.End(ctx)
			kubelet, stateErr := systemd.Service{Unit: "kubelet.service"}.State(ctx)
			write(func() { current.Ended = fmt.Sprintf("%v, then its process is %d, %v", err, kubelet.MainPID, stateErr) })
		}
	}
	return nil
}
