// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package command is the command line of the cluster program.
package command

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"haulout.dev/haulout/test/cluster/internal/cluster"
	"haulout.dev/haulout/test/cluster/internal/layout"
	"haulout.dev/haulout/test/cluster/internal/options"
	"haulout.dev/haulout/test/cluster/internal/process"
)

// folders contains the flags with paths.
type folders struct {
	dir, bin, manifests string
}

// New returns the command line.
func New() *cobra.Command {
	var f folders
	command := &cobra.Command{
		Use:           "cluster",
		Short:         "Runs a development cluster: a real control plane with simulated nodes, and haulout-apiserver",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	command.PersistentFlags().StringVar(&f.dir, "cluster-dir", "",
		"folder of the cluster (default: .cluster beside the folder of this program) [$CLUSTER_DIR]")
	command.PersistentFlags().StringVar(
		&f.bin, "bin-dir", "", "folder of the programs (default: the folder of this program)",
	)
	command.PersistentFlags().StringVar(&f.manifests, "manifests", "",
		"kustomization of haulout-apiserver "+
			"(default: artifacts/overlays/development beside the folder of this program)")
	command.AddCommand(up(&f), check(&f), down(&f), status(&f), network(), node())
	return command
}

func up(f *folders) *cobra.Command {
	command := &cobra.Command{
		Use:   "up",
		Short: "Starts the cluster, or the processes of it that do not run",
		Long: "Starts the cluster, or the processes of it that do not run, and restarts processes with changes.\n\n" +
			"Every flag can also be set by an environment variable. " +
			"A flag that is set neither way keeps its value of the last start.",
		Args: cobra.NoArgs,
	}
	source := options.AddFlags(command.Flags())
	command.RunE = func(command *cobra.Command, _ []string) error {
		c, err := f.cluster(command)
		if err != nil {
			return err
		}
		if err := process.KeepDescriptorsPrivate(); err != nil {
			return err
		}
		return c.Up(command.Context(), source)
	}
	return command
}

func check(f *folders) *cobra.Command {
	command := &cobra.Command{
		Use:   "check",
		Short: "Checks the options of up, so that a mistake is reported before a build of several minutes",
		Args:  cobra.NoArgs,
	}
	source := options.AddFlags(command.Flags())
	command.RunE = func(command *cobra.Command, _ []string) error {
		c, err := f.cluster(command)
		if err != nil {
			return err
		}
		return c.Check(source)
	}
	return command
}

func down(f *folders) *cobra.Command {
	var keepData string
	command := &cobra.Command{
		Use:   "down",
		Short: "Stops the cluster and removes its data",
		Args:  cobra.NoArgs,
	}
	command.Flags().StringVar(
		&keepData, "keep-data", os.Getenv("KEEP_DATA"), "1 keeps the data for the next start [$KEEP_DATA]",
	)
	command.RunE = func(command *cobra.Command, _ []string) error {
		keep, err := options.ParseBool("KEEP_DATA", keepData)
		if err != nil {
			return err
		}
		c, err := f.cluster(command)
		if err != nil {
			return err
		}
		return c.Down(command.Context(), keep)
	}
	return command
}

func status(f *folders) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Shows the processes of the cluster; exits with 1 if one does not run",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			c, err := f.cluster(command)
			if err != nil {
				return err
			}
			return c.Status(command.Context())
		},
	}
}

func (f *folders) cluster(command *cobra.Command) (*cluster.Cluster, error) {
	l, err := f.layout()
	if err != nil {
		return nil, err
	}
	return &cluster.Cluster{Layout: l, Out: command.OutOrStdout()}, nil
}

// layout returns the paths. Their defaults are relative to this program, which the Makefile writes
// to bin/.
func (f *folders) layout() (layout.Layout, error) {
	bin := f.bin
	if bin == "" {
		self, err := os.Executable()
		if err != nil {
			return layout.Layout{}, err
		}
		bin = filepath.Dir(self)
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		return layout.Layout{}, err
	}
	dir := f.dir
	if dir == "" {
		dir = os.Getenv("CLUSTER_DIR")
	}
	if dir == "" {
		dir = layout.DefaultDir(bin)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return layout.Layout{}, fmt.Errorf("CLUSTER_DIR=%q: %w", dir, err)
	}
	manifests := f.manifests
	if manifests == "" {
		manifests = filepath.Join(filepath.Dir(bin), "artifacts", "overlays", "development")
	}
	scheduler := filepath.Join(filepath.Dir(bin), "artifacts", "scheduler")
	return layout.Layout{Dir: dir, BinDir: bin, Manifests: manifests, SchedulerManifests: scheduler}, nil
}
