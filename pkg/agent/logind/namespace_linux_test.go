// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package logind_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The tests need a separate machine. Each test runs the test binary again in new namespaces, in
// which /run, /etc/systemd and /var/lib/systemd are empty and the processes end with the test. This
// has no effect on the real machine.

// roleVariable passes the role of the process to the test binary.
const roleVariable = "HAULOUT_LOGIND_TEST_ROLE"

const (
	roleNamespace = "namespace"
	roleHolder    = "holder"

	logindPath = "/lib/systemd/systemd-logind"
)

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case roleNamespace:
		if err := hideMachine(); err != nil {
			fmt.Fprintln(os.Stderr, "prepare the namespaces:", err)
			os.Exit(1)
		}
	case roleHolder:
		if err := hold(); err != nil {
			fmt.Fprintln(os.Stderr, "hold a lock:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// hideMachine hides the folders of the real machine. It must run in the new namespaces.
func hideMachine() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/etc/systemd", "/var/lib/systemd"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"dbus", "systemd/inhibit", "systemd/seats", "systemd/sessions", "systemd/users", "systemd/shutdown", "systemd/system"} {
		if err := os.MkdirAll("/run/"+dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// withLogind runs a test with a real logind, in new namespaces.
func withLogind(t *testing.T, test func(*testing.T, *bench)) {
	t.Helper()
	if os.Getenv(roleVariable) == roleNamespace {
		test(t, newBench(t))
		return
	}
	t.Parallel()
	if err := canRun(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("This machine cannot run a logind: %v", err)
		}
		t.Skipf("This machine cannot run a logind: %v", err) //nolint:forbidigo // with CI set, it fails
	}
	// PDEATHSIG refers to the parent thread, not to the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(t.Name()), "/", "$/^") + "$"
	cmd := exec.Command(os.Args[0], "-test.run="+pattern, "-test.count=1", "-test.timeout=100s", "-test.v")
	cmd.Env = append(os.Environ(), roleVariable+"="+roleNamespace)
	cmd.SysProcAttr = newNamespaces()
	output, err := cmd.CombinedOutput()
	// Check the output as well: go test also succeeds if the pattern matches no test.
	if err != nil || !strings.Contains(string(output), "--- PASS: "+t.Name()+" (") {
		t.Errorf("in the namespaces: %v\n%s", err, output)
	}
}

func newNamespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Pdeathsig:  unix.SIGKILL,
	}
}

// canRun returns an error if the machine lacks something that the tests need.
func canRun() error {
	if os.Getuid() != 0 {
		return errors.New("the tests must run as root")
	}
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		return fmt.Errorf("Debian's package dbus is not installed: %w", err)
	}
	if _, err := os.Stat(logindPath); err != nil {
		return fmt.Errorf("Debian's package systemd is not installed: %w", err)
	}
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = newNamespaces()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("new namespaces: %w", err)
	}
	return nil
}
