// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// testDown kills processes of a cluster before the processes that depend on them, and stops the
// cluster. Nothing of the cluster may be left.
func testDown(t *testing.T, c *framework.Cluster) {
	t.Helper()
	is.True(t, cgroups(t, c.Dir()) != 0, "found no cgroups of the real nodes: the test could not detect remaining ones")
	for _, process := range []string{"network", "real-1", "kube-apiserver", "etcd"} {
		c.Kill(t, process)
	}
	dir := c.Dir()
	must.Do(t, c.Stop())
	if left := processesOf(t, dir+"/"); len(left) > 0 {
		t.Errorf("processes still run: %q", left)
	}
	if left := cgroups(t, dir); left > 0 {
		t.Errorf("%d cgroups are left", left)
	}
	mounts := must.Get(os.ReadFile("/proc/self/mounts"))(t)
	is.True(t, !strings.Contains(string(mounts), dir), "mounts are left:\n%s", mounts)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder %s still exists: %v", dir, err)
	}
}

// processesOf returns the command lines that contain a text. The path of the folder of a cluster or
// a node is part of the command lines of its processes.
func processesOf(t *testing.T, text string) []string {
	t.Helper()
	files := must.Get(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	var found []string
	for _, file := range files {
		// If a process has ended in the meantime, its command line is empty.
		content, _ := os.ReadFile(file)
		if line := strings.ReplaceAll(string(content), "\x00", " "); strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// cgroups returns the number of cgroups of the nodes of a cluster. The containers of its pods are
// below them.
func cgroups(t *testing.T, dir string) int {
	t.Helper()
	var name string
	content, err := os.ReadFile(filepath.Join(dir, "nodes", "real-1", "config.json"))
	switch {
	case err == nil:
		_, rest, _ := strings.Cut(string(content), `"Cgroup": "`)
		name, _, _ = strings.Cut(rest, "/")
		known[dir] = name
	default:
		name = known[dir]
	}
	found := 0
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		folders := must.Get(filepath.Glob(pattern + name))(t)
		found += len(folders)
	}
	return found
}

// known has the name of the cgroup of each cluster, by its folder.
var known = map[string]string{}
