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
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const (
	systemdName = "org.freedesktop.systemd1"
	systemdPath = dbus.ObjectPath("/org/freedesktop/systemd1")
)

// property is an element of a(sv).
type property struct {
	Name  string
	Value dbus.Variant
}

type auxiliary struct {
	Name       string
	Properties []property
}

// fakeSystemd stores what it was asked.
type fakeSystemd struct {
	conn *dbus.Conn

	mu         sync.Mutex
	properties []property
	size       int
}

func (s *fakeSystemd) seen() (properties []property, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.properties, s.size
}

// StartTransientUnit is what the kubelet calls for each pod with the systemd cgroup driver.
func (s *fakeSystemd) StartTransientUnit(name, _ string, properties []property, _ []auxiliary) (dbus.ObjectPath, *dbus.Error) {
	s.mu.Lock()
	s.properties = properties
	s.mu.Unlock()
	job := systemdPath + "/job/7"
	if err := s.conn.Emit(systemdPath, systemdName+".Manager.JobRemoved", uint32(7), job, name, "done"); err != nil {
		return "", dbus.MakeFailedError(err)
	}
	return job, nil
}

// Measure returns what it gets, and stores the size of it.
func (s *fakeSystemd) Measure(load []byte) ([]byte, *dbus.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size = len(load)
	return load, nil
}

// Swap returns a file descriptor for another one.
func (s *fakeSystemd) Swap(fd dbus.UnixFD) (dbus.UnixFD, *dbus.Error) {
	file := os.NewFile(uintptr(fd), "swapped")
	defer file.Close()
	if _, err := file.WriteString("seen"); err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	other, err := unix.MemfdCreate("answer", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	return dbus.UnixFD(other), nil
}

func (b *bench) newSystemd() *fakeSystemd {
	b.t.Helper()
	s := &fakeSystemd{conn: b.connect(b.system)}
	if err := s.conn.Export(s, systemdPath, systemdName+".Manager"); err != nil {
		b.t.Fatal(err)
	}
	if _, err := s.conn.RequestName(systemdName, dbus.NameFlagDoNotQueue); err != nil {
		b.t.Fatal(err)
	}
	return s
}

func TestCallsOfSystemdReachIt(t *testing.T) {
	b := newBench(t)
	systemd := b.newSystemd()
	conn := b.connect(b.busSocket())
	signals := make(chan *dbus.Signal, 4)
	conn.Signal(signals)
	if err := conn.AddMatchSignal(dbus.WithMatchSender(systemdName), dbus.WithMatchMember("JobRemoved")); err != nil {
		t.Fatal(err)
	}
	manager := conn.Object(systemdName, systemdPath)
	want := []property{
		{"Description", dbus.MakeVariant("kubepods slice")}, {"MemoryMax", dbus.MakeVariant(uint64(1 << 40))},
		{"DeviceAllow", dbus.MakeVariant([]struct{ Path, Access string }{{"/dev/null", "rwm"}})}, {"PIDs", dbus.MakeVariant([]uint32{1, 2})},
	}
	var job dbus.ObjectPath
	if err := manager.Call(systemdName+".Manager.StartTransientUnit", 0, "kubepods.slice", "replace", want, []auxiliary{}).Store(&job); err != nil {
		t.Fatal(err)
	}
	same := func(a, b property) bool { return a.Name == b.Name && a.Value.Signature() == b.Value.Signature() }
	if got, _ := systemd.seen(); !slices.EqualFunc(got, want, same) || fmt.Sprint(got[:2]) != fmt.Sprint(want[:2]) {
		t.Errorf("systemd got %v, want %v", got, want)
	}
	for told, limit := false, time.After(patience); !told; {
		select {
		case signal := <-signals:
			told = len(signal.Body) == 4 && signal.Body[1] == job
		case <-limit:
			t.Fatal("the end of the job did not reach the kubelet")
		}
	}
	var failure dbus.Error
	if err := manager.Call(systemdName+".Manager.Missing", 0).Err; !errors.As(err, &failure) || failure.Name != "org.freedesktop.DBus.Error.UnknownMethod" {
		t.Errorf("a method that does not exist: %v", err)
	}
}

func TestFilesAndLargeMessagesPass(t *testing.T) {
	b := newBench(t)
	systemd := b.newSystemd()
	manager := b.connect(b.busSocket()).Object(systemdName, systemdPath)
	for range 2 {
		mine, err := os.CreateTemp(b.t.TempDir(), "mine")
		if err != nil {
			t.Fatal(err)
		}
		var answer dbus.UnixFD
		if err := manager.Call(systemdName+".Manager.Swap", 0, dbus.UnixFD(mine.Fd())).Store(&answer); err != nil {
			t.Fatal(err)
		}
		if link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", answer)); err != nil || !strings.Contains(link, "memfd:answer") {
			t.Errorf("got the file %s, %v; want that of the answer", link, err)
		}
		if content, err := os.ReadFile(mine.Name()); err != nil || string(content) != "seen" {
			t.Errorf("the file has %q, %v; want what the other side has written", content, err)
		}
		_ = unix.Close(int(answer))
		mine.Close()
	}
	const size = 2 << 20
	var back []byte
	if err := manager.Call(systemdName+".Manager.Measure", 0, make([]byte, size)).Store(&back); err != nil {
		t.Fatal(err)
	}
	if _, arrived := systemd.seen(); arrived != size || len(back) != size {
		t.Errorf("%d bytes arrived and %d came back, want %d", arrived, len(back), size)
	}
}
