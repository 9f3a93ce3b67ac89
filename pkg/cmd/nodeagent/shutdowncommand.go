// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
)

// withinDirectory returns where a request to shorten a shutdown is kept.
func withinDirectory(c *v1alpha1.NodeAgentConfiguration) string {
	return cmp.Or(state.RunDirectory, c.StateDirectory)
}

// readWithin returns the last request to shorten a shutdown, nil if there is none.
func readWithin(ctx context.Context, c *v1alpha1.NodeAgentConfiguration) *state.Within {
	w, err := state.ReadWithin(withinDirectory(c))
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot read the request to shorten a shutdown", "err", err)
	}
	return w
}

// newShutdownCommand returns the command that shortens a shutdown.
func newShutdownCommand(o *Options) *cobra.Command {
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "shutdown --within=DURATION",
		Short: "Shorten the shutdown that is pending or comes next",
		Long: `Shorten the shutdown that is pending, or the next one if it begins within five
minutes: the machine goes down DURATION from now. The command starts no shutdown,
and never lengthens one. It is for programs that hear that the machine is about to
be taken away, such as a handler of spot notices, and that then shut it down:

  haulout-node-agent shutdown --within=120s && systemctl poweroff`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if within < time.Second {
				return errors.New("--within must be at least 1s")
			}
			c, err := o.Load()
			if err != nil {
				return err
			}
			bootID, err := state.BootID()
			if err != nil {
				return err
			}
			request := state.Within{BootID: bootID, SinceBoot: state.SinceBoot(), Within: within}
			dir := withinDirectory(c)
			if old, err := state.ReadWithin(dir); err == nil && shutdown.IsSooner(old, &request) {
				request = *old
			} else if err := state.WriteWithin(dir, request); err != nil {
				return err
			}
			left := request.SinceBoot + request.Within - state.SinceBoot()
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "A shutdown that is pending, or begins in the next 5 minutes, has %s\n", left.Round(time.Second))
			return err
		},
	}
	cmd.Flags().DurationVar(&within, "within", within, "How long the machine runs from now on, at least 1s. Required.")
	return cmd
}
