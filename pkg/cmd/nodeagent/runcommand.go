// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"

	"github.com/spf13/cobra"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/version"
)

// newRunCommand returns the command that is the service.
func newRunCommand(o *Options) *cobra.Command {
	logging := logsapi.NewLoggingConfiguration()
	r := &runner{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the agent",
		Long: `Run the agent until it is stopped. The service that 'install' creates runs this; it
needs the rights of the machine's administrator.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return r.start(cmd.Context(), o, func(ctx context.Context) error {
				if err := logsapi.ValidateAndApply(logging, nil); err != nil {
					return err
				}
				defer logs.FlushLogs()
				klog.FromContext(ctx).Info("Starting haulout-node-agent", "version", version.Get(), "goVersion", version.GoVersion())
				return r.run(ctx, o)
			})
		},
	}
	r.addFlags(cmd.Flags())
	logsapi.AddFlags(logging, cmd.Flags())
	return cmd
}
