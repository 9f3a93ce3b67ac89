// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"haulout.dev/haulout/test/cluster/internal/clients"
	"haulout.dev/haulout/test/cluster/internal/controlplane"
	"haulout.dev/haulout/test/cluster/internal/haulout"
	"haulout.dev/haulout/test/cluster/internal/layout"
	"haulout.dev/haulout/test/cluster/internal/nodes"
	"haulout.dev/haulout/test/cluster/internal/options"
	"haulout.dev/haulout/test/cluster/internal/realnodes"
)

// errIncomplete is returned by Status if a process of the cluster does not run.
var errIncomplete = errors.New("some processes are not ready, run `make cluster-up`")

func (c *Cluster) printReady(took time.Duration) {
	if c.changed {
		c.printf("The cluster is ready after %.1f s", took.Seconds())
	} else {
		c.printf("The cluster runs, nothing has changed")
	}
	kubeconfig := display(c.Layout.AdminKubeconfig())
	table := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "  kubeconfig\t%s (administrator)\n", kubeconfig)
	fmt.Fprintf(table, "  server\t%s\n", c.plane.Server())
	fmt.Fprintf(table, "  Kubernetes\t%s\n", c.options.Kube)
	fmt.Fprintf(table, "  nodes\t%d, simulated by kwok, pod stages: %s\n", c.options.Nodes, c.options.PodStages)
	if c.options.RealNodes > 0 {
		fmt.Fprintf(table, "  real nodes\t%d, %s to %s, labelled %s=%s\n", c.options.RealNodes,
			realnodes.Name(1), realnodes.Name(c.options.RealNodes), realnodes.Label, realnodes.LabelValue)
	}
	fmt.Fprintf(table, "  haulout\t%s\n", c.hauloutSummary())
	fmt.Fprintf(table, "  logs\t%s\n", display(c.Layout.Logs()))
	table.Flush()
	if c.options.Haulout != options.ModeRun {
		c.printDebugHelp()
	}
	c.printf("\nUse it:\n  export KUBECONFIG=%s\n  %s get nodes\nStop it:\n  make cluster-down%s",
		quote(c.Layout.AdminKubeconfig()), display(filepath.Join(c.Layout.KubeBin(c.options.Kube), "kubectl")), c.dirArgument())
}

func (c *Cluster) hauloutSummary() string {
	switch c.options.Haulout {
	case options.ModePrepare:
		return "not started and not registered (HAULOUT=false)"
	case options.ModeExternal:
		return fmt.Sprintf("registered at 127.0.0.1:%d, start the server yourself (HAULOUT=external)",
			c.state.Ports[layout.Haulout])
	}
	return fmt.Sprintf("serves %s at 127.0.0.1:%d", haulout.APIService, c.state.Ports[layout.Haulout])
}

// printDebugHelp prints how to run haulout-apiserver manually.
func (c *Cluster) printDebugHelp() {
	spec := haulout.Spec(c.Layout, c.state.Ports[layout.Haulout], c.options.HauloutFlags)
	words := []string{quote(spec.Path)}
	for _, arg := range spec.Args {
		words = append(words, quote(arg))
	}
	c.printf("\nRun the server yourself, for example in a debugger:\n  %s", strings.Join(words, " \\\n    "))
	if c.options.Haulout == options.ModeExternal {
		c.printf("Until it serves its API, the deletion of namespaces is blocked")
	}
	if c.options.Haulout == options.ModePrepare {
		c.printf("Its API is not registered until HAULOUT=external make cluster-up%s", c.dirArgument())
	}
}

// dirArgument returns the argument with which make finds this cluster.
func (c *Cluster) dirArgument() string {
	if c.Layout.Dir == layout.DefaultDir(c.Layout.BinDir) {
		return ""
	}
	return " CLUSTER_DIR=" + quote(c.Layout.Dir)
}

// display returns a path relative to the working directory if the path is below it.
func display(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rest, ok := strings.CutPrefix(path, wd+string(os.PathSeparator)); ok {
		return rest
	}
	return path
}

// quote quotes a word for a shell.
func quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("-_=./:,@+%", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Status prints the processes of the cluster. It does not lock the cluster, so that it works while
// the cluster starts.
func (c *Cluster) Status(ctx context.Context) error {
	found, err := c.read()
	if err != nil {
		return err
	}
	if !found || len(c.state.Processes) == 0 {
		return fmt.Errorf("no cluster runs in %s", c.Layout.Dir)
	}
	c.plane = controlplane.ControlPlane{Layout: c.Layout, Options: c.options, Ports: c.state.Ports}
	complete := true
	table := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PROCESS\tPID\tSTATE\tADDRESS\tLOG")
	for _, name := range c.expected() {
		pid, condition := c.condition(ctx, name)
		complete = complete && condition == "ready"
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", name, pid, condition, c.address(name), display(c.Layout.Log(name)))
	}
	table.Flush()
	if !complete {
		return errIncomplete
	}
	return nil
}

// expected returns the names of the processes of a cluster with these options.
func (c *Cluster) expected() []string {
	names := slices.DeleteFunc(slices.Clone(startOrder), func(name string) bool {
		return name == layout.Haulout && c.options.Haulout != options.ModeRun ||
			name == layout.Network && c.options.RealNodes == 0
	})
	return append(names, realNodeNames()[:c.options.RealNodes]...)
}

func (c *Cluster) condition(ctx context.Context, name string) (pid, condition string) {
	record, ok := c.recorded(name)
	if !ok {
		return "-", "not started"
	}
	pid = fmt.Sprint(record.PID)
	if !record.Alive() {
		return pid, "ended"
	}
	if err := c.probe(ctx, name); err != nil {
		return pid, "not ready: " + firstLine(err)
	}
	return pid, "ready"
}

func (c *Cluster) probe(ctx context.Context, name string) error {
	isNode := slices.Contains(realNodeNames(), name)
	if name != layout.Haulout && !isNode {
		return c.plane.Probe(ctx, name)
	}
	admin, err := clients.FromKubeconfig(c.Layout.AdminKubeconfig())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if isNode {
		return nodes.CheckReady(ctx, admin.Kubernetes, name)
	}
	return haulout.Served(ctx, admin)
}

func (c *Cluster) address(name string) string {
	switch index := slices.Index(realNodeNames(), name); {
	case index >= 0:
		return realnodes.Address(index + 1)
	case name == layout.Etcd:
		return layout.EtcdClientSocket
	case name == layout.Network:
		return layout.EgressSocket
	}
	return fmt.Sprintf("127.0.0.1:%d", c.state.Ports[name])
}
