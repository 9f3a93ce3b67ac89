// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"os"
	"path/filepath"
	"testing"
)

// tree writes files with their folders.
func tree(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func read(t *testing.T, elements ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestCgroupsOfVersion2 uses a root with one hierarchy for all controllers.
func TestCgroupsOfVersion2(t *testing.T) {
	root := tree(t, map[string]string{
		"cgroup.controllers":     "cpuset cpu memory pids\n",
		"cgroup.procs":           "1\n",
		"system.slice/tasks.txt": "",
	})
	if err := createCgroup(root, "haulout-1/real-1"); err != nil {
		t.Fatal(err)
	}
	if got := read(t, root, "cgroup.subtree_control"); got != "+cpuset +cpu +memory +pids" {
		t.Errorf("got controllers %q for the children of the root, want all", got)
	}
	if err := RemoveCgroup(t.Context(), root, "haulout-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "haulout-1")); !os.IsNotExist(err) {
		t.Errorf("the cgroup is left: %v", err)
	}
	if _, err := os.Stat(filepath.Join(root, "system.slice")); err != nil {
		t.Errorf("another cgroup was removed: %v", err)
	}
}

// TestCgroupsOfVersion1 uses a root with one hierarchy for each controller.
func TestCgroupsOfVersion1(t *testing.T) {
	root := tree(t, map[string]string{
		"cpuset/cgroup.procs":               "1\n",
		"cpuset/cpuset.cpus":                "0-1\n",
		"cpuset/cpuset.mems":                "0\n",
		"memory/cgroup.procs":               "1\n",
		"cpuset/real/cgroup.clone_children": "0\n",
		"not-mounted/readme":                "",
	})
	if err := createCgroup(root, "real"); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n", "cgroup.clone_children": "1"} {
		if got := read(t, root, "cpuset", "real", file); got != want {
			t.Errorf("got %s %q, want %q", file, got, want)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "memory", "real")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, "not-mounted", "real")); !os.IsNotExist(err) {
		t.Errorf("a cgroup was created where no controller is mounted: %v", err)
	}
}

func TestMachineWithoutCgroups(t *testing.T) {
	root := t.TempDir()
	if err := createCgroup(root, "real"); err == nil {
		t.Error("got no error without cgroups")
	}
	if err := RemoveCgroup(t.Context(), root, "real"); err != nil {
		t.Errorf("got error %v for a cgroup that does not exist", err)
	}
}
