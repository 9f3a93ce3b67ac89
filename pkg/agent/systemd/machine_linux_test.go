// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/agent/systemd/install"
	"haulout.dev/haulout/pkg/cmd/nodeagent"
	"haulout.dev/haulout/pkg/testing/must"
)

// The tests boot a machine: systemd as the first process of new namespaces, with a separate logind,
// bus and root. This has no effect on the real machine.

const (
	workVariable  = "HAULOUT_SYSTEMD_TEST_WORK"
	shareVariable = "HAULOUT_SYSTEMD_TEST_SHARE"

	// realAgent is the first argument with which the test binary runs the complete node agent.
	realAgent = "real"

	patience = 60 * time.Second
	poll     = 10 * time.Millisecond
)

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(workVariable) != "":
		err = boot(os.Getenv(workVariable), os.Getenv(shareVariable))
	case len(os.Args) > 1 && os.Args[1] == "run":
		// The tests install the test binary as the agent.
		err = runAgent()
	case len(os.Args) > 1 && os.Args[1] == realAgent:
		os.Args = append(os.Args[:1], os.Args[2:]...)
		err = nodeagent.NewCommand().Execute()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// machine is a machine that a test has booted.
type machine struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{}
	// root is the path of the machine's root on the real machine.
	root  string
	share string
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("after %s still not: %s", patience, what)
		case <-time.After(poll):
		}
	}
}

// bootMachine boots a machine and waits until it runs. The machine ends with the test.
func bootMachine(t *testing.T) *machine {
	t.Helper()
	err := canBoot()
	var group *os.File
	if err == nil {
		group, err = newGroup()
	}
	if err != nil {
		must.True(t, os.Getenv("CI") == "", "This machine cannot run another systemd: %v", err)
		t.Skipf("This machine cannot run another systemd: %v", err) //nolint:forbidigo // with CI set, it fails
	}
	t.Cleanup(func() { removeGroup(t, group) })
	m := &machine{t: t, ended: make(chan struct{}), share: t.TempDir()}
	m.start(group, t.TempDir())
	deadline := time.After(patience)
	for !m.booted() {
		select {
		case <-m.ended:
			t.Fatalf("the machine ended: %v", m.cmd.ProcessState)
		case <-deadline:
			t.Fatal("the machine does not boot")
		case <-time.After(poll):
		}
	}
	m.openRoot()
	eventually(t, "logind runs", func() bool {
		state, err := m.service("systemd-logind.service").State(t.Context())
		return err == nil && state.Active == "active"
	})
	return m
}

func (m *machine) start(group *os.File, work string) {
	m.t.Helper()
	console := filepath.Join(m.share, "console")
	must.Do(m.t, os.WriteFile(console, nil, 0o600))
	m.cmd = exec.Command("/proc/self/exe")
	m.cmd.Env = append(os.Environ(), workVariable+"="+work, shareVariable+"="+m.share)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET,
		Pdeathsig:  unix.SIGKILL, UseCgroupFD: true, CgroupFD: int(group.Fd()),
	}
	var stderr bytes.Buffer
	m.cmd.Stderr = &stderr
	started := make(chan error)
	go func() {
		// PDEATHSIG refers to the parent thread, not to the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(m.ended)
		err := m.cmd.Start()
		started <- err
		if err == nil {
			_ = m.cmd.Wait()
		}
	}()
	must.Do(m.t, <-started)
	m.t.Cleanup(func() {
		_ = m.cmd.Process.Kill()
		<-m.ended
		if m.t.Failed() {
			log, _ := os.ReadFile(console)
			m.t.Logf("console of the machine:\n%s%s", log, stderr.Bytes())
			log, _ = os.ReadFile(filepath.Join(m.share, logName))
			m.t.Logf("log of the agent:\n%s", log)
		}
	})
}

// booted reports whether the process has changed its root. Before that, it still has the root of
// the real machine, whose systemd the tests must never call.
func (m *machine) booted() bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", m.cmd.Process.Pid, rootMarker))
	return err == nil
}

// openRoot keeps the root open, so that its path stays valid.
func (m *machine) openRoot() {
	m.t.Helper()
	root := must.Get(os.Open(fmt.Sprintf("/proc/%d/root", m.cmd.Process.Pid)))(m.t)
	m.t.Cleanup(func() { root.Close() })
	m.root = fmt.Sprintf("/proc/self/fd/%d", root.Fd())
	must.Get(os.Stat(m.root + rootMarker))(m.t)
}

func (m *machine) service(unit string) systemd.Service {
	return systemd.Service{Root: m.root, Unit: unit}
}

func (m *machine) client() *systemd.Client {
	m.t.Helper()
	client := must.Get(systemd.Dial(m.t.Context(), m.root))(m.t)
	m.t.Cleanup(func() { client.Close() })
	return client
}

// login calls a method of logind.
func (m *machine) login(method string, args ...any) *dbus.Call {
	m.t.Helper()
	call := m.tryLogin(method, args...)
	if call.Err != nil {
		m.t.Fatalf("%s: %v", method, call.Err)
	}
	return call
}

// reboot requests a reboot that no lock delays. It ignores the end of the connection.
func (m *machine) reboot() {
	m.t.Helper()
	if call := m.tryLogin("Reboot", false); call.Err != nil && !errors.Is(call.Err, io.EOF) && !errors.Is(call.Err, dbus.ErrClosed) {
		m.t.Fatalf("Reboot: %v", call.Err)
	}
}

func (m *machine) tryLogin(method string, args ...any) *dbus.Call {
	m.t.Helper()
	conn := must.Get(systemd.ConnectBus(m.t.Context(), m.root))(m.t)
	defer conn.Close()
	object := conn.Object("org.freedesktop.login1", "/org/freedesktop/login1")
	return object.Call("org.freedesktop.login1.Manager."+method, 0, args...)
}

// lockPIDs returns the PIDs of the processes that took the locks of the agent.
func (m *machine) lockPIDs() []uint32 {
	m.t.Helper()
	var locks []struct {
		What, Who, Why, Mode string
		UID, PID             uint32
	}
	must.Do(m.t, m.login("ListInhibitors").Store(&locks))
	var pids []uint32
	for _, lock := range locks {
		if lock.Who == logind.Who {
			pids = append(pids, lock.PID)
		}
	}
	return pids
}

// startTarget starts a unit without waiting, as `systemctl reboot` and logind do. It calls the
// functions in connected after it has connected to the bus.
func (m *machine) startTarget(unit string, connected ...func()) {
	m.t.Helper()
	m.startUnit(unit, "replace-irreversibly", connected...)
}

func (m *machine) startUnit(unit, mode string, connected ...func()) {
	m.t.Helper()
	conn := must.Get(systemd.ConnectBus(m.t.Context(), m.root))(m.t)
	defer conn.Close()
	for _, f := range connected {
		f()
	}
	var job dbus.ObjectPath
	object := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	must.Do(m.t, object.Call("org.freedesktop.systemd1.Manager.StartUnit", 0, unit, mode).Store(&job))
}

// mustEnd waits until the machine goes down, and checks the signal that the kernel sends to its
// init process.
func (m *machine) mustEnd(want syscall.Signal) {
	m.t.Helper()
	select {
	case <-m.ended:
	case <-time.After(patience):
		m.t.Fatal("the machine does not go down")
	}
	if status, ok := m.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != want {
		m.t.Errorf("the machine ended by %v, want %v", m.cmd.ProcessState, want)
	}
}

// mustRun fails the test if the machine went down.
func (m *machine) mustRun() {
	m.t.Helper()
	select {
	case <-m.ended:
		m.t.Fatalf("the machine went down: %v", m.cmd.ProcessState)
	default:
	}
}

// options returns the options with which the tests install the agent.
func (m *machine) options(modify ...func(*install.Options)) install.Options {
	o := install.Options{Root: m.root, Args: []string{"run"}, MaxDelay: 20 * time.Minute}
	for _, f := range modify {
		f(&o)
	}
	return o
}

// install installs the agent. It fails the test if the installation does not report wantChanged.
func (m *machine) install(wantChanged bool, modify ...func(*install.Options)) {
	m.t.Helper()
	changed, err := install.Install(m.t.Context(), m.options(modify...))
	if err != nil || changed != wantChanged {
		m.t.Fatalf("installed, changed: %t, %v; want changed: %t", changed, err, wantChanged)
	}
}

// kill sends a signal to the agent.
func (m *machine) kill(signal syscall.Signal) {
	m.t.Helper()
	must.Do(m.t, m.client().KillUnit(m.t.Context(), install.Unit, signal))
}

// records returns the records of all processes of the agent.
func (m *machine) records() []record {
	m.t.Helper()
	content, err := os.ReadFile(filepath.Join(m.share, logName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatal(err)
	}
	var records []record
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		var r record
		// The last line may be incomplete.
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			records = append(records, r)
		}
	}
	return records
}

// until waits until the last record of the agent satisfies the condition.
func (m *machine) until(what string, condition func(record) bool) record {
	m.t.Helper()
	var last record
	eventually(m.t, what, func() bool {
		m.mustRun()
		records := m.records()
		if len(records) == 0 {
			return false
		}
		last = records[len(records)-1]
		return condition(last)
	})
	return last
}

// newGroup creates a cgroup for a machine.
func newGroup() (*os.File, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(before); strings.HasPrefix(after, "cgroup2 ") && len(fields) > 4 {
			dir, err := os.MkdirTemp(fields[4], "haulout-test-")
			if err != nil {
				return nil, err
			}
			return os.Open(dir)
		}
	}
	return nil, errors.New("no cgroup2 is mounted")
}

// removeGroup removes a cgroup and all cgroups in it when their processes have ended.
func removeGroup(t *testing.T, group *os.File) {
	t.Helper()
	defer group.Close()
	eventually(t, "the cgroup of the machine is empty", func() bool {
		var dirs []string
		must.Do(t, filepath.WalkDir(group.Name(), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		}))
		// Remove the innermost cgroups first.
		for _, dir := range slices.Backward(dirs) {
			if err := unix.Rmdir(dir); err != nil {
				return false
			}
		}
		return true
	})
}

// canBoot returns an error if the machine lacks something that the tests need.
func canBoot() error {
	if os.Getuid() != 0 {
		return errors.New("the tests must run as root")
	}
	for path, name := range map[string]string{systemdBinary: "systemd", "/lib/systemd/systemd-logind": "systemd", "/usr/bin/dbus-daemon": "dbus"} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("Debian's package %s is not installed: %w", name, err)
		}
	}
	return nil
}
