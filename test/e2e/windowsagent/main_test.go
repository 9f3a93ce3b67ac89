/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package windowsagent has the end-to-end tests of the node agent as a service of Windows. Wine is
// the Windows of these tests; docs/node-agent.md names where it differs.
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
			// .ci/run installs it: there, a test that does not run has failed.
			return 1
		}
		return 0
	}
	os.Setenv("NODES", "0")
	return framework.Run(m, &cluster)
}
