// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	// lastLines is how much of what is long goes into the output of a failed test.
	lastLines = 60
	// diagnoses is for how many tests that is done in a run: one failure may bring many others.
	diagnoses = 3
)

// Diagnose writes to the output of a test that failed what the cluster looks like, since the
// cluster is gone by the time a developer reads that. It has to be called before anything is put
// away.
func (c *Cluster) Diagnose(tb testing.TB) {
	tb.Helper()
	if _, again := c.diagnosed.LoadOrStore(tb.Name(), true); again || c.diagnoses.Add(1) > diagnoses {
		return
	}
	for _, look := range []string{
		"get nodemaintenances -o yaml", "get evacuations -A -o wide",
		"get pods -A -o wide --sort-by=.metadata.creationTimestamp",
		"get deployments,replicasets,daemonsets,poddisruptionbudgets -A -o wide",
		"get nodes -o custom-columns=NAME:.metadata.name,UNSCHEDULABLE:.spec.unschedulable," +
			"TAINTS:.spec.taints[*].key," +
			"READY:.status.conditions[?(@.type==\"Ready\")].status",
		"get events -A --sort-by=.metadata.creationTimestamp",
	} {
		// A test may fail since one of the servers does not answer.
		out, errOut, err := c.kubectl(background(), "", append(strings.Fields(look), "--request-timeout=5s")...)
		limit := lastLines
		if strings.HasSuffix(look, "yaml") {
			limit = 4 * lastLines
		}
		tb.Logf("cluster: kubectl %s (%v):\n%s%s", look, err, last(out, limit), errOut)
	}
	for _, name := range []string{"haulout-apiserver", "kube-scheduler", "kwok"} {
		content, err := os.ReadFile(filepath.Join(c.dir, "logs", name+".log"))
		lines := bytes.Split(content, []byte("\n"))
		lines = slices.DeleteFunc(lines, func(line []byte) bool { return bytes.Contains(line, []byte("FLAG: --")) })
		tb.Logf("cluster: the end of the log of %s (%v):\n%s",
			name, err, last(string(bytes.Join(lines, []byte("\n"))), lastLines))
	}
}

// last returns the last lines of a text.
func last(text string, lines int) string {
	all := strings.SplitAfter(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}
