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
	// unitTimeout limits how long systemd may take to end the kubelet. After it the process gets
	// its signals from the agent.
	unitTimeout = 30 * time.Second
	// unitRetry is the pause before the agent looks for another process of the kubelet.
	unitRetry = time.Second
	// stoppedFile is there while the agent has stopped the kubelet. A boot, which starts the
	// kubelet, removes it.
	stoppedFile = "/run/haulout-node-agent.kubelet-stopped"
	// problemTimeout limits how long systemd is asked about the unit. Static pods wait for the
	// answer.
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

// NewUnit returns the kubelet that is the main process of the unit of that name.
func NewUnit(name string) *Unit {
	return &Unit{name: name, service: systemd.Service{Unit: name}, stopped: stoppedFile, find: Find, end: systemd.EndProcess}
}

// Stopped reports whether an agent has stopped the kubelet in this boot, and none has started it
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

// Stop ends the kubelet, and returns nil only when no process of a kubelet is left. If systemd
// cannot be asked, it starts the kubelet again as the unit says: then Stop must be called again
// while the kubelet has to be away.
func (u *Unit) Stop(ctx context.Context) error {
	// First: the agent can end at any time, and the next one may have another state.
	if err := os.WriteFile(u.stopped, []byte(u.name+"\n"), 0o600); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot note that the agent stops the kubelet")
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
			return fmt.Errorf("%s was stopped, but process %d is a kubelet, too: kubeletService must be the unit whose main process the kubelet is",
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

// Problem returns why the agent cannot stop the kubelet by its unit, empty if it can. ok is false
// if that cannot be told now: the unit has ended, the kubelet is just started, or systemd does not
// answer.
//
// A machine without a process of the kubelet may still have one, as a part of another program. It
// counts as stopped only if its unit has run in this boot and does not run now.
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
	return fmt.Sprintf("%s is the kubelet and %s: kubeletService must be the unit whose main process the kubelet is; until then "+
		"the agent ends no pods on the node and parks no static pods", kubelet, of), true
}
