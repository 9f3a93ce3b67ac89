// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

const (
	// pendingPeriod is the interval at which the service reports to Windows that a stop or start is
	// still pending. pendingHint is the time in which Windows expects the next report.
	pendingPeriod = 2 * time.Second
	pendingHint   = 10 * time.Second
	// exitFailed is the exit code of a service that ended with an error.
	exitFailed = 1

	accepted = svc.AcceptStop | svc.AcceptPreShutdown | svc.AcceptParamChange
)

// Handler is the service for the service control manager. It implements svc.Handler.
type Handler struct {
	// Run runs the agent until the context ends, or until the agent releases a shutdown.
	Run func(ctx context.Context, c *Controls) error
	// Log is the event log.
	Log *EventLog
	// Period overrides pendingPeriod in tests.
	Period time.Duration
}

// RunService connects the handler to Windows. It returns when the service has stopped.
func RunService(h *Handler) error {
	if err := svc.Run(ServiceName, h); err != nil {
		return fmt.Errorf("connect to the service control manager, which starts this program as a service: %w", err)
	}
	return nil
}

// Execute implements svc.Handler. It never waits for the agent: Windows treats a service that does
// not respond as hung.
func (h *Handler) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (specific bool, code uint32) {
	current := svc.Status{State: svc.StartPending, CheckPoint: 1, WaitHint: uint32(pendingHint.Milliseconds())}
	set := func(state svc.State, accepts svc.Accepted) {
		if state == svc.Running {
			current = svc.Status{State: state, Accepts: accepts}
		} else {
			if current.State != state {
				current.CheckPoint = 0
			}
			current = svc.Status{State: state, CheckPoint: current.CheckPoint + 1, WaitHint: uint32(pendingHint.Milliseconds())}
		}
		status <- current
	}
	status <- current
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	controls := NewControls()
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx, controls) }()

	ticker := time.NewTicker(cmp.Or(h.Period, pendingPeriod))
	defer ticker.Stop()
	ready := controls.ready
	for {
		select {
		case <-ready:
			ready = nil
			if current.State == svc.StartPending {
				set(svc.Running, accepted)
			}
		case <-ticker.C:
			if current.State != svc.Running {
				set(current.State, 0)
			}
		case request := <-requests:
			switch request.Cmd {
			case svc.Interrogate:
				status <- current
			case svc.ParamChange:
				controls.paramChange()
				status <- current
			case svc.PreShutdown:
				h.Log.Write(Message{ID: EventPreshutdown, Warning: true, Text: "Windows is about to shut down. The node agent waits until the pods have left the node."})
				controls.beginPreshutdown(time.Now())
				set(svc.StopPending, 0)
			case svc.Stop:
				cancel()
				set(svc.StopPending, 0)
			default:
				status <- current
			}
		case err := <-ended:
			return h.end(err)
		}
	}
}

func (h *Handler) end(err error) (specific bool, code uint32) {
	if err != nil {
		h.Log.Write(Message{ID: EventFailed, Warning: true, Text: "The node agent failed: " + err.Error()})
		return true, exitFailed
	}
	h.Log.Write(Message{ID: EventStopped, Text: "The node agent has stopped."})
	return false, 0
}

const eventSourceKey = `SYSTEM\CurrentControlSet\Services\EventLog\Application\` + ServiceName

// EventLog writes to the event log of Windows. The nil EventLog writes nothing.
type EventLog struct {
	log *eventlog.Log
}

// OpenEventLog opens the event log Application.
func OpenEventLog() (*EventLog, error) {
	log, err := eventlog.Open(ServiceName)
	if err != nil {
		return nil, err
	}
	return &EventLog{log: log}, nil
}

// Write writes a message. It ignores errors: a failed write must not stop the agent.
func (l *EventLog) Write(m Message) {
	if l == nil {
		return
	}
	write := l.log.Info
	if m.Warning {
		write = l.log.Warning
	}
	_ = write(uint32(m.ID), m.Text)
}

// Close closes the event log.
func (l *EventLog) Close() error {
	if l == nil {
		return nil
	}
	return l.log.Close()
}

// installEventSource registers the source of the messages, and reports whether it was not
// registered before.
func installEventSource() (changed bool, err error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, eventSourceKey, registry.QUERY_VALUE)
	if err == nil {
		return false, key.Close()
	}
	if !errors.Is(err, registry.ErrNotExist) {
		return false, err
	}
	return true, eventlog.InstallAsEventCreate(ServiceName, eventlog.Info|eventlog.Warning|eventlog.Error)
}

func removeEventSource() error {
	err := eventlog.Remove(ServiceName)
	if errors.Is(err, windows.ERROR_FILE_NOT_FOUND) {
		return nil
	}
	return err
}
