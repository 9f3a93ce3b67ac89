// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"haulout.dev/haulout/test/cluster/internal/clients"
	"haulout.dev/haulout/test/cluster/internal/controlplane"
	"haulout.dev/haulout/test/cluster/internal/haulout"
	"haulout.dev/haulout/test/cluster/internal/layout"
	"haulout.dev/haulout/test/cluster/internal/nodes"
	"haulout.dev/haulout/test/cluster/internal/options"
	"haulout.dev/haulout/test/cluster/internal/ports"
	"haulout.dev/haulout/test/cluster/internal/process"
	"haulout.dev/haulout/test/cluster/internal/realnodes"
	"haulout.dev/haulout/test/cluster/internal/state"
)

// tailLines is the number of lines of a log that a failed start prints.
const tailLines = 25

// Up starts the cluster with the options, or changes a running cluster to them.
func (c *Cluster) Up(ctx context.Context, source *options.Source) (err error) {
	begin := time.Now()
	// Check before any change of the folder and before the lock, so that an invalid value is
	// reported immediately.
	if err := c.Check(source); err != nil {
		return err
	}
	if err := c.prepareFolder(); err != nil {
		return err
	}
	unlock, existed, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()

	values := source.Values(c.state.Options)
	if c.options, err = options.Parse(values); err != nil {
		return err
	}
	timeout := fmt.Errorf("START_TIMEOUT of %s exceeded", c.options.StartTimeout)
	ctx, cancelTimeout := context.WithTimeoutCause(ctx, c.options.StartTimeout, timeout)
	defer cancelTimeout()
	supervised, cancel := c.supervise(ctx)
	defer cancel()

	if err := c.bringUp(supervised, existed); err != nil {
		cancel()
		return c.abandon(ctx, err)
	}
	c.state.Options = values
	if err := c.state.Save(c.Layout.StateFile()); err != nil {
		return err
	}
	c.printReady(time.Since(begin))
	return nil
}

// Check returns an error if Up would refuse its options.
func (c *Cluster) Check(source *options.Source) error {
	stored, _, err := state.Load(c.Layout.StateFile())
	if err != nil {
		return err
	}
	parsed, err := options.Parse(source.Values(stored.Options))
	if err != nil {
		return err
	}
	if err := keepsKube(stored.Options, parsed.Kube); err != nil {
		return fmt.Errorf("%w: run `make cluster-down%s` first", err, c.dirArgument())
	}
	if parsed.RealNodes == 0 {
		return nil
	}
	_, err = realnodes.FindMachine(c.Layout.Dir)
	return err
}

// keepsKube returns an error if a cluster that was started with the stored options would get
// another version of Kubernetes: an older kube-apiserver cannot read all that a newer one has
// stored.
func keepsKube(stored map[string]string, version string) error {
	if len(stored) == 0 {
		return nil
	}
	// A program that did not know the variable has started 1.37.
	runs := cmp.Or(stored["KUBE"], layout.Kube)
	if runs != version {
		return fmt.Errorf("KUBE=%q: the cluster was started with Kubernetes %s", version, runs)
	}
	return nil
}

// prepareFolder creates the folder, and refuses a folder with other files: `down` deletes files
// there.
func (c *Cluster) prepareFolder() error {
	if err := os.MkdirAll(c.Layout.Dir, 0o700); err != nil {
		return fmt.Errorf("CLUSTER_DIR=%q: %w", c.Layout.Dir, err)
	}
	if _, err := os.Stat(c.Layout.StateFile()); err == nil {
		return nil
	}
	entries, err := os.ReadDir(c.Layout.Dir)
	if err != nil {
		return fmt.Errorf("CLUSTER_DIR=%q: %w", c.Layout.Dir, err)
	}
	for _, entry := range entries {
		if entry.Name() != filepath.Base(c.Layout.LockFile()) {
			return fmt.Errorf(
				"CLUSTER_DIR=%q: must be a new or empty folder or the folder of a cluster, it contains %s",
				c.Layout.Dir, entry.Name(),
			)
		}
	}
	return nil
}

func (c *Cluster) bringUp(ctx context.Context, existed bool) error {
	chosen, err := ports.Complete(c.state.Ports, controlplane.WithPorts, ports.Loopback)
	if err != nil {
		return err
	}
	c.state.Ports = chosen
	if err := c.state.Save(c.Layout.StateFile()); err != nil {
		return err
	}
	c.plane = controlplane.ControlPlane{Layout: c.Layout, Options: c.options, Ports: chosen}
	if err := os.MkdirAll(c.Layout.Logs(), 0o700); err != nil {
		return err
	}
	if err := errors.Join(c.plane.PrepareFiles(), c.writeRealNodeFiles()); err != nil {
		return err
	}
	if !existed || len(c.state.Processes) == 0 {
		c.printf("Starting a cluster in %s", c.Layout.Dir)
	}
	if err := c.startNetwork(ctx); err != nil {
		return err
	}
	if err := c.startAPI(ctx); err != nil {
		return err
	}
	admin, err := clients.FromKubeconfig(c.Layout.AdminKubeconfig())
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.startController(ctx, c.plane.ControllerManager()) })
	group.Go(func() error { return c.startScheduler(ctx, admin) })
	group.Go(func() error { return c.startNodes(ctx, admin) })
	group.Go(func() error { return c.startRealNodes(ctx, admin) })
	group.Go(func() error { return c.startHaulout(ctx, admin) })
	group.Go(func() error { return nodes.WaitDefaultServiceAccount(ctx, admin.Kubernetes) })
	err = group.Wait()
	// If supervise canceled the context because a process ended, the error of that process is the
	// cause.
	var died *processError
	if cause := context.Cause(ctx); err != nil && errors.As(cause, &died) {
		return died
	}
	return err
}

// startAPI starts etcd and kube-apiserver. It does not wait until etcd is ready, because
// kube-apiserver waits for etcd.
func (c *Cluster) startAPI(ctx context.Context) error {
	for _, spec := range []process.Spec{c.plane.Etcd(), c.plane.APIServer()} {
		if _, err := c.ensure(ctx, spec); err != nil {
			return err
		}
	}
	for _, name := range []string{layout.Etcd, layout.APIServer} {
		if err := c.waitReady(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) startController(ctx context.Context, spec process.Spec) error {
	if _, err := c.ensure(ctx, spec); err != nil {
		return err
	}
	return c.waitReady(ctx, spec.Name)
}

// startScheduler starts the scheduler. haulout-scheduler first gets the additional permissions
// without which its plugin does not start.
func (c *Cluster) startScheduler(ctx context.Context, admin *clients.Clients) error {
	if c.options.Scheduler == options.SchedulerHaulout {
		manifests, err := haulout.Load(c.Layout.SchedulerManifests, 0)
		if err != nil {
			return err
		}
		if err := haulout.Apply(ctx, admin, manifests.Prepare); err != nil {
			return err
		}
	}
	return c.startController(ctx, c.plane.Scheduler())
}

// startNodes starts kwok and creates the nodes.
func (c *Cluster) startNodes(ctx context.Context, admin *clients.Clients) error {
	started, err := c.ensure(ctx, c.plane.Kwok())
	if err != nil {
		return err
	}
	made, surplus, err := nodes.EnsureExist(ctx, admin.Kubernetes, c.options.Nodes)
	if err != nil {
		return fmt.Errorf("create nodes: %w", err)
	}
	if surplus > 0 {
		c.printf("%d more nodes than NODES=%d exist and are not deleted", surplus, c.options.Nodes)
	}
	if len(made) > 0 {
		c.printf("Created %d nodes", len(made))
		c.noteChange()
	}
	if err := c.waitReady(ctx, layout.Kwok); err != nil {
		return err
	}
	if started {
		// Nodes may have become not ready while kwok did not run.
		made = made[:0]
		for index := range c.options.Nodes {
			made = append(made, nodes.Name(index))
		}
	}
	if err := nodes.WaitReady(ctx, admin.Kubernetes, made, time.Time{}); err != nil {
		return c.notReady(ctx, layout.Kwok, err)
	}
	return nil
}

// startHaulout prepares the cluster for haulout-apiserver and, depending on HAULOUT, registers and
// starts it.
func (c *Cluster) startHaulout(ctx context.Context, admin *clients.Clients) error {
	port := c.state.Ports[layout.Haulout]
	manifests, err := haulout.Load(c.Layout.Manifests, port)
	if err != nil {
		return err
	}
	if err := haulout.Apply(ctx, admin, manifests.Prepare); err != nil {
		return err
	}
	if err := haulout.WriteKubeconfig(ctx, admin, c.Layout, c.plane.Server()); err != nil {
		return err
	}
	if c.options.Haulout != options.ModeRun {
		if err := c.stop(ctx, layout.Haulout); err != nil {
			return err
		}
	}
	if c.options.Haulout == options.ModePrepare {
		return haulout.Unregister(ctx, admin)
	}
	if c.options.RealNodes > 0 {
		// kube-apiserver connects to endpoints, which a Service of type ExternalName does not have.
		if err := haulout.UseEndpoints(manifests.Register, port); err != nil {
			return err
		}
		err := realnodes.Endpoint(ctx, admin.Kubernetes, haulout.Namespace, haulout.Service, "https", port)
		if err != nil {
			return err
		}
	}
	if err := haulout.Apply(ctx, admin, manifests.Register); err != nil {
		return err
	}
	if c.options.Haulout == options.ModeExternal {
		return nil
	}
	if _, err := c.ensure(ctx, haulout.Spec(c.Layout, port, c.options.HauloutFlags)); err != nil {
		return err
	}
	if err := haulout.WaitServed(ctx, admin, port); err != nil {
		return c.notReady(ctx, layout.Haulout, err)
	}
	return nil
}

// abandon reports why a start failed and stops the processes that this run has started. It keeps
// the other processes and the data of a cluster that ran before.
func (c *Cluster) abandon(ctx context.Context, cause error) error {
	// The context may be done because of the timeout or an interrupt by the user. The cleanup has
	// separate timeouts.
	ctx = context.WithoutCancel(ctx)
	c.printTail(cause)
	c.mu.Lock()
	started := maps.Clone(c.started)
	c.mu.Unlock()
	if err := c.stopAll(ctx, func(name string) bool { return started[name] }); err != nil {
		return errors.Join(cause, err)
	}
	if len(c.state.Processes) > 0 {
		return fmt.Errorf(
			"the cluster in %s is not complete: %w\nThe processes that ran before still run; all others were stopped",
			c.Layout.Dir, cause,
		)
	}
	if len(c.state.Options) > 0 {
		return fmt.Errorf("the cluster did not start: %w\nNo process is left; the data and the logs are in %s",
			cause, c.Layout.Dir)
	}
	// The cluster never ran: remove the data, so that the next attempt starts without them, but
	// keep the logs.
	err := removeAll(c.Layout.Data())
	c.state = state.New()
	err = errors.Join(err, c.state.Save(c.Layout.StateFile()))
	return errors.Join(
		fmt.Errorf("the cluster did not start: %w\nNo process is left; the logs are in %s", cause, c.Layout.Logs()), err,
	)
}

// printTail prints the end of the log of the process that caused an error.
func (c *Cluster) printTail(cause error) {
	var failed *processError
	if !errors.As(cause, &failed) {
		return
	}
	record, ok := c.recorded(failed.name)
	if !ok {
		return
	}
	path := c.Layout.Log(failed.name)
	tail, err := process.Tail(path, record.LogOffset, tailLines)
	if err != nil {
		c.printf("The log of %s cannot be shown: %v", failed.name, err)
		return
	}
	c.printf("%s %s. The end of %s:\n%s", failed.name, firstLine(failed.err), path, indent(tail))
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

func indent(text string) string {
	return "  | " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  | ")
}
