// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeagent is the command haulout-node-agent.
package nodeagent

import (
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/version"
)

// NewCommand returns the command haulout-node-agent.
func NewCommand() *cobra.Command {
	o := &Options{}
	cmd := &cobra.Command{
		Use:   "haulout-node-agent",
		Short: "Make the shutdown of a node a maintenance",
		Long: `haulout-node-agent runs as a service of a node's operating system. When the
machine is about to shut down or reboot, it delays that, makes the shutdown a
NodeMaintenance, and lets the machine go down when the pods have left the node.
If Haulout does not answer, it evicts the pods itself, within their budgets. If the
API does not answer at all or the time is short, it ends the pods on the node, in
the order of their priorities. It also stops and restarts static pods for
maintenances.`,
		Version:      version.Get(),
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	o.addFlags(cmd.PersistentFlags())
	s := platformServices(o)
	cmd.AddCommand(newRunCommand(o), newInstallCommand(o, s), newUninstallCommand(o, s), newStatusCommand(o), newStaticCommand(o), newConfigCommand(o),
		newShutdownCommand(o),
		newWaitCommand())
	return cmd
}

// newConfigCommand returns the commands about the configuration file.
func newConfigCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check the configuration, or make one of the kubelet's",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check",
		Short: "Check the configuration file and print it with all defaults",
		Long: `Check the configuration file, with the flags that override it, and print what the
agent would run with. An error names the field and what is allowed. Nothing is
changed, and no agent needs to run.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.Load()
			if err != nil {
				return err
			}
			data, err := yaml.Marshal(c)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(data)
			return err
		},
	})
	cmd.AddCommand(newMigrateCommand(o))
	return cmd
}
