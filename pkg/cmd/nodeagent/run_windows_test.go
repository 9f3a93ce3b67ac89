// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"os"
	"path/filepath"
	"testing"

	"haulout.dev/haulout/pkg/agent/windows"
)

// An agent on a machine that has not joined a cluster yet waits for the kubeconfig and reports
// this.
func TestAgentWaitsForItsKubeconfig(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	kubeconfig := c.Kubeconfig
	c.Kubeconfig = filepath.Join(t.TempDir(), "kubelet.conf")
	told, r := &statuses{}, &runner{controls: windows.NewControls()}
	type answer struct {
		node string
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		_, node, err := r.waitForClient(t.Context(), c, told.add)
		answers <- answer{node, err}
	}()
	eventually(t, "the status names the file", func() bool { return told.has(c.Kubeconfig) })
	data, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Kubeconfig, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := <-answers; got.err != nil || got.node != "node-1" {
		t.Errorf("the node is %q, %v", got.node, got.err)
	}
}
