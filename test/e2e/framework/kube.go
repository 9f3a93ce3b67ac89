// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"
)

// newestKube is the version of Kubernetes whose programs are in bin itself.
const newestKube = "1.37"

// Kube returns the minor version of Kubernetes that the clusters of the tests run.
func Kube() string { return cmp.Or(os.Getenv("KUBE"), newestKube) }

// KubectlPath returns the path of kubectl of the version that Kube returns.
func (c *Cluster) KubectlPath() string {
	if Kube() == newestKube {
		return filepath.Join(c.root, "bin", "kubectl")
	}
	return filepath.Join(c.root, "bin", "kube-"+Kube(), "kubectl")
}

// NeedsNewestKube leaves a test out on clusters of an older version of Kubernetes. what is the
// subject of a sentence that names what those lack.
func NeedsNewestKube(tb testing.TB, what string) {
	tb.Helper()
	if Kube() != newestKube {
		tb.Skipf("%s needs Kubernetes %s, this is %s", what, newestKube, Kube()) //nolint:forbidigo // the same test runs on the newest version
	}
}
