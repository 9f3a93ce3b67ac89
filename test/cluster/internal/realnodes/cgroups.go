// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// CgroupRoot is the mount point of the cgroups of the machine.
const CgroupRoot = "/sys/fs/cgroup"

// hierarchies returns the folders of the cgroup hierarchies below root. With version 2 it is root
// itself; with version 1, or both versions, it is one folder for each controller.
func hierarchies(root string) ([]string, error) {
	if isFile(filepath.Join(root, "cgroup.controllers")) {
		return []string{root}, nil
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		// A symbolic link such as cpu points to a folder that is in the list as well, such as
		// cpu,cpuacct.
		if entry.IsDir() && isFile(filepath.Join(root, entry.Name(), "cgroup.procs")) {
			found = append(found, filepath.Join(root, entry.Name()))
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no cgroups are mounted in %s", root)
	}
	return found, nil
}

// createCgroup creates a cgroup in all hierarchies, with all controllers.
func createCgroup(root, name string) error {
	all, err := hierarchies(root)
	if err != nil {
		return err
	}
	for _, hierarchy := range all {
		folder := hierarchy
		for part := range strings.SplitSeq(name, "/") {
			if err := enableControllers(folder); err != nil {
				return err
			}
			child := filepath.Join(folder, part)
			if err := os.Mkdir(child, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if err := inheritCPUs(folder, child); err != nil {
				return err
			}
			folder = child
		}
	}
	return nil
}

// enableControllers makes the controllers of a cgroup of version 2 available to the child cgroups.
func enableControllers(folder string) error {
	content, err := os.ReadFile(filepath.Join(folder, "cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var enabled []string
	for controller := range strings.FieldsSeq(string(content)) {
		enabled = append(enabled, "+"+controller)
	}
	if len(enabled) == 0 {
		return nil
	}
	err = os.WriteFile(filepath.Join(folder, "cgroup.subtree_control"), []byte(strings.Join(enabled, " ")), 0o644)
	if err != nil {
		return fmt.Errorf("enable the controllers of cgroup %s: %w", folder, err)
	}
	return nil
}

// inheritCPUs copies the CPUs and memory nodes of a parent cgroup to its child in the cpuset
// controller of version 1. No process can join the child without them.
func inheritCPUs(parent, child string) error {
	if !isFile(filepath.Join(child, "cgroup.clone_children")) {
		return nil // version 2
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		content, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another controller
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(child, file), content, 0o644); err != nil {
			return err
		}
	}
	// With this setting, the kernel does the same for the cgroups that the kubelet creates below
	// child.
	return os.WriteFile(filepath.Join(child, "cgroup.clone_children"), []byte("1"), 0o644)
}

// RemoveCgroup removes a cgroup and its descendants from all hierarchies. The caller has killed
// their processes, but the kernel may not have removed the processes yet. RemoveCgroup returns no
// error if the cgroup does not exist or the machine has no cgroups.
func RemoveCgroup(ctx context.Context, root, name string) error {
	all, err := hierarchies(root)
	if err != nil {
		return nil
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, removeTimeout, true, func(context.Context) (bool, error) {
		last = nil
		for _, hierarchy := range all {
			last = errors.Join(last, removeTree(filepath.Join(hierarchy, name)))
		}
		return last == nil, nil
	})
	if err != nil {
		return last
	}
	return nil
}

// removeTimeout limits the time in which the kernel removes killed processes from their cgroups.
const removeTimeout = 5 * time.Second

// removeTree removes a folder and its subfolders. The kernel removes the files of a cgroup together
// with its folder; they cannot be removed before.
func removeTree(folder string) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if entry.IsDir() {
			errs = append(errs, removeTree(filepath.Join(folder, entry.Name())))
		}
	}
	if err := os.Remove(folder); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}
