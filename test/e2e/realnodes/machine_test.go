// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	ossignal "os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// A node of the development cluster has no service manager. The type machine adds the services that
// the node agent needs: D-Bus, the real logind, and an implementation of the few calls of systemd
// that logind and the agent make. A machine runs as this test program, started in the namespaces of
// the node.
const (
	machineRole = "HAULOUT_TEST_MACHINE"
	// machineDir has a file for each target that was started.
	machineDir = "/run/machine"
	heldDir    = "/run/held"
)

type machine struct {
	t    *testing.T
	c    *framework.Cluster
	node string
}

// startMachine starts a machine, which runs until the node is switched off.
func startMachine(t *testing.T, c *framework.Cluster, node string) *machine {
	t.Helper()
	m := &machine{t: t, c: c, node: node}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m.start("machine", []string{machineRole + "=" + node}, self)
	framework.Eventually(t, "logind runs on "+node, func(context.Context) (bool, error) {
		_, err := os.Stat(m.path(machineDir))
		return err == nil, err
	})
	return m
}

// path returns the path of a file of the node in the file system of the test.
func (m *machine) path(file string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", m.c.Signal(m.t, m.node, 0)), file)
}

func (m *machine) enter(program string, args ...string) []string {
	pid := strconv.Itoa(m.c.Signal(m.t, m.node, 0))
	return append([]string{"--target=" + pid, "--mount", "--uts", "--ipc", "--net", "--pid", "--", program}, args...)
}

// start starts a program in the namespaces of the node, with a separate log. The program ends
// together with the node or the test.
func (m *machine) start(name string, env []string, program string, args ...string) {
	m.t.Helper()
	log, err := os.OpenFile(filepath.Join(m.c.Dir(), "logs", m.node+"-"+name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("nsenter", m.enter(program, args...)...) //nolint:gosec // a program of the build
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	must.Do(m.t, cmd.Start())
	go func() { _ = cmd.Wait() }()
	m.t.Cleanup(func() {
		if !m.t.Failed() {
			return
		}
		content, err := os.ReadFile(log.Name())
		m.t.Logf("%s (%v):\n%s", filepath.Base(log.Name()), err, content[max(0, len(content)-logTail):])
	})
}

// logTail is the number of bytes at the end of a log that a failed test prints.
const logTail = 8 << 10

// call calls a method of logind as an administrator.
func (m *machine) call(method string, args ...string) {
	m.t.Helper()
	m.run("busctl", append([]string{"call", loginName, "/org/freedesktop/login1", loginName + ".Manager", method}, args...)...)
}

// run runs a program in the namespaces of the node until it ends.
func (m *machine) run(program string, args ...string) {
	m.t.Helper()
	if out, err := exec.CommandContext(m.t.Context(), "nsenter", m.enter(program, args...)...).CombinedOutput(); err != nil { //nolint:gosec // constant arguments
		m.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}

// reboot requests a reboot of the machine, as `systemctl reboot` does.
func (m *machine) reboot() {
	m.t.Helper()
	m.call("Reboot", "b", "false")
}

// hasGoneDown reports whether logind has started the shutdown of the machine.
func (m *machine) hasGoneDown() bool {
	_, err := os.Stat(filepath.Join(m.path(machineDir), "reboot.target"))
	return err == nil
}

// untilDown waits until logind starts the shutdown of the machine.
func (m *machine) untilDown(limit time.Duration) {
	m.t.Helper()
	framework.EventuallyWithin(m.t, limit, m.node+" shuts down", func(context.Context) (bool, error) {
		return m.hasGoneDown(), nil
	})
}

// powerCycle switches the node off and on, and starts the machine again.
func (m *machine) powerCycle() {
	m.t.Helper()
	m.c.Kill(m.t, m.node)
	must.Do(m.t, m.c.Up())
	*m = *startMachine(m.t, m.c, m.node)
}

const (
	loginName      = "org.freedesktop.login1"
	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdManager = systemdName + ".Manager"
	kubeletService = "kubelet.service"
)

// runMachine is the main function of this program in the namespaces of the node.
func runMachine() error {
	ctx, stop := ossignal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	for _, dir := range []string{"/etc/systemd", "/var/lib/systemd"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"dbus", "systemd/inhibit", "systemd/seats", "systemd/sessions", "systemd/users", "systemd/shutdown", "systemd/system"} {
		if err := os.MkdirAll("/run/"+dir, 0o755); err != nil {
			return err
		}
	}
	bus := exec.CommandContext(ctx, "dbus-daemon", "--system", "--nofork", "--nopidfile", "--print-address=1")
	bus.Stderr = os.Stderr
	out, err := bus.StdoutPipe()
	if err != nil {
		return err
	}
	if err := bus.Start(); err != nil {
		return err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return fmt.Errorf("dbus-daemon did not start: %w", err)
	}
	conn, err := dbus.ConnectSystemBus()
	if err != nil {
		return err
	}
	s := &serviceManager{conn: conn}
	if err := s.export(); err != nil {
		return err
	}
	s.logind = exec.CommandContext(ctx, "/lib/systemd/systemd-logind")
	s.logind.Env = append(os.Environ(), "SYSTEMD_LOG_TARGET=console")
	s.logind.Stdout, s.logind.Stderr = os.Stdout, os.Stderr
	if err := s.logind.Start(); err != nil {
		return err
	}
	for has := false; !has; {
		if err := conn.BusObject().Call("org.freedesktop.DBus.NameHasOwner", 0, loginName).Store(&has); err != nil {
			return err
		}
		<-time.After(10 * time.Millisecond)
	}
	if err := os.MkdirAll(machineDir, 0o755); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// serviceManager implements the calls of systemd that logind and the agent make.
type serviceManager struct {
	conn   *dbus.Conn
	logind *exec.Cmd

	mu   sync.Mutex
	jobs uint32
	down string
}

func (s *serviceManager) export() error {
	errs := []error{s.conn.Export(s, systemdPath, systemdManager)}
	for _, target := range []string{"reboot_2etarget", "poweroff_2etarget", "halt_2etarget", "kexec_2etarget", "kubelet_2eservice"} {
		errs = append(errs, s.conn.Export(unit{}, systemdPath+"/unit/"+dbus.ObjectPath(target), "org.freedesktop.DBus.Properties"))
	}
	errs = append(errs, s.conn.Export(noUnit{}, unitPath(olderBus), "org.freedesktop.DBus.Properties"))
	_, err := s.conn.RequestName(systemdName, dbus.NameFlagDoNotQueue)
	return errors.Join(append(errs, err)...)
}

// unit implements the properties of all existing units.
type unit struct{}

// Get implements org.freedesktop.DBus.Properties.
func (unit) Get(_, name string) (dbus.Variant, *dbus.Error) {
	switch name {
	case "LoadState":
		return dbus.MakeVariant("loaded"), nil
	case "ActiveState":
		return dbus.MakeVariant("active"), nil
	case "UnitFileState":
		return dbus.MakeVariant("enabled"), nil
	case "MainPID": // only read for the kubelet
		for _, pid := range processes("kubelet") {
			return dbus.MakeVariant(uint32(pid)), nil
		}
		return dbus.MakeVariant(uint32(0)), nil
	case "ExecMainPID": // the kubelet has run
		return dbus.MakeVariant(uint32(1)), nil
	case "Job":
		return dbus.MakeVariant(struct {
			ID   uint32
			Path dbus.ObjectPath
		}{0, "/"}), nil
	}
	return dbus.Variant{}, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", []any{name})
}

// olderBus is a unit of older versions of the agent. The installer checks whether it exists.
const olderBus = "haulout-node-agent-bus.service"

// noUnit implements the properties of a unit that does not exist.
type noUnit struct{}

// Get implements org.freedesktop.DBus.Properties.
func (noUnit) Get(_, name string) (dbus.Variant, *dbus.Error) {
	switch name {
	case "LoadState":
		return dbus.MakeVariant("not-found"), nil
	case "ActiveState":
		return dbus.MakeVariant("inactive"), nil
	case "MainPID", "ExecMainPID":
		return dbus.MakeVariant(uint32(0)), nil
	case "UnitFileState":
		return dbus.MakeVariant(""), nil
	}
	return unit{}.Get("", name)
}

// Subscribe does nothing. Clients call it before they watch jobs.
func (s *serviceManager) Subscribe() *dbus.Error { return nil }

// LoadUnit returns the path of a unit.
func (s *serviceManager) LoadUnit(name string) (dbus.ObjectPath, *dbus.Error) {
	return unitPath(name), nil
}

func unitPath(name string) dbus.ObjectPath {
	return systemdPath + "/unit/" + dbus.ObjectPath(strings.NewReplacer(".", "_2e", "-", "_2d").Replace(name))
}

// StartUnit starts the kubelet or, when the machine shuts down, a target.
func (s *serviceManager) StartUnit(name, _ string) (dbus.ObjectPath, *dbus.Error) {
	if name == kubeletService {
		return s.job(name, func() error { return os.RemoveAll(filepath.Join(heldDir, "kubelet")) })
	}
	s.mu.Lock()
	s.down = name
	s.mu.Unlock()
	if err := os.WriteFile(filepath.Join(machineDir, name), []byte(time.Now().Format(time.RFC3339Nano)), 0o644); err != nil {
		return "", dbus.MakeFailedError(err)
	}
	return systemdPath + "/job/0", nil
}

// StopUnit stops the kubelet, and prevents the process of the node from restarting it.
func (s *serviceManager) StopUnit(name, _ string) (dbus.ObjectPath, *dbus.Error) {
	if name != kubeletService {
		return "", dbus.NewError(systemdName+".NoSuchUnit", []any{name})
	}
	return s.job(name, func() error {
		if err := os.WriteFile(filepath.Join(heldDir, "kubelet"), nil, 0o644); err != nil {
			return err
		}
		return stopProcesses("kubelet")
	})
}

// job runs do and then emits the signal that the job has ended.
func (s *serviceManager) job(unit string, do func() error) (dbus.ObjectPath, *dbus.Error) {
	s.mu.Lock()
	s.jobs++
	id := s.jobs
	s.mu.Unlock()
	path := systemdPath + dbus.ObjectPath(fmt.Sprintf("/job/%d", id))
	go func() {
		result := "done"
		if err := do(); err != nil {
			fmt.Fprintln(os.Stderr, unit, err)
			result = "failed"
		}
		// The caller waits for this signal.
		_ = s.conn.Emit(systemdPath, systemdManager+".JobRemoved", id, path, unit, result)
	}()
	return path, nil
}

// ListJobs returns the target that was started as the only job.
func (s *serviceManager) ListJobs() ([]struct {
	ID             uint32
	Unit, Type, St string
	Job, Object    dbus.ObjectPath
}, *dbus.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var jobs []struct {
		ID             uint32
		Unit, Type, St string
		Job, Object    dbus.ObjectPath
	}
	if s.down != "" {
		jobs = append(jobs, struct {
			ID             uint32
			Unit, Type, St string
			Job, Object    dbus.ObjectPath
		}{Unit: s.down, Type: "start", St: "running", Job: systemdPath + "/job/0", Object: "/"})
	}
	return jobs, nil
}

// KillUnit sends a signal to logind, which then reloads its settings.
func (s *serviceManager) KillUnit(name, _ string, number int32) *dbus.Error {
	if name != "systemd-logind.service" {
		return dbus.NewError(systemdName+".NoSuchUnit", []any{name})
	}
	if err := s.logind.Process.Signal(syscall.Signal(number)); err != nil {
		return dbus.MakeFailedError(err)
	}
	return nil
}

// stopProcesses ends the processes of a program in this PID namespace.
func stopProcesses(program string) error {
	for {
		pids := processes(program)
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
		<-time.After(20 * time.Millisecond)
	}
}

func processes(program string) []int {
	folders, _ := filepath.Glob("/proc/[0-9]*")
	var pids []int
	for _, folder := range folders {
		if exe, err := os.Readlink(filepath.Join(folder, "exe")); err == nil && filepath.Base(exe) == program {
			if pid, err := strconv.Atoi(filepath.Base(folder)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
