// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/windows/svc"
)

// execution is a running handler with the channels through which the test plays the part of
// Windows.
type execution struct {
	t        *testing.T
	requests chan svc.ChangeRequest
	status   chan svc.Status
	code     chan uint32
}

func execute(t *testing.T, run func(context.Context, *Controls) error) *execution {
	t.Helper()
	e := &execution{t: t, requests: make(chan svc.ChangeRequest), status: make(chan svc.Status), code: make(chan uint32, 1)}
	h := &Handler{Run: run, Period: 10 * time.Millisecond}
	go func() {
		_, code := h.Execute(nil, e.requests, e.status)
		e.code <- code
	}()
	return e
}

// until reads statuses until one of them has the state.
func (e *execution) until(state svc.State) svc.Status {
	e.t.Helper()
	for {
		select {
		case s := <-e.status:
			if s.State == state {
				return s
			}
		case <-time.After(10 * time.Second):
			e.t.Fatalf("the service does not get into state %d", state)
		}
	}
}

// end reads statuses until the service has ended.
func (e *execution) end() uint32 {
	e.t.Helper()
	for {
		select {
		case <-e.status:
		case code := <-e.code:
			return code
		case <-time.After(10 * time.Second):
			e.t.Fatal("the service does not end")
		}
	}
}

func TestHandlerAnswersDuringAShutdown(t *testing.T) {
	release := make(chan struct{})
	e := execute(t, func(ctx context.Context, c *Controls) error {
		c.Ready()
		<-c.Preshutdown()
		<-release
		return ctx.Err()
	})
	if first := <-e.status; first.State != svc.StartPending || first.CheckPoint != 1 || first.WaitHint == 0 {
		t.Errorf("the first status is %+v", first)
	}
	if s := e.until(svc.Running); s.Accepts != svc.AcceptStop|svc.AcceptPreShutdown|svc.AcceptParamChange {
		t.Errorf("the service accepts %#x", s.Accepts)
	}
	e.requests <- svc.ChangeRequest{Cmd: svc.ParamChange}
	e.until(svc.Running)
	e.requests <- svc.ChangeRequest{Cmd: svc.PreShutdown}
	last := e.until(svc.StopPending)
	if last.CheckPoint != 1 || last.Accepts != 0 {
		t.Errorf("the first status of the shutdown is %+v", last)
	}
	for range 3 {
		s := e.until(svc.StopPending)
		if s.CheckPoint != last.CheckPoint+1 || s.WaitHint == 0 {
			t.Errorf("after %+v came %+v", last, s)
		}
		last = s
	}
	for asked := false; !asked; {
		select {
		case e.requests <- svc.ChangeRequest{Cmd: svc.Interrogate}:
			asked = true
		case last = <-e.status:
		}
	}
	if s := e.until(svc.StopPending); s.CheckPoint < last.CheckPoint {
		t.Errorf("the answer to a question is %+v after %+v", s, last)
	}
	close(release)
	if code := e.end(); code != 0 {
		t.Errorf("the exit code is %d", code)
	}
}

func TestHandlerStops(t *testing.T) {
	e := execute(t, func(ctx context.Context, c *Controls) error {
		c.Ready()
		<-ctx.Done()
		return nil
	})
	e.until(svc.Running)
	e.requests <- svc.ChangeRequest{Cmd: svc.Stop}
	e.until(svc.StopPending)
	if code := e.end(); code != 0 {
		t.Errorf("the exit code is %d", code)
	}
}

func TestHandlerReportsAFailure(t *testing.T) {
	e := execute(t, func(context.Context, *Controls) error { return errors.New("no state directory") })
	if code := e.end(); code != exitFailed {
		t.Errorf("the exit code is %d, want %d", code, exitFailed)
	}
}
