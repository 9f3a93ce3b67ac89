// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"haulout.dev/haulout/test/cluster/internal/realnodes"
)

// The commands network and node are not for users: `up` starts them.

func network() *cobra.Command {
	var socket string
	var forwards []string
	command := &cobra.Command{
		Use:    "network",
		Short:  "Connects real nodes with kube-apiserver",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var parsed []realnodes.Forward
			for _, text := range forwards {
				f, err := realnodes.ParseForward(text)
				if err != nil {
					return fmt.Errorf("--forward: %w", err)
				}
				parsed = append(parsed, f)
			}
			return realnodes.RunNetwork(command.Context(), socket, parsed)
		},
	}
	command.Flags().StringVar(&socket, "socket", "", "unix socket of the proxy to nodes and pods")
	command.Flags().StringArrayVar(
		&forwards, "forward", nil, "port at the gateway and port of this machine, as ADDRESS:PORT=ADDRESS:PORT",
	)
	return command
}

func node() *cobra.Command {
	var config string
	command := &cobra.Command{
		Use:    "node",
		Short:  "Runs a real node, as PID 1 of its namespaces",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			c, err := realnodes.Load(config)
			if err != nil {
				return fmt.Errorf("--config: %w", err)
			}
			return realnodes.RunNode(command.Context(), c)
		},
	}
	command.Flags().StringVar(&config, "config", "", "file with the configuration of the node")
	return command
}
