// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/agent/systemd/install"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	kubeletUnit = "kubelet.service"
	olderBus    = "haulout-node-agent-bus.service"
	olderDir    = "/etc/systemd/system/kubelet.service.d"
)

// unit returns the state of a unit.
func (m *machine) unit(name string) systemd.UnitState {
	m.t.Helper()
	// It is called in loops, and the bus allows 256 connections.
	client := must.Get(systemd.Dial(m.t.Context(), m.root))(m.t)
	defer client.Close()
	return must.Get(client.Unit(m.t.Context(), name))(m.t)
}

// installOlder installs the parts that an older version installed for its engine KubeletBus: a
// running bus, and a kubelet that was started with this bus.
func (m *machine) installOlder() {
	m.t.Helper()
	for path, content := range map[string]string{
		"/etc/systemd/system/" + olderBus:     "[Service]\nExecStart=/bin/sleep infinity\n",
		olderDir + "/haulout-node-agent.conf": "[Service]\nEnvironment=DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/haulout-node-agent/bus.sock\n",
	} {
		must.Do(m.t, os.MkdirAll(filepath.Dir(m.root+path), 0o755))
		must.Do(m.t, os.WriteFile(m.root+path, []byte(content), 0o644))
	}
	client := m.client()
	must.Do(m.t, client.Reload(m.t.Context()))
	for _, unit := range []string{olderBus, kubeletUnit} {
		must.Do(m.t, client.RestartUnit(m.t.Context(), unit))
	}
	// systemd reports the unit as running before its process has executed the program.
	eventually(m.t, "the kubelet has the bus", m.kubeletHasBus)
}

// kubeletHasBus reports whether the running kubelet was started with the bus.
func (m *machine) kubeletHasBus() bool {
	m.t.Helper()
	environment := must.Get(os.ReadFile(fmt.Sprintf("%s/proc/%d/environ", m.root, m.unit(kubeletUnit).MainPID)))(m.t)
	return bytes.Contains(environment, []byte("DBUS_SYSTEM_BUS_ADDRESS="))
}

// TestBusOfAnOlderVersionIsRemoved has a kubelet with the bus of an older version. An update or an
// uninstallation must restart the kubelet without the bus, but not while a shutdown is pending.
func TestBusOfAnOlderVersionIsRemoved(t *testing.T) {
	m := bootMachine(t)
	gone := func(after string) {
		t.Helper()
		if m.kubeletHasBus() || m.unit(olderBus).Active != "inactive" || m.unit(kubeletUnit).Active != "active" {
			t.Errorf("after %s the kubelet has the bus: %t, which is %+v", after, m.kubeletHasBus(), m.unit(olderBus))
		}
		for _, path := range []string{"/etc/systemd/system/" + olderBus, olderDir} {
			if _, err := os.Lstat(m.root + path); !os.IsNotExist(err) {
				t.Errorf("after %s, %s is there: %v", after, path, err)
			}
		}
	}
	m.installOlder()
	m.install(true)
	gone("an update")
	before := m.unit(kubeletUnit).MainPID
	m.install(false)
	if after := m.unit(kubeletUnit).MainPID; after != before {
		t.Error("an installation without changes has restarted the kubelet")
	}
	m.installOlder()
	must.Do(t, install.Uninstall(t.Context(), m.options()))
	gone("the uninstallation")

	m.installOlder()
	m.install(true)
	gone("a new installation")
	m.installOlder()
	m.until("the lock is held", held)
	m.login("Reboot", false)
	m.until("a shutdown is pending", pending)
	m.install(false)
	is.True(t, m.kubeletHasBus(), "the kubelet was restarted during a shutdown")
	m.kill(syscall.SIGUSR1)
	m.mustEnd(syscall.SIGHUP)
}

// TestProgramElsewhere checks that the program is removed from the path to which it was installed.
func TestProgramElsewhere(t *testing.T) {
	m := bootMachine(t)
	const first, second = "/opt/haulout/node agent", "/opt/haulout/agent"
	at := func(path string) func(*install.Options) { return func(o *install.Options) { o.Binary = path } }
	exists := func(path string) bool { _, err := os.Lstat(m.root + path); return err == nil }
	m.install(true, at(first))
	last := m.until("the lock is held", held)
	m.install(true, at(second))
	m.until("the moved program holds the lock", func(r record) bool { return r.PID != last.PID && held(r) })
	if exists(first) || !exists(second) {
		t.Errorf("after a move, the program is at the old place: %t, at the new one: %t", exists(first), exists(second))
	}
	must.Do(t, install.Uninstall(t.Context(), install.Options{Root: m.root}))
	if exists(second) || exists(install.UnitPath) {
		t.Errorf("after the uninstallation, the program is there: %t, the unit: %t", exists(second), exists(install.UnitPath))
	}
}
