// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/files"
)

const (
	// unitTimeout limits how long systemd may take to end the kubelet. After that, the agent sends
	// the signals to the process.
	unitTimeout = 30 * time.Second
	// unitRetry is the pause before the agent searches for another kubelet process.
	unitRetry = time.Second
	// stoppedFile exists while the agent keeps the kubelet stopped. A boot, which starts the
	// kubelet, removes the file.
	stoppedFile = "/run/haulout-node-agent.kubelet-stopped"
	// problemTimeout limits the queries to systemd about the unit. Decisions about static pods wait
	// for the response.
	problemTimeout = 5 * time.Second
)

// Unit is the kubelet as a service of systemd.
type Unit struct {
	name    string
	service unitService
	// stopped is the path of stoppedFile.
	stopped string
	// find and end are replaced in tests.
	find func(context.Context) (Process, error)
	end  func(ctx context.Context, pid int) error
}

// unitService is the service; systemd.Service implements it.
type unitService interface {
	Start(ctx context.Context) error
	End(ctx context.Context) error
	State(ctx context.Context) (systemd.UnitState, error)
}

// NewUnit returns the kubelet that is the main process of the named unit.
func NewUnit(name string) *Unit {
	return &Unit{name: name, service: systemd.Service{Unit: name}, stopped: stoppedFile, find: Find, end: systemd.EndProcess}
}

// Stopped reports whether an agent has stopped the kubelet in this boot and has not started it
// since.
func (u *Unit) Stopped() bool {
	_, err := os.Lstat(u.stopped)
	return err == nil
}

// Start starts the kubelet.
func (u *Unit) Start(ctx context.Context) error {
	if err := u.service.Start(ctx); err != nil {
		return err
	}
	return files.Remove(u.stopped)
}

// Stop ends the kubelet. It returns nil only when no kubelet process is left. If systemd does not
// respond, it may restart the kubelet according to the unit file: then call Stop again while the
// kubelet must stay stopped.
func (u *Unit) Stop(ctx context.Context) error {
	// Write the file first: the agent can end at any time, and the next agent may not have this
	// state.
	if err := os.WriteFile(u.stopped, []byte(u.name+"\n"), 0o600); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot record that the agent stops the kubelet")
	}
	for {
		limited, cancel := context.WithTimeout(ctx, unitTimeout)
		err := u.service.End(limited)
		cancel()
		process, found := u.find(ctx)
		switch {
		case errors.Is(found, ErrNotRunning):
			return nil
		case found != nil:
			return errors.Join(err, found)
		case err == nil:
			return fmt.Errorf("%s was stopped, but process %d is a kubelet as well: kubeletService must be the unit whose main process is the kubelet",
				u.name, process.PID)
		}
		klog.FromContext(ctx).Error(err, "systemd does not stop the kubelet, ending its process", "unit", u.name, "pid", process.PID)
		if err := u.end(ctx, process.PID); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(unitRetry):
		}
	}
}

// Problem returns the reason why the agent cannot stop the kubelet by its unit; empty if it can. ok
// is false if this is unknown now: the unit has ended, the kubelet has just started, or systemd
// does not answer.
//
// Without a kubelet process, the kubelet may still run as a part of another program. It counts as
// stopped only if its unit ran in this boot and does not run now.
func (u *Unit) Problem(ctx context.Context) (problem string, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, problemTimeout)
	defer cancel()
	before, err := u.find(ctx)
	if err != nil && !errors.Is(err, ErrNotRunning) {
		return "", false
	}
	none := err != nil
	unit, err := u.service.State(ctx)
	if err != nil || none && unit.MainPID == 0 && unit.LastPID != 0 {
		return "", false
	}
	if !none && int(unit.MainPID) == before.PID {
		return "", true
	}
	after, err := u.find(ctx)
	if errors.Is(err, ErrNotRunning) != none || after.ID != before.ID {
		return "", false
	}
	kubelet, of := "no process", fmt.Sprintf("the main process of %s is %d", u.name, unit.MainPID)
	if !none {
		kubelet = fmt.Sprintf("process %d", before.PID)
	}
	switch {
	case !unit.Exists():
		of = fmt.Sprintf("there is no unit %s", u.name)
	case unit.MainPID == 0:
		of = fmt.Sprintf("%s does not run", u.name)
	}
	return fmt.Sprintf("%s is the kubelet, and %s: kubeletService must be the unit whose main process is the kubelet; until then "+
		"the agent ends no pods on the node and parks no static pods", kubelet, of), true
}
