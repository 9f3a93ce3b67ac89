// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"haulout.dev/haulout/pkg/testing/must"
)

// childEnv is the environment variable of the child processes of a test.
const childEnv = "HAULOUT_STATE_TEST_DIR"

// child returns the command that runs one test of this program again.
func child(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	return cmd
}

// TestKilledWhileSaving kills a process that stores states one after the other: the stored state
// must be complete, and no state may be lost after Save has returned.
func TestKilledWhileSaving(t *testing.T) {
	if dir := os.Getenv(childEnv); dir != "" {
		saveForever(t, dir)
		return
	}
	dir := t.TempDir()
	for round := range 20 {
		cmd := child(t, dir)
		stdout := must.Get(cmd.StdoutPipe())(t)
		must.Do(t, cmd.Start())
		saved := 0
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if n, ok := strings.CutPrefix(lines.Text(), "saved "); ok {
				saved = must.Get(strconv.Atoi(n))(t)
				// Use another number in each round, so that each round kills the process at another
				// moment.
				if saved == 3+round*7 {
					must.Do(t, cmd.Process.Kill())
				}
			}
		}
		_ = cmd.Wait() // the process was killed
		must.True(t, saved >= 3+round*7, "the child ended after %d states", saved)
		state := load(t, open(t, dir))
		if state.Local == nil || state.Local.Bucket < saved || len(state.Killed) != 100 {
			t.Fatalf("after state %d was stored, the file has %+v", saved, state.Local)
		}
	}
}

func saveForever(t *testing.T, dir string) {
	t.Helper()
	s := open(t, dir)
	for n := 1; ; n++ {
		state := full()
		state.Local.Bucket = n
		state.Killed = make([]KilledPod, 100)
		save(t, s, state)
		must.Get(fmt.Fprintf(os.Stdout, "saved %d\n", n))(t)
	}
}

// TestFullDisk stores the state on a real file system that is full.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv(childEnv); dir != "" {
		saveOnFullDisk(t, dir)
		return
	}
	inOwnMounts(t)
}

// inOwnMounts runs the test again in a process that can mount file systems.
func inOwnMounts(t *testing.T) {
	t.Helper()
	cmd := child(t, t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
	}
	output, err := cmd.CombinedOutput()
	must.True(t, err == nil, "%v\n%s", err, output)
}

func saveOnFullDisk(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mount a small file system: %v", err)
	}
	s := open(t, dir)
	save(t, s, full())
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk ended with %v", err)
	}
	next := State{Version: Version, BootID: "b", Phase: Armed, Killed: make([]KilledPod, 100)}
	for range 3 {
		if err := s.Save(next); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("the error is %v, want %v", err, unix.ENOSPC)
		}
		if diff := cmp.Diff(full(), load(t, open(t, dir))); diff != "" {
			t.Fatalf("the state differs (-want +got):\n%s", diff)
		}
	}
	must.Do(t, os.Remove(filler))
	save(t, s, next)
	if diff := cmp.Diff(next, load(t, open(t, dir))); diff != "" {
		t.Errorf("the state differs (-want +got):\n%s", diff)
	}
}

// TestDiskThatBecomesReadOnly restarts the agent after the kernel has mounted the disk read-only.
func TestDiskThatBecomesReadOnly(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		inOwnMounts(t)
		return
	}
	run := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mount a small file system: %v", err)
	}
	s := must.Get(Open(dir, run))(t)
	save(t, s, full())
	must.Do(t, errors.Join(s.Lock(), s.lock.Close()))
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatalf("mount it read-only: %v", err)
	}
	again := must.Get(Open(dir, run))(t)
	must.Do(t, again.Lock())
	if diff := cmp.Diff(full(), load(t, again)); diff != "" {
		t.Errorf("the state differs (-want +got):\n%s", diff)
	}
	next := State{Version: Version, BootID: "b", Phase: Armed}
	if err := again.Save(next); !errors.Is(err, unix.EROFS) {
		t.Errorf("the error is %v, want %v", err, unix.EROFS)
	}
	if stored, err := Read(dir, run); err != nil || stored.Phase != Armed {
		t.Errorf("got the state %+v, %v, want the second copy", stored, err)
	}
	second := must.Get(Open(dir, run))(t)
	if err := second.Lock(); err == nil {
		t.Error("a second agent uses the directory")
	}
}

func TestBootIDIsTheKernels(t *testing.T) {
	data := must.Get(os.ReadFile("/proc/sys/kernel/random/boot_id"))(t)
	if got, err := BootID(); err != nil || got != strings.TrimSpace(string(data)) {
		t.Errorf("the boot is %q, %v, want %s", got, err, data)
	}
}
