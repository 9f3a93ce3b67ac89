// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/agent/systemd"
)

func TestUnits(t *testing.T) {
	m := bootMachine(t)
	client := m.client()
	ctx := t.Context()

	state, err := client.Unit(ctx, "no-such.service")
	if err != nil || state.Exists() || state.Active != "inactive" {
		t.Errorf("a unit that does not exist: %+v, %v", state, err)
	}
	if err := m.service("no-such.service").End(ctx); err != nil {
		t.Errorf("stop a unit that does not exist: %v, want no error", err)
	}
	if err := m.service("no-such.service").Start(ctx); err == nil {
		t.Error("started a unit that does not exist")
	}
	if err := m.service("broken.service").Start(ctx); err == nil {
		t.Error("started a unit that fails")
	}
	if state, err := m.service("broken.service").State(ctx); err != nil || state.Active != "failed" {
		t.Errorf("the broken unit is %s, %v, want failed", state.Active, err)
	}
	if err := client.ResetFailed(ctx, "broken.service"); err != nil {
		t.Error(err)
	}
	if kind, err := client.ShutdownJob(ctx); err != nil || kind != "" {
		t.Errorf("systemd carries out a shutdown %q, %v, want none", kind, err)
	}
	if ending, err := client.Ending(ctx, "kubelet.service"); err != nil || ending != (systemd.Ending{}) {
		t.Errorf("the system ends: %+v, %v, want that it does not", ending, err)
	}

	if age, err := client.UserspaceAge(ctx); err != nil || age <= 0 {
		t.Errorf("userspace has booted %v ago, %v", age, err)
	}

	// A service that has ended must differ from a service that never ran, even after systemd has
	// reloaded its units.
	kubelet := m.service("kubelet.service")
	if state, err := kubelet.State(ctx); err != nil || !state.Exists() || state.MainPID != 0 || state.LastPID != 0 {
		t.Errorf("a service that has not run: %+v, %v", state, err)
	}
	if err := kubelet.Start(ctx); err != nil {
		t.Error(err)
	}
	running, err := kubelet.State(ctx)
	if err != nil || running.MainPID == 0 || running.LastPID != running.MainPID {
		t.Errorf("a service that runs: %+v, %v", running, err)
	}
	if err := errors.Join(kubelet.End(ctx), client.Reload(ctx)); err != nil {
		t.Error(err)
	}
	if state, err := kubelet.State(ctx); err != nil || state.MainPID != 0 || state.LastPID != running.MainPID {
		t.Errorf("a service that has ended: %+v, %v, want the last process %d", state, err, running.MainPID)
	}

	// The client stops waiting for a job when the context ends.
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := m.service("slow.service").Start(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("start a unit that is slow: %v, want %v", err, context.DeadlineExceeded)
	}
}
