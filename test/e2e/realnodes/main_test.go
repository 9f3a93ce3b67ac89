// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package realnodes has the end-to-end tests on nodes with a kubelet and containers. The tests on
// simulated nodes check order and speed; these tests check signals, grace periods, volumes and the
// state of a node after a power failure.
package realnodes

import (
	"fmt"
	"os"
	"testing"

	"haulout.dev/haulout/test/e2e/framework"
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv(machineRole) != "" {
		if err := runMachine(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	os.Setenv("REAL_NODES", "2")
	os.Setenv("NODES", "0")
	if why, err := framework.Check(); err != nil {
		fmt.Fprintf(os.Stderr, "NO TEST RAN ON REAL NODES: %s\n", why)
		if os.Getenv("CI") != "" {
			// .ci/run installs the requirements. In CI, a test that does not run is a failure.
			return 1
		}
		return 0
	}
	return m.Run()
}

// start starts a cluster, and stops it after the test. Two clusters at the same time would need
// more inotify instances than many machines allow.
func start(t *testing.T) *framework.Cluster {
	t.Helper()
	c, err := framework.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}
