// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// budget requires one available pod of an app.
const budget = `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: %s}
spec: {minAvailable: 1, selector: {matchLabels: {app: %s}}}
`

// testWithoutHaulout reboots the machine while haulout-apiserver does not respond. The agent must
// evict the pods in the order of the table and within their budgets. Meanwhile its connection to
// kube-apiserver breaks without a reset, and the agent must not end pods locally because of that.
func testWithoutHaulout(t *testing.T, m *machine) {
	t.Helper()
	namespace := m.c.NewNamespace(t)
	deployByPriority(t, m, namespace)
	// Both pods of an app start on the node: the second one can only be evicted after the first one
	// is replaced.
	m.c.MustKubectl(t, "", "cordon", "real-1")
	apps := []string{"low", "high", "critical"}
	for _, app := range apps {
		m.c.MustKubectl(t, fmt.Sprintf(budget, app, app), "--namespace="+namespace, "apply", "--filename=-")
		m.c.MustKubectl(t, "", "--namespace="+namespace, "scale", "deployment", app, "--replicas=2")
	}
	for _, app := range apps {
		ready(t, m.c, namespace, "app="+app, 2)
	}
	m.c.MustKubectl(t, "", "uncordon", "real-1")
	seen := watchPods(t, m, namespace)
	said := m.saidSince("node-agent")

	m.c.Signal(t, "haulout-apiserver", syscall.SIGSTOP)
	m.reboot()
	framework.Eventually(t, "the agent cordons its node", func(ctx context.Context) (bool, error) {
		node, err := m.c.As(t).Kube.CoreV1().Nodes().Get(ctx, m.node, metav1.GetOptions{})
		return err == nil && node.Spec.Unschedulable && node.Annotations[v1alpha1.AnnotationCordonedByAgent] != "", err
	})
	m.dropConnections(agentProgram)
	m.untilDown(maxDelay)
	m.c.Signal(t, "haulout-apiserver", syscall.SIGCONT)
	if left, want := seen(), []string{"low", "low", "high", "high", "critical", "critical"}; !slices.Equal(left, want) {
		t.Errorf("the pods left in the order %q, want %q", left, want)
	}
	if log := said(); strings.Contains(log, `to="Local"`) || !strings.Contains(log, `to="Evicting"`) {
		t.Errorf("the agent ended pods on the node, or did not evict:\n%s", log)
	}

	m.powerCycle()
	startAgent(t, m)
	framework.Eventually(t, "the agent has removed its cordon", func(ctx context.Context) (bool, error) {
		node, err := m.c.As(t).Kube.CoreV1().Nodes().Get(ctx, m.node, metav1.GetOptions{})
		return err == nil && !node.Spec.Unschedulable && node.Annotations[v1alpha1.AnnotationCordonedByAgent] == "", err
	})
	untilAllServe(t, m, namespace)
}

// saidSince returns a function that returns what a program of the node has logged since this call.
func (m *machine) saidSince(name string) func() string {
	m.t.Helper()
	read := func() string {
		m.t.Helper()
		content := must.Get(os.ReadFile(filepath.Join(m.c.Dir(), "logs", m.node+"-"+name+".log")))(m.t)
		return string(content)
	}
	before := len(read())
	return func() string { return read()[before:] }
}

// dropConnections drops all packets of the current connections of a program of the node, without a
// reset, until the node is switched off.
func (m *machine) dropConnections(program string) {
	m.t.Helper()
	var ports []string
	for _, pid := range processes(program) {
		ports = append(ports, portsOf(m.t, pid)...)
	}
	must.True(m.t, len(ports) != 0, "%s has no connections", program)
	list := "{ " + strings.Join(ports, ", ") + " }"
	for _, line := range []string{
		"add table inet dead",
		"add chain inet dead out { type filter hook output priority 0 ; }", "add rule inet dead out tcp sport " + list + " drop",
		"add chain inet dead in { type filter hook input priority 0 ; }", "add rule inet dead in tcp dport " + list + " drop",
	} {
		enter := m.enter("nft", line)
		if out, err := exec.CommandContext(m.t.Context(), "nsenter", enter...).CombinedOutput(); err != nil { //nolint:gosec // constant arguments
			m.t.Fatalf("nft %s: %v\n%s", line, err, out)
		}
	}
}

// portsOf returns the local ports of the established connections of a process to other hosts.
func portsOf(t *testing.T, pid int) []string {
	t.Helper()
	const local, remote, state, inode = 1, 2, 3, 9
	folder := fmt.Sprintf("/proc/%d", pid)
	table := must.Get(os.ReadFile(filepath.Join(folder, "net", "tcp")))(t)
	files, err := filepath.Glob(filepath.Join(folder, "fd", "*"))
	if err != nil {
		t.Fatal(err)
	}
	var ports []string
	for _, line := range strings.Split(string(table), "\n") {
		fields := strings.Fields(line)
		if len(fields) <= inode || fields[state] != "01" || strings.HasPrefix(fields[remote], "0100007F:") {
			continue
		}
		if slices.ContainsFunc(files, func(file string) bool {
			to, err := os.Readlink(file)
			return err == nil && to == "socket:["+fields[inode]+"]"
		}) {
			_, hex, _ := strings.Cut(fields[local], ":")
			port := must.Get(strconv.ParseUint(hex, 16, 16))(t)
			ports = append(ports, strconv.FormatUint(port, 10))
		}
	}
	return ports
}
