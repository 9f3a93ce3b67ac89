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
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"haulout.dev/haulout/pkg/agent/local/kubeletbus"
	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/agent/systemd/install"
)

const kubeletUnit = "kubelet.service"

// runKubeletBus is the service of the bus, as the command kubelet-bus is.
func runKubeletBus() error {
	bus, err := kubeletbus.New(kubeletbus.Config{Dir: kubeletbus.DefaultDir, System: "/run/dbus/system_bus_socket"})
	if err != nil {
		return err
	}
	return bus.Run(context.Background(), func() { _ = systemd.NewNotifier().Ready("serves") })
}

func withBus(o *install.Options) { o.KubeletBus = true }

// unit returns the state of a unit.
func (m *machine) unit(name string) systemd.UnitState {
	m.t.Helper()
	state, err := m.client().Unit(m.t.Context(), name)
	if err != nil {
		m.t.Fatal(err)
	}
	return state
}

// kubeletHasBus reports whether the kubelet that runs was started with the bus.
func (m *machine) kubeletHasBus() bool {
	m.t.Helper()
	environment, err := os.ReadFile(fmt.Sprintf("%s/proc/%d/environ", m.root, m.unit(kubeletUnit).MainPID))
	if err != nil {
		m.t.Fatal(err)
	}
	return bytes.Contains(environment, []byte("DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/haulout-node-agent/bus.sock\x00"))
}

// kubeletConn connects as a kubelet does.
func (m *machine) kubeletConn() *dbus.Conn {
	m.t.Helper()
	socket := filepath.Join(m.root, kubeletbus.DefaultDir, kubeletbus.BusSocket)
	conn, err := dbus.Connect("unix:path="+dbus.EscapeBusAddressValue(socket), dbus.WithContext(m.t.Context()))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { conn.Close() })
	return conn
}

// TestKubeletBus: an installation with the bus restarts the kubelet with it. Over it, the real
// systemd makes units for the kubelet, as with the systemd cgroup driver, and logind is the
// agent's.
func TestKubeletBus(t *testing.T) {
	m := bootMachine(t)
	if err := m.service(kubeletUnit).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.install(true)
	m.until("the lock is held", held)
	if m.kubeletHasBus() {
		t.Fatal("the kubelet has the bus before it is installed")
	}
	m.install(true, withBus)
	if !m.kubeletHasBus() || m.unit(install.BusUnit).Active != "active" {
		t.Fatalf("the kubelet has the bus: %t, which is %+v", m.kubeletHasBus(), m.unit(install.BusUnit))
	}
	before := m.unit(kubeletUnit).MainPID
	m.install(false, withBus)
	if after := m.unit(kubeletUnit).MainPID; after != before {
		t.Error("an installation without changes has restarted the kubelet")
	}

	conn := m.kubeletConn()
	startSlice(t, systemd.NewClient(conn), conn, "kubepods-test.slice")
	if state := m.unit("kubepods-test.slice"); state.Active != "active" {
		t.Errorf("the slice is %s, want active", state.Active)
	}
	var fd dbus.UnixFD
	login := conn.Object("org.freedesktop.login1", "/org/freedesktop/login1")
	if err := login.Call("org.freedesktop.login1.Manager.Inhibit", 0, "shutdown", "kubelet", "a test", "delay").Store(&fd); err != nil {
		t.Fatal(err)
	}
	lock := os.NewFile(uintptr(fd), "lock")
	defer lock.Close()
	if pids := m.lockPIDs(); len(pids) != 1 {
		t.Errorf("the real logind has the locks of %d, want that of the agent alone", pids)
	}

	// The bus is started with the kubelet, and before it.
	if err := m.service(install.BusUnit).Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.client().RestartUnit(t.Context(), kubeletUnit); err != nil {
		t.Fatal(err)
	}
	m.kubeletConn()
	before = m.unit(install.BusUnit).MainPID
	m.login("Reboot", false)
	last := m.until("a shutdown is pending", pending)
	m.install(true, withBus, withFile("1"))
	m.until("the new agent holds the lock", func(r record) bool { return r.PID != last.PID && pending(r) && held(r) })
	if after := m.unit(install.BusUnit).MainPID; after != before {
		t.Error("an update in a shutdown has restarted the bus, on which the kubelet waits")
	}
	m.kill(syscall.SIGUSR1)
	m.mustEnd(syscall.SIGHUP)
}

// startSlice lets systemd make a slice, as the kubelet does for its pods.
func startSlice(t *testing.T, client *systemd.Client, conn *dbus.Conn, name string) {
	t.Helper()
	type property struct {
		Name  string
		Value dbus.Variant
	}
	type auxiliary struct {
		Name       string
		Properties []property
	}
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	if err := conn.AddMatchSignal(dbus.WithMatchSender("org.freedesktop.systemd1"), dbus.WithMatchMember("JobRemoved")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.SystemState(t.Context()); err != nil {
		t.Fatal(err)
	}
	manager := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	if err := manager.Call("org.freedesktop.systemd1.Manager.Subscribe", 0).Err; err != nil {
		t.Fatal(err)
	}
	var job dbus.ObjectPath
	err := manager.Call("org.freedesktop.systemd1.Manager.StartTransientUnit", 0, name, "replace",
		[]property{{"Description", dbus.MakeVariant("pods of a test")}, {"DefaultDependencies", dbus.MakeVariant(false)}}, []auxiliary{}).Store(&job)
	if err != nil {
		t.Fatal(err)
	}
	for limit := time.After(patience); ; {
		select {
		case signal := <-signals:
			if len(signal.Body) == 4 && signal.Body[1] == job {
				return
			}
		case <-limit:
			t.Fatal("the end of the job was not told")
		}
	}
}

// TestKubeletBusIsRemoved: another engine, and an uninstallation, restart the kubelet without it.
func TestKubeletBusIsRemoved(t *testing.T) {
	m := bootMachine(t)
	if err := m.service(kubeletUnit).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := func(after string) {
		t.Helper()
		if m.kubeletHasBus() || m.unit(install.BusUnit).Active != "inactive" || m.unit(kubeletUnit).Active != "active" {
			t.Errorf("after %s the kubelet has the bus: %t, which is %+v", after, m.kubeletHasBus(), m.unit(install.BusUnit))
		}
		for _, path := range []string{install.BusUnitPath, "/etc/systemd/system/kubelet.service.d"} {
			if _, err := os.Lstat(m.root + path); !os.IsNotExist(err) {
				t.Errorf("after %s, %s is there: %v", after, path, err)
			}
		}
	}
	m.install(true, withBus)
	m.install(true)
	gone("a change of the engine")
	m.install(true, withBus)
	if !m.kubeletHasBus() {
		t.Error("the kubelet has no bus")
	}
	if err := install.Uninstall(t.Context(), m.options()); err != nil {
		t.Fatal(err)
	}
	gone("the uninstallation")
}

// TestProgramElsewhere: the program is removed where it was installed.
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
	if err := install.Uninstall(t.Context(), install.Options{Root: m.root}); err != nil {
		t.Fatal(err)
	}
	if exists(second) || exists(install.UnitPath) {
		t.Errorf("after the uninstallation, the program is there: %t, the unit: %t", exists(second), exists(install.UnitPath))
	}
}
