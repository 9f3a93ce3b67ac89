// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package logind_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"k8s.io/klog/v2/ktesting"

	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	patience = 30 * time.Second
	poll     = 5 * time.Millisecond

	loginName = "org.freedesktop.login1"
	loginPath = dbus.ObjectPath("/org/freedesktop/login1")
	login     = "org.freedesktop.login1.Manager"

	etcDropIns = "/etc/systemd/logind.conf.d"
)

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

// bench is a bus with a logind and the fake systemd that logind needs.
type bench struct {
	t            *testing.T
	dbus, logind *exec.Cmd
	conn         *dbus.Conn
	systemd      *fakeSystemd
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t}
	b.startBus()
	b.startLogind()
	return b
}

// startBus starts the bus daemon, and the fake systemd on the bus.
func (b *bench) startBus() {
	b.t.Helper()
	_ = os.Remove("/run/dbus/system_bus_socket")
	b.dbus = exec.Command("dbus-daemon", "--system", "--nofork", "--nopidfile", "--print-address=1")
	b.dbus.Stderr = os.Stderr
	out := must.Get(b.dbus.StdoutPipe())(b.t)
	must.Do(b.t, b.dbus.Start())
	// The daemon prints its address when it accepts connections.
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.t.Fatalf("dbus-daemon did not start: %v", err)
	}
	b.conn = must.Get(dbus.SystemBusPrivate())(b.t)
	must.Do(b.t, b.conn.Auth(nil))
	must.Do(b.t, b.conn.Hello())
	b.systemd = &fakeSystemd{bench: b, conn: b.conn, started: make(chan string, 16)}
	b.systemd.export()
}

func (b *bench) startLogind() {
	b.t.Helper()
	b.logind = exec.Command(logindPath)
	b.logind.Env = append(os.Environ(), "SYSTEMD_LOG_TARGET=console", "SYSTEMD_LOG_LEVEL=info")
	b.logind.Stdout, b.logind.Stderr = os.Stdout, os.Stderr
	must.Do(b.t, b.logind.Start())
	eventually(b.t, "logind is on the bus", func() bool {
		var has bool
		err := b.conn.BusObject().Call("org.freedesktop.DBus.NameHasOwner", 0, loginName).Store(&has)
		return err == nil && has
	})
}

// kill kills a process, which simulates a crash.
func (b *bench) kill(cmd *exec.Cmd) {
	b.t.Helper()
	must.Do(b.t, cmd.Process.Kill())
	_ = cmd.Wait()
}

func (b *bench) restartLogind() {
	b.t.Helper()
	b.kill(b.logind)
	b.startLogind()
}

// restartBus restarts the bus, and also logind, as systemd would: logind of systemd 252 hangs
// without the bus.
func (b *bench) restartBus() {
	b.t.Helper()
	b.kill(b.dbus)
	b.kill(b.logind)
	b.startBus()
	b.startLogind()
}

// call calls a method of logind.
func (b *bench) call(method string, args ...any) *dbus.Call {
	b.t.Helper()
	call := b.conn.Object(loginName, loginPath).Call(login+"."+method, 0, args...)
	if call.Err != nil {
		b.t.Fatalf("%s: %v", method, call.Err)
	}
	return call
}

func (b *bench) reboot() {
	b.t.Helper()
	b.call("Reboot", false)
}

// property reads a property of logind. logind has one thread, so after the response it has handled
// all earlier messages.
func (b *bench) property(name string) any {
	b.t.Helper()
	value, err := b.conn.Object(loginName, loginPath).GetProperty(login + "." + name)
	must.True(b.t, err == nil, "read %s: %v", name, err)
	return value.Value()
}

type inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

// locks returns the logind locks of a program.
func (b *bench) locks(who string) []inhibitor {
	b.t.Helper()
	var all, found []inhibitor
	must.Do(b.t, b.call("ListInhibitors").Store(&all))
	for _, one := range all {
		if one.Who == who {
			found = append(found, one)
		}
	}
	return found
}

// inhibit takes a lock for another program, which delays shutdowns.
func (b *bench) inhibit(who string) *os.File {
	b.t.Helper()
	return b.lock(who, "delay")
}

// lock takes a lock for another program.
func (b *bench) lock(who, mode string) *os.File {
	b.t.Helper()
	var fd dbus.UnixFD
	must.Do(b.t, b.call("Inhibit", "shutdown", who, "test", mode).Store(&fd))
	return os.NewFile(uintptr(fd), who)
}

// mustWait fails the test if the machine went down.
func (b *bench) mustWait() {
	b.t.Helper()
	must.True(b.t, b.property("PreparingForShutdown") == true, "no shutdown is pending")
	select {
	case unit := <-b.systemd.started:
		b.t.Fatalf("logind did not wait and started %s", unit)
	default:
	}
}

// mustGoDown waits until the machine goes down.
func (b *bench) mustGoDown(want string) {
	b.t.Helper()
	select {
	case unit := <-b.systemd.started:
		must.True(b.t, unit == want, "logind started %s, want %s", unit, want)
	case <-time.After(patience):
		b.t.Fatalf("logind did not start %s", want)
	}
}

// configure creates a configuration file of logind.
func (b *bench) configure(path, delay string) {
	b.t.Helper()
	must.Do(b.t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(b.t, os.WriteFile(path, []byte("[Login]\nInhibitDelayMaxSec="+delay+"\n"), 0o644))
}

// sighup makes logind read its configuration again.
func (b *bench) sighup() {
	b.t.Helper()
	must.Do(b.t, b.logind.Process.Signal(syscall.SIGHUP))
}

// fakeSystemd implements the methods of systemd that logind and the agent call.
type fakeSystemd struct {
	bench *bench
	conn  *dbus.Conn
	// started receives the targets that logind started: each such start takes the machine down.
	started chan string

	mu   sync.Mutex
	jobs []job
	fail bool
}

type job struct {
	ID             uint32
	Unit, Type, St string
	Path, UnitPath dbus.ObjectPath
}

const (
	systemdPath    = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdManager = "org.freedesktop.systemd1.Manager"
)

func (f *fakeSystemd) export() {
	t := f.bench.t
	t.Helper()
	must.Do(t, f.conn.Export(f, systemdPath, systemdManager))
	for _, target := range []string{"reboot", "poweroff", "halt", "kexec"} {
		path := dbus.ObjectPath("/org/freedesktop/systemd1/unit/" + target + "_2etarget")
		must.Do(t, f.conn.Export(loaded{}, path, "org.freedesktop.DBus.Properties"))
	}
	must.Get(f.conn.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue))(t)
}

// Subscribe is called before the agent watches the jobs.
func (f *fakeSystemd) Subscribe() *dbus.Error { return nil }

// StartUnit is called when the shutdown begins.
func (f *fakeSystemd) StartUnit(unit, _ string) (dbus.ObjectPath, *dbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started <- unit
	if f.fail {
		return "", dbus.NewError("org.freedesktop.systemd1.TransactionIsDestructive", []any{"refused by the test"})
	}
	id := uint32(len(f.jobs) + 1)
	path := dbus.ObjectPath(fmt.Sprintf("%s/job/%d", systemdPath, id))
	f.jobs = append(f.jobs, job{ID: id, Unit: unit, Type: "start", St: "running", Path: path, UnitPath: "/"})
	return path, nil
}

// ListJobs lists the jobs that are not cancelled.
func (f *fakeSystemd) ListJobs() ([]job, *dbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.jobs, nil
}

// KillUnit sends the signal to logind, which is the only unit on this bus.
func (f *fakeSystemd) KillUnit(unit, who string, signal int32) *dbus.Error {
	if unit != "systemd-logind.service" || who != "all" {
		return dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{unit})
	}
	if err := f.bench.logind.Process.Signal(syscall.Signal(signal)); err != nil {
		return dbus.MakeFailedError(err)
	}
	return nil
}

// cancelJob cancels the shutdown that has begun.
func (f *fakeSystemd) cancelJob() {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.jobs[len(f.jobs)-1]
	f.jobs = f.jobs[:len(f.jobs)-1]
	if err := f.conn.Emit(systemdPath, systemdManager+".JobRemoved", last.ID, last.Path, last.Unit, "canceled"); err != nil {
		f.bench.t.Fatal(err)
	}
}

func (f *fakeSystemd) refuse(refuse bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = refuse
}

// loaded has the properties of a loaded target.
type loaded struct{}

// Get returns LoadState, the only property that logind reads.
func (loaded) Get(_, _ string) (dbus.Variant, *dbus.Error) {
	return dbus.MakeVariant("loaded"), nil
}

// config returns the configuration of a Manager with short periods.
func config(modify ...func(*logind.Config)) logind.Config {
	c := logind.Config{Delay: time.Minute, RetryPeriod: 20 * time.Millisecond, ResyncPeriod: 50 * time.Millisecond}
	for _, m := range modify {
		m(&c)
	}
	return c
}

// agent is a running Manager with the channel of its notifications.
type agent struct {
	*logind.Manager
	t *testing.T
	// told is the channel that receives a value after each change of the state.
	told chan struct{}
}

// start runs a Manager until the test ends.
func start(t *testing.T, c logind.Config) *agent {
	t.Helper()
	a := &agent{Manager: logind.New(c), t: t, told: make(chan struct{}, 1)}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- a.Run(ctx, func() {
			select {
			case a.told <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	return a
}

// until waits for a state. It reads the state only after changed was called, so a change without a
// call fails the test.
func (a *agent) until(what string, condition func(shutdown.MachineState) bool) shutdown.MachineState {
	a.t.Helper()
	deadline := time.After(patience)
	for {
		if state := a.State(); condition(state) {
			return state
		}
		select {
		case <-a.told:
		case <-deadline:
			a.t.Fatalf("after %s still not: %s; state %+v", patience, what, a.State())
		}
	}
}

func locked(s shutdown.MachineState) bool { return s.LockHeld && len(s.Problems) == 0 }

func pending(s shutdown.MachineState) bool { return s.ShuttingDown }

func idle(s shutdown.MachineState) bool { return s.Known && !s.ShuttingDown && s.LockHeld }

// hold is the child process of a test: it runs a Manager in a separate process, and prints its
// state after each change.
func hold() error {
	manager := logind.New(config())
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	return manager.Run(context.Background(), func() {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(manager.State())
	})
}

// startHolder starts a process that runs hold, and waits until its Manager is in a state.
func (b *bench) startHolder(condition func(shutdown.MachineState) bool) (*exec.Cmd, shutdown.MachineState) {
	b.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+roleHolder)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	must.Do(b.t, cmd.Start())
	var state shutdown.MachineState
	for lines := json.NewDecoder(out); !condition(state); {
		state = shutdown.MachineState{}
		if err := lines.Decode(&state); err != nil {
			b.t.Fatalf("the holder ended: %v", err)
		}
	}
	return cmd, state
}
