// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package devcluster starts a development cluster for a measurement, runs programs on it, and stops
// it.
package devcluster

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"haulout.dev/haulout/test/internal/program"
)

// startTime is the timeout of a start and of a stop.
const startTime = 5 * time.Minute

// Cluster is a development cluster and the programs for it.
type Cluster struct {
	// Bin is the folder of the programs, Dir the folder of the cluster.
	Bin, Dir string
}

// Main runs a measurement and exits if it fails. Its context ends on a signal that stops the
// process.
func Main(name string, measure func(context.Context) error) {
	// Stop the cluster after SIGHUP and SIGPIPE as well, because the terminal or the reader of the
	// output may be closed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP,
		syscall.SIGPIPE)
	err := measure(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Start starts a cluster in a new folder, with GOGC set for haulout-apiserver. environment has more
// variables for the cluster program. After an error, the caller has to stop the returned cluster as
// well, unless it is nil.
func Start(ctx context.Context, bin string, nodes, gogc int, environment ...string) (*Cluster, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "haulout-bench-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Bin: bin, Dir: dir}
	ctx, cancel := context.WithTimeoutCause(ctx, startTime,
		fmt.Errorf("the cluster did not start within %v", startTime))
	defer cancel()
	up := []string{"up", "--cluster-dir=" + dir, "--nodes=" + strconv.Itoa(nodes), "--pod-stages=fast", "--audit=true"}
	// Start haulout-apiserver in a second step, because GOGC must be set only for it.
	if _, err := c.Run(ctx, environment, c.Program("cluster"), append(up, "--haulout=false")...); err != nil {
		return c, err
	}
	_, err = c.Run(
		ctx, append(slices.Clone(environment), fmt.Sprintf("GOGC=%d", gogc)), c.Program("cluster"),
		append(up, "--haulout=true")...,
	)
	return c, err
}

// StartAudited starts a cluster as Start does, with another audit policy than the default.
func StartAudited(ctx context.Context, bin string, nodes, gogc int, policy string) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "haulout-audit-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		return nil, err
	}
	return Start(ctx, bin, nodes, gogc, "APISERVER_FLAGS=--audit-policy-file="+file)
}

// Stop stops the cluster, even if the context has ended, and removes its folder.
func (c *Cluster) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTime)
	defer cancel()
	if _, err := c.Run(ctx, nil, c.Program("cluster"), "down", "--cluster-dir="+c.Dir, "--keep-data=0"); err != nil {
		return err
	}
	return os.RemoveAll(c.Dir)
}

// Program returns the path of a program.
func (c *Cluster) Program(name string) string { return filepath.Join(c.Bin, name) }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, "kubeconfig") }

// AuditLog returns the path of kube-apiserver's audit log.
func (c *Cluster) AuditLog() string { return filepath.Join(c.Dir, "logs", "kube-apiserver-audit.log") }

// Run runs a program as the cluster's administrator and returns its processor time. The error
// contains the output of the program.
func (c *Cluster) Run(ctx context.Context, environment []string, path string, args ...string) (time.Duration, error) {
	result, err := program.Program{
		Path: path, Environment: append([]string{"KUBECONFIG=" + c.Kubeconfig()}, environment...),
	}.Run(ctx, args...)
	return result.CPU, err
}
