// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	systemdBinary = "/lib/systemd/systemd"
	// rootMarker is a file that exists only in the root file system of the test machine.
	rootMarker = "/haulout-test-machine"
	shareDir   = "/haulout-test-share"
	bootTarget = "haulout-test.target"
)

// bootUnits are the units of the test machine, in addition to those of systemd and dbus.
var bootUnits = map[string]string{
	bootTarget: `[Unit]
Requires=basic.target dbus.socket dbus.service systemd-logind.service
After=basic.target kubelet.service
AllowIsolate=yes
`,
	"kubelet.service": `[Service]
ExecStart=/bin/sleep infinity
Restart=always
RestartSec=100ms
`,
	"broken.service": `[Service]
Type=oneshot
ExecStart=/bin/false
`,
	"slow.service": `[Service]
Type=oneshot
ExecStart=/bin/sleep infinity
`,
}

// boot becomes the init process of the test machine. It is called in new namespaces, builds a root
// file system from that of the real machine, and executes systemd in it. It returns only on errors.
func boot(work, share string) error {
	// The cgroup namespace belongs to the thread, so the same thread must execute systemd.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare the cgroups: %w", err)
	}
	root, layers := filepath.Join(work, "root"), filepath.Join(work, "layers")
	for _, dir := range []string{root, layers} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mountRoot(root, layers, share); err != nil {
		return err
	}
	if err := configureRoot(root); err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the old root: %w", err)
	}
	// Drop the capabilities with which systemd could change parts of the real machine that
	// namespaces do not isolate.
	for _, capability := range []uintptr{unix.CAP_SYS_MODULE, unix.CAP_SYS_TIME, unix.CAP_SYS_RAWIO, unix.CAP_SYSLOG, unix.CAP_AUDIT_CONTROL} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", capability, err)
		}
	}
	arguments := []string{systemdBinary, "--system", "--unit=" + bootTarget, "--log-target=console", "--log-color=0", "--show-status=0"}
	environment := []string{"container=lxc", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TERM=linux"}
	return fmt.Errorf("execute systemd: %w", unix.Exec(systemdBinary, arguments, environment))
}

// mountRoot mounts all parts of the new root.
func mountRoot(root, layers, share string) error {
	// Use paths relative to the directory of the layers, because a comma in a path would end the
	// mount option.
	if err := os.Chdir(layers); err != nil {
		return err
	}
	type mount struct {
		source, target, fstype string
		flags                  uintptr
		data                   string
	}
	for _, m := range []mount{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
		{"tmpfs", ".", "tmpfs", 0, ""},
	} {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
		}
	}
	if err := os.Chdir(layers); err != nil {
		return err
	}
	for _, dir := range []string{"upper", "work"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	mounts := []mount{
		{"overlay", root, "overlay", 0, "lowerdir=/,upperdir=upper,workdir=work"},
		{"proc", root + "/proc", "proc", 0, ""},
		{root + "/proc/sys", root + "/proc/sys", "", unix.MS_BIND, ""},
		{"", root + "/proc/sys", "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY, ""},
		{"sysfs", root + "/sys", "sysfs", unix.MS_RDONLY, ""},
		{"cgroup2", root + "/sys/fs/cgroup", "cgroup2", 0, ""},
		{"tmpfs", root + "/run", "tmpfs", 0, "mode=755"},
		{"tmpfs", root + "/tmp", "tmpfs", 0, ""},
		{"tmpfs", root + "/dev", "tmpfs", 0, "mode=755"},
		{share, root + shareDir, "", unix.MS_BIND, ""},
		{filepath.Join(share, "console"), root + "/dev/console", "", unix.MS_BIND, ""},
		{"devpts", root + "/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666"},
	}
	for _, device := range []string{"null", "zero", "full", "random", "urandom"} {
		mounts = append(mounts, mount{"/dev/" + device, root + "/dev/" + device, "", unix.MS_BIND, ""})
	}
	for _, m := range mounts {
		if err := makeMountPoint(m.source, m.target); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
		}
	}
	return errors.Join(
		os.Mkdir(root+"/dev/shm", 0o1777), os.Symlink("pts/ptmx", root+"/dev/ptmx"), os.Symlink("/proc/self/fd", root+"/dev/fd"),
	)
}

// makeMountPoint makes the target of a mount: a file if a file is bound to it, otherwise a
// directory.
func makeMountPoint(source, target string) error {
	if info, err := os.Stat(source); err == nil && !info.IsDir() {
		return os.WriteFile(target, nil, 0o644)
	}
	return os.MkdirAll(target, 0o755)
}

// configureRoot removes the units of the real machine from the new root, and adds the units of the
// test.
func configureRoot(root string) error {
	for _, gone := range []string{
		"/etc/systemd", "/etc/fstab", "/etc/machine-id", "/usr/lib/systemd/system-generators", "/usr/local/lib/systemd", "/usr/lib/systemd/logind.conf.d",
	} {
		if err := os.RemoveAll(root + gone); err != nil {
			return err
		}
	}
	wants, err := filepath.Glob(root + "/usr/lib/systemd/system/*.wants")
	if err != nil {
		return err
	}
	for _, dir := range wants {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	units := root + "/etc/systemd/system"
	if err := os.MkdirAll(units, 0o755); err != nil {
		return err
	}
	for name, content := range bootUnits {
		if err := os.WriteFile(filepath.Join(units, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return errors.Join(
		os.Symlink("/dev/null", units+"/modprobe@.service"),
		os.WriteFile(root+"/etc/machine-id", []byte("0123456789abcdef0123456789abcdef\n"), 0o444),
		os.WriteFile(root+rootMarker, nil, 0o444),
	)
}
