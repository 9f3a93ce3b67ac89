// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"

	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/agent/systemd/install"
	"haulout.dev/haulout/pkg/testing/must"
)

// unitProperty is a property of a transient unit.
type unitProperty struct {
	Name  string
	Value dbus.Variant
}

// startTransient starts a transient unit, as the kubelet and the container runtime do for slices
// and scopes.
func (m *machine) startTransient(unit string, properties map[string]any) error {
	m.t.Helper()
	conn := must.Get(systemd.ConnectBus(m.t.Context(), m.root))(m.t)
	defer conn.Close()
	list := []unitProperty{{"DefaultDependencies", dbus.MakeVariant(false)}}
	for name, value := range properties {
		list = append(list, unitProperty{name, dbus.MakeVariant(value)})
	}
	type auxiliary struct {
		Name       string
		Properties []unitProperty
	}
	return conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").
		Call("org.freedesktop.systemd1.Manager.StartTransientUnit", 0, unit, "replace", list, []auxiliary{}).Err
}

// TestContainersWaitForTheAgent begins a shutdown that bypasses logind on a machine whose
// containers have cgroups created by systemd. The containers run until the agent has ended, and a
// pod slice that the kubelet starts meanwhile does not cancel the shutdown.
func TestContainersWaitForTheAgent(t *testing.T) {
	for _, scope := range []string{"cri-containerd-test.scope", "crio-test.scope"} {
		t.Run(scope, func(t *testing.T) {
			m := bootMachine(t)
			m.install(true)
			m.until("the lock is held", held)
			const process, pod = "process.service", "kubepods-test.slice"
			command := []struct {
				Path        string
				Args        []string
				IgnoreError bool
			}{{"/bin/sleep", []string{"sleep", "infinity"}, false}}
			must.Do(t, m.startTransient(process, map[string]any{"ExecStart": command}))
			eventually(t, "the process runs", func() bool { return m.unit(process).MainPID != 0 })
			must.Do(t, m.startTransient(pod, nil))
			must.Do(t, m.startTransient(scope, map[string]any{"Slice": pod, "PIDs": []uint32{m.unit(process).MainPID}}))
			eventually(t, "the container runs", func() bool { return m.unit(scope).Active == "active" })

			m.startUnit("reboot.target", "replace")
			m.until("systemd stops the agent", func(r record) bool { return r.Ending.Stopping && pending(r) })
			if err := m.startTransient("kubepods-late.slice", nil); err == nil || !strings.Contains(err.Error(), "destructive") {
				t.Errorf("a pod was started during the shutdown: %v", err)
			}
			if state := m.unit(scope); state.Active != "active" {
				t.Errorf("the container is %s while the agent works", state.Active)
			}
			if err := install.Uninstall(t.Context(), m.options()); !errors.Is(err, install.ErrShutdownPending) {
				t.Errorf("uninstalled during the shutdown: %v, want %v", err, install.ErrShutdownPending)
			}
			m.kill(syscall.SIGUSR1)
			m.mustEnd(syscall.SIGHUP)
		})
	}
}
