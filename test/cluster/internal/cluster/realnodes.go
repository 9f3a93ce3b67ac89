// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"haulout.dev/haulout/test/cluster/internal/clients"
	"haulout.dev/haulout/test/cluster/internal/kubeconfig"
	"haulout.dev/haulout/test/cluster/internal/layout"
	"haulout.dev/haulout/test/cluster/internal/nodes"
	"haulout.dev/haulout/test/cluster/internal/process"
	"haulout.dev/haulout/test/cluster/internal/realnodes"
)

// realNodeNames returns the names of all real nodes that a cluster can have.
func realNodeNames() []string {
	var names []string
	for index := 1; index <= realnodes.Max; index++ {
		names = append(names, realnodes.Name(index))
	}
	return names
}

// volumesPerNode is the number of local PersistentVolumes of each real node.
const volumesPerNode = 4

// startNetwork starts the network if the cluster has real nodes. kube-apiserver needs the network.
func (c *Cluster) startNetwork(ctx context.Context) error {
	if c.options.RealNodes == 0 {
		return c.stopRealNodes(ctx, 0)
	}
	port := func(name string) string {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.state.Ports[name]))
	}
	forward := func(at, name string) string { return "--forward=" + at + "=" + port(name) }
	_, err := c.ensure(ctx, process.Spec{
		Name: layout.Network,
		Path: c.Layout.Binary("cluster"),
		Args: []string{
			"network",
			"--socket=" + layout.EgressSocket,
			forward(net.JoinHostPort(realnodes.Gateway, strconv.Itoa(realnodes.APIServerPort)), layout.APIServer),
			forward(net.JoinHostPort(realnodes.Gateway, strconv.Itoa(c.state.Ports[layout.Haulout])), layout.Haulout),
		},
		Dir:        c.Layout.Dir,
		Log:        c.Layout.Log(layout.Network),
		Namespaces: realnodes.NetworkNamespace,
	})
	if err != nil {
		return err
	}
	return c.waitReady(ctx, layout.Network)
}

// startRealNodes starts the real nodes and waits until they are Ready.
func (c *Cluster) startRealNodes(ctx context.Context, admin *clients.Clients) error {
	if err := c.stopRealNodes(ctx, c.options.RealNodes); err != nil {
		return err
	}
	if c.options.RealNodes == 0 {
		return nil
	}
	machine, err := realnodes.FindMachine(c.Layout.Dir)
	if err != nil {
		return err
	}
	if err := realnodes.Prepare(ctx, admin.Kubernetes, c.options.RealNodes, volumesPerNode); err != nil {
		return fmt.Errorf("prepare the cluster for real nodes: %w", err)
	}
	images, err := filepath.Glob(filepath.Join(c.Layout.Images(), "*.tar"))
	if err != nil {
		return err
	}
	begun := time.Now()
	var started []string
	for index := 1; index <= c.options.RealNodes; index++ {
		fresh, err := c.startRealNode(ctx, index, machine, images)
		if err != nil {
			return fmt.Errorf("start node %s: %w", realnodes.Name(index), err)
		}
		if fresh && !realnodes.IsDisabled(filepath.Join(c.Layout.Nodes(), realnodes.Name(index)), "kubelet") {
			started = append(started, realnodes.Name(index))
		}
	}
	if len(started) == 0 {
		return nil
	}
	if err := nodes.WaitReady(ctx, admin.Kubernetes, started, begun); err != nil {
		return c.notReady(ctx, started[0], err)
	}
	return nil
}

func (c *Cluster) startRealNode(
	ctx context.Context, index int, machine realnodes.Machine, images []string,
) (started bool, err error) {
	name := realnodes.Name(index)
	dir := filepath.Join(c.Layout.Nodes(), name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	config := realnodes.Config{
		Index:             index,
		Dir:               dir,
		Logs:              c.Layout.Logs(),
		Programs:          c.Layout.NodePrograms(),
		Binaries:          c.Layout.KubeBin(c.options.Kube),
		Runc:              machine.Runc,
		Path:              machine.Path,
		CA:                filepath.Join(c.Layout.PKI(), "ca.crt"),
		KubeletKubeconfig: c.Layout.ComponentKubeconfig(name),
		ProxyKubeconfig:   c.Layout.ComponentKubeconfig(kubeProxy),
		Images:            images,
		Snapshotter:       machine.Snapshotter,
		Cgroup:            filepath.Join(c.cgroup(), name),
		Volumes:           volumesPerNode,
	}
	path := filepath.Join(dir, "config.json")
	if err := config.Save(path); err != nil {
		return false, err
	}
	network, _ := c.recorded(layout.Network)
	started, err = c.ensure(ctx, process.Spec{
		Name: name,
		Path: c.Layout.Binary("cluster"),
		Args: []string{"node", "--config=" + path},
		// The network lost its connection to this node when it restarted, so the node has to
		// restart, too.
		Env:        []string{fmt.Sprintf("HAULOUT_NETWORK=%d-%d", network.PID, network.StartTicks)},
		Dir:        c.Layout.Dir,
		Log:        c.Layout.Log(name),
		Namespaces: realnodes.Namespaces,
	})
	if err != nil || !started {
		return false, err
	}
	node, _ := c.recorded(name)
	return true, realnodes.Connect(index, network.PID, node.PID)
}

// kubeProxy is the user of all kube-proxies.
const kubeProxy = "kube-proxy"

// cgroup returns the cgroup of the real nodes of this cluster.
func (c *Cluster) cgroup() string { return realnodes.CgroupOf(c.Layout.Dir) }

// stopRealNodes stops the real nodes with an index above count. If none is left, it also stops
// their network. When the process of a node ends, the kernel removes everything of the node except
// its cgroups.
func (c *Cluster) stopRealNodes(ctx context.Context, count int) error {
	for index := count + 1; index <= realnodes.Max; index++ {
		if err := c.stop(ctx, realnodes.Name(index)); err != nil {
			return err
		}
	}
	if count > 0 {
		return nil
	}
	if err := c.stop(ctx, layout.Network); err != nil {
		return err
	}
	return realnodes.RemoveCgroup(ctx, realnodes.CgroupRoot, c.cgroup())
}

// writeRealNodeFiles writes the identities of the nodes and the configuration of kube-apiserver's
// connection to them.
func (c *Cluster) writeRealNodeFiles() error {
	if c.options.RealNodes == 0 {
		return nil
	}
	dir := c.Layout.PKI()
	users := []string{kubeProxy}
	for index := 1; index <= c.options.RealNodes; index++ {
		users = append(users, realnodes.Name(index))
	}
	for _, user := range users {
		path := c.Layout.ComponentKubeconfig(user)
		if err := kubeconfig.WriteClient(path, realnodes.APIServer(), dir, user+"-client"); err != nil {
			return err
		}
	}
	return kubeconfig.WriteFile(c.Layout.EgressSelector(), []byte(realnodes.EgressSelector(layout.EgressSocket)))
}
