// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// newWaitCommand returns the command of the pods that install the agent. Its only use is there.
func newWaitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "wait",
		Short: "Do nothing until SIGTERM, in the pods of the DaemonSet that installs the agent",
		Long: `Do nothing until SIGTERM. A DaemonSet needs a container that runs; the one that
installs the agent has ended by then.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt)
			defer stop()
			<-ctx.Done()
			return nil
		},
	}
}
