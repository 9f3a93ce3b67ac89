// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package windowsagent has the end-to-end tests of the node agent as a Windows service. They run
// under wine; docs/evidence-node-agent.md names the differences from Windows.
package windowsagent

import (
	"fmt"
	"os"
	"testing"

	"haulout.dev/haulout/test/e2e/framework"
)

var cluster *framework.Cluster

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if _, err := os.Stat(wineLoader); err != nil {
		fmt.Fprintf(os.Stderr, "NO TEST OF WINDOWS RAN: this machine lacks wine (Debian: package wine64): %v\n", err)
		if os.Getenv("CI") != "" {
			// .ci/run installs wine. In CI, a test that does not run is a failure.
			return 1
		}
		return 0
	}
	os.Setenv("NODES", "0")
	return framework.Run(m, &cluster)
}
