// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine describes the properties of the machine on which real nodes depend.
type Machine struct {
	// Runc is the path of runc, Path the list of folders with the programs that a node calls.
	Runc, Path string
	// Snapshotter is the snapshotter of containerd that the file system of the cluster supports.
	Snapshotter string
}

// sbin are folders that the PATH of a user often lacks.
const sbin = "/usr/local/sbin:/usr/sbin:/sbin"

// FindMachine checks whether the machine can run real nodes with the cluster's files in dir. The
// error names everything that is missing.
func FindMachine(dir string) (Machine, error) { return findMachine(dir, sbin) }

func findMachine(dir, sbin string) (Machine, error) {
	m := Machine{Path: os.Getenv("PATH") + ":" + sbin}
	var missing []error
	if err := checkRights(); err != nil {
		missing = append(missing, err)
	}
	find := func(name, what string) string {
		for folder := range strings.SplitSeq(m.Path, ":") {
			if path, err := exec.LookPath(filepath.Join(folder, name)); err == nil && filepath.IsAbs(path) {
				return path
			}
		}
		missing = append(missing, fmt.Errorf("%s in PATH: %s", name, what))
		return ""
	}
	m.Runc = find("runc", "containerd starts containers with it (Debian: package runc)")
	find("nft", "kube-proxy writes its rules with it (Debian: package nftables)")
	for _, folder := range []string{"/run", "/var/lib", "/var/log"} {
		if dir == folder || strings.HasPrefix(dir, folder+"/") {
			missing = append(missing, fmt.Errorf("a CLUSTER_DIR outside %s, because each node mounts its own folder there: it is %s", folder, dir))
		}
	}
	if err := checkCgroups(CgroupRoot); err != nil {
		missing = append(missing, fmt.Errorf("cgroups: %w", err))
	}
	m.Snapshotter = snapshotterFor(dir)
	if len(missing) > 0 {
		return Machine{}, fmt.Errorf("real nodes need\n%w", errors.Join(missing...))
	}
	return m, nil
}

// checkRights returns an error if this process may not create namespaces, mounts and interfaces.
func checkRights() error {
	if os.Geteuid() != 0 {
		return errors.New("root: only root can create namespaces, mounts and cgroups")
	}
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(header, &sets[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	for name, capability := range map[string]int{"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN} {
		if sets[0].Effective&(1<<capability) == 0 {
			return fmt.Errorf("the capability %s, which root lacks here", name)
		}
	}
	return nil
}

// checkCgroups returns an error if no cgroup can be created.
func checkCgroups(root string) error {
	all, err := hierarchies(root)
	if err != nil {
		return err
	}
	for _, hierarchy := range all {
		if err := unix.Access(hierarchy, unix.W_OK); err != nil {
			return fmt.Errorf("%s is not writable: %w", hierarchy, err)
		}
	}
	return nil
}

// snapshotterFor returns overlayfs, or native if dir is on an overlay file system, because
// overlayfs cannot use that folder as a layer. native copies all layers and needs more space.
func snapshotterFor(dir string) string {
	for ; dir != "/"; dir = filepath.Dir(dir) {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err == nil {
			if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
				return "native"
			}
			break
		}
	}
	return "overlayfs"
}
