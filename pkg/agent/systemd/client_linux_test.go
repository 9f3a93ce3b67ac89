/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package systemd_test

import (
	"context"
	"errors"
	"os"
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
	if err := m.service("no-such.service").Stop(ctx); err != nil {
		t.Errorf("stop a unit that does not exist: %v, want no error", err)
	}
	if err := m.service("no-such.service").Start(ctx); err == nil {
		t.Error("started a unit that does not exist")
	}
	if err := m.service("broken.service").Start(ctx); err == nil {
		t.Error("started a unit that fails")
	}
	if state, err := m.service("broken.service").ActiveState(ctx); err != nil || state != "failed" {
		t.Errorf("the broken unit is %s, %v, want failed", state, err)
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

	// The wait for a job ends with the context.
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := m.service("slow.service").Start(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("start a unit that is slow: %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestUnitsWithoutABus(t *testing.T) {
	m := bootMachine(t)
	kubelet := m.service("kubelet.service")
	if err := kubelet.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// In the machine, because systemd's own socket accepts only processes that systemd can see.
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.root+stopperPath, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := m.service("stopper.service").Start(t.Context()); err != nil {
		t.Error(err)
	}
	if state, err := kubelet.ActiveState(t.Context()); err != nil || state != "inactive" {
		t.Errorf("the kubelet is %s, %v, want inactive", state, err)
	}
}

// stopUnit is what stopper.service executes.
func stopUnit(unit string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if conn, err := systemd.ConnectBus(ctx, ""); err == nil {
		conn.Close()
		return errors.New("there is a bus")
	}
	return systemd.Service{Unit: unit}.Stop(ctx)
}
