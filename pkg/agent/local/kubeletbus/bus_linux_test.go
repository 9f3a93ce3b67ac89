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

package kubeletbus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"k8s.io/klog/v2/ktesting"

	"haulout.dev/haulout/pkg/agent/state"
)

const (
	patience = 30 * time.Second
	poll     = 5 * time.Millisecond
)

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

// bench has a real D-Bus daemon as the system bus, and the kubelet's bus in front of it.
type bench struct {
	t       *testing.T
	ctx     context.Context
	dir     string
	system  string
	stopBus func()

	mu    sync.Mutex
	calls []string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("dbus-daemon is missing (Debian: package dbus)") //nolint:forbidigo // with CI set, it fails
	}
	_, ctx := ktesting.NewTestContext(t)
	// The path of a socket has at most 107 characters.
	dir, err := os.MkdirTemp("", "bus") //nolint:usetesting // the name of the test makes t.TempDir too long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &bench{t: t, ctx: ctx, dir: filepath.Join(dir, "private"), system: filepath.Join(dir, "system.sock")}
	b.startSystemBus()
	b.startBus()
	return b
}

func (b *bench) startSystemBus() {
	b.t.Helper()
	config := b.system + ".conf"
	text := fmt.Sprintf(`<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>custom</type><listen>unix:path=%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/><allow user="*"/></policy></busconfig>`, b.system)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.Command("dbus-daemon", "--config-file="+config, "--nofork", "--nopidfile", "--print-address=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.t.Fatalf("dbus-daemon did not start: %v", err)
	}
}

// startBus starts the kubelet's bus. It ends with the test, or by stopBus.
func (b *bench) startBus() {
	b.t.Helper()
	bus, err := New(Config{Dir: b.dir, System: b.system})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- bus.Run(ctx, func() { close(ready) }) }()
	b.stopBus = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Errorf("the bus ended: %v", err)
		}
	})
	b.t.Cleanup(b.stopBus)
	<-ready
}

func (b *bench) connect(socket string) *dbus.Conn {
	b.t.Helper()
	conn, err := dbus.Connect("unix:path="+socket, dbus.WithContext(b.t.Context()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	return conn
}

func (b *bench) busSocket() string { return filepath.Join(b.dir, BusSocket) }

// kubelet does what the kubelet does on its bus.
type kubelet struct {
	t       *testing.T
	conn    *dbus.Conn
	lock    *os.File
	signals chan *dbus.Signal
}

func (b *bench) newKubelet() *kubelet {
	b.t.Helper()
	k := &kubelet{t: b.t, conn: b.connect(b.busSocket()), signals: make(chan *dbus.Signal, 16)}
	k.inhibit()
	if err := k.conn.AddMatchSignal(dbus.WithMatchInterface(loginInterface), dbus.WithMatchMember(prepareMember), dbus.WithMatchObjectPath(loginPath)); err != nil {
		b.t.Fatal(err)
	}
	k.conn.Signal(k.signals)
	return k
}

func (k *kubelet) inhibit() {
	k.t.Helper()
	var fd dbus.UnixFD
	err := k.conn.Object(loginName, loginPath).Call(loginInterface+".Inhibit", 0, "shutdown", "kubelet", "a test", "delay").Store(&fd)
	if err != nil {
		k.t.Fatal(err)
	}
	k.lock = os.NewFile(uintptr(fd), "lock")
	k.t.Cleanup(func() { k.lock.Close() })
}

func (k *kubelet) release() {
	k.t.Helper()
	if err := k.lock.Close(); err != nil {
		k.t.Fatal(err)
	}
}

// mustHear waits for the signal.
func (k *kubelet) mustHear(want bool) {
	k.t.Helper()
	select {
	case signal := <-k.signals:
		if signal.Name != loginInterface+"."+prepareMember || signal.Path != loginPath || !reflect.DeepEqual(signal.Body, []any{want}) {
			k.t.Fatalf("the kubelet got %+v, want PrepareForShutdown(%t)", signal, want)
		}
	case <-time.After(patience):
		k.t.Fatalf("the kubelet did not hear PrepareForShutdown(%t)", want)
	}
}

// Stop and Start implement Kubelet, and End and Resume shutdown.Local for the fallback.
func (b *bench) Stop(context.Context) error  { b.called("stop"); return nil }
func (b *bench) Start(context.Context) error { b.called("start"); return nil }
func (b *bench) Name() string                { return "fallback" }
func (b *bench) End(context.Context, state.Local, time.Time, func(state.Local, []state.KilledPod) bool) error {
	b.called("end")
	return nil
}
func (b *bench) Resume(context.Context) error { b.called("resume"); return nil }

func (b *bench) called(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, what)
}

func (b *bench) mustHaveCalled(want ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.calls, want) {
		b.t.Errorf("calls %q, want %q", b.calls, want)
	}
}

func (b *bench) engine() *Engine {
	b.t.Helper()
	e, err := NewEngine(EngineConfig{Dir: b.dir, Kubelet: b, Fallback: b})
	if err != nil {
		b.t.Fatal(err)
	}
	return e
}

// end lets an engine end the pods.
func (b *bench) end(ctx context.Context) <-chan error {
	b.t.Helper()
	ended := make(chan error, 1)
	engine := b.engine()
	go func() {
		ended <- engine.End(ctx, state.Local{}, time.Time{}, func(state.Local, []state.KilledPod) bool {
			b.t.Error("next was called, and the kubelet cannot be interrupted")
			return true
		})
	}()
	return ended
}

func (b *bench) mustEnd(ended <-chan error) {
	b.t.Helper()
	select {
	case err := <-ended:
		if err != nil {
			b.t.Errorf("End returned %v", err)
		}
	case <-time.After(patience):
		b.t.Fatal("End does not return")
	}
}

func mustRun(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case err := <-ended:
		t.Fatalf("End returned %v while the kubelet worked", err)
	default:
	}
}

func (b *bench) status() Status {
	b.t.Helper()
	status, err := newControl(b.dir).call(b.t.Context(), "GET", pathStatus)
	if err != nil {
		b.t.Fatal(err)
	}
	return status
}

func TestTheKubeletEndsThePods(t *testing.T) {
	b := newBench(t)
	k := b.newKubelet()
	if problem := b.engine().Problem(t.Context()); problem != "" {
		t.Errorf("problem %q with a kubelet that has a lock", problem)
	}
	ended := b.end(t.Context())
	k.mustHear(true)
	if status := b.status(); status != (Status{Locks: 1, Pending: true}) {
		t.Errorf("status %+v while the kubelet works", status)
	}
	mustRun(t, ended)
	k.release()
	b.mustEnd(ended)
	if status := b.status(); status != (Status{Pending: true, Done: true}) {
		t.Errorf("status %+v after the end", status)
	}
	// Another process of the agent asks again. The kubelet must not hear of it.
	b.mustEnd(b.end(t.Context()))
	if err := b.engine().Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.mustHear(false)
	b.mustHaveCalled("stop", "start")
}

func TestTheDelayIsLongEnoughForAllTables(t *testing.T) {
	b := newBench(t)
	object := b.connect(b.busSocket()).Object(loginName, loginPath)
	for property, want := range map[string]any{
		"InhibitDelayMaxUSec": uint64(30 * 24 * time.Hour / time.Microsecond), "PreparingForShutdown": false,
	} {
		value, err := object.GetProperty(loginInterface + "." + property)
		if err != nil || value.Value() != want {
			t.Errorf("%s is %v, %v; want %v", property, value, err, want)
		}
	}
	for name, call := range map[string]*dbus.Call{
		"another property": object.Call("org.freedesktop.DBus.Properties.Get", 0, loginInterface, "IdleHint"),
		"no property":      object.Call("org.freedesktop.DBus.Properties.Get", 0, uint32(1)),
		"another method":   object.Call(loginInterface+".Reboot", 0, false),
		"another lock":     object.Call(loginInterface+".Inhibit", 0, "sleep", "kubelet", "", "delay"),
		"a block":          object.Call(loginInterface+".Inhibit", 0, "shutdown", "kubelet", "", "block"),
	} {
		var failure dbus.Error
		if !errors.As(call.Err, &failure) || !strings.HasPrefix(failure.Name, "org.freedesktop.DBus.Error.") {
			t.Errorf("%s: got %v, want an error of D-Bus", name, call.Err)
		}
	}
}

// TestARestartOfTheKubelet: the lock of a kubelet that dies is released, too. The next one has to
// end the rest.
func TestARestartOfTheKubelet(t *testing.T) {
	b := newBench(t)
	k := b.newKubelet()
	ended := b.end(t.Context())
	k.mustHear(true)
	k.release()
	k.conn.Close()
	next := b.newKubelet()
	next.mustHear(true)
	mustRun(t, ended)
	next.release()
	b.mustEnd(ended)
	b.mustHaveCalled()
}

func TestARestartOfTheBus(t *testing.T) {
	b := newBench(t)
	k := b.newKubelet()
	ended := b.end(t.Context())
	k.mustHear(true)
	b.stopBus()
	b.startBus()
	eventually(t, "the kubelet's connection is lost", func() bool { return !k.conn.Connected() })
	next := b.newKubelet()
	next.mustHear(true)
	mustRun(t, ended)
	next.release()
	b.mustEnd(ended)
	b.mustHaveCalled()
}

func TestAKubeletWithoutALock(t *testing.T) {
	for name, kubelet := range map[string]func(*bench){
		"none":                    func(*bench) {},
		"that has lost its lock":  func(b *bench) { b.newKubelet().release() },
		"without a bus to ask on": func(b *bench) { b.stopBus() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			kubelet(b)
			eventually(t, "the problem is named", func() bool { return strings.Contains(b.engine().Problem(t.Context()), "fallback would") })
			b.mustEnd(b.end(t.Context()))
			b.mustHaveCalled("end")
		})
	}
}

func TestEndIsInterrupted(t *testing.T) {
	b := newBench(t)
	k := b.newKubelet()
	ctx, cancel := context.WithCancel(t.Context())
	ended := b.end(ctx)
	k.mustHear(true)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("End returned %v, want that it was cancelled", err)
	}
	b.mustHaveCalled()
	if err := b.engine().End(t.Context(), state.Local{Done: true}, time.Time{}, nil); err != nil {
		t.Error(err)
	}
}

func TestResumeNamesWhatFails(t *testing.T) {
	b := newBench(t)
	b.stopBus()
	if err := b.engine().Resume(t.Context()); err == nil {
		t.Error("no error without a bus: it may still wait for the kubelet")
	}
	b.mustHaveCalled("stop", "start")
}

func TestSignalsOfTheRealLogindDoNotReachTheKubelet(t *testing.T) {
	b := newBench(t)
	k := b.newKubelet()
	if err := k.conn.AddMatchSignal(dbus.WithMatchInterface("test.Interface")); err != nil {
		t.Fatal(err)
	}
	host := b.connect(b.system)
	if _, err := host.RequestName(loginName, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		host.Emit(loginPath, loginInterface+"."+prepareMember, true),
		host.Emit(loginPath, "test.Interface.Signal", true),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	select {
	case signal := <-k.signals:
		if signal.Name != "test.Interface.Signal" {
			t.Errorf("the kubelet got %+v", signal)
		}
	case <-time.After(patience):
		t.Fatal("another signal did not reach the kubelet")
	}
}

func TestWithoutASystemBus(t *testing.T) {
	b := newBench(t)
	b.stopBus()
	b.system += ".missing"
	b.startBus()
	if conn, err := dbus.Connect("unix:path=" + b.busSocket()); err == nil {
		conn.Close()
		t.Error("connected without a system bus")
	}
	if status := b.status(); status != (Status{}) {
		t.Errorf("status %+v, want that of a bus that can be asked", status)
	}
}

func TestOnlyRootReachesTheBus(t *testing.T) {
	b := newBench(t)
	for path, want := range map[string]os.FileMode{b.dir: 0o700 | os.ModeDir, b.busSocket(): 0o600 | os.ModeSocket, filepath.Join(b.dir, ControlSocket): 0o600 | os.ModeSocket} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want mode %s", path, info, err, want)
		}
	}
}

func TestNewChecks(t *testing.T) {
	for _, c := range []Config{{}, {Dir: "relative", System: "/s"}, {Dir: "/d", System: "relative"}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
	if _, err := NewEngine(EngineConfig{Dir: "/d"}); err == nil {
		t.Error("an engine without a kubelet: no error")
	}
}
