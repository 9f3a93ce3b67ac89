// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drainer"
)

// waitStates are the values of --for.
var waitStates = []string{string(drainer.Cordoned), string(drainer.Drained), string(drainer.Complete)}

func (e *environment) newWaitCommand() *cobra.Command {
	o := &waitOptions{output: outputOfObjects(""), dryRun: dryRun{strategy: dryRunNone}}
	var state string
	cmd := &cobra.Command{
		Use:   "wait NAME",
		Short: "Wait until nodes are cordoned, drained or released",
		Long: `Wait until a maintenance has cordoned, drained or released its nodes, and show its progress. The exit codes are
those of start --wait, so a script can wait again after an interruption or on another machine.

The command changes nothing: a maintenance in stage Cordon is drained only after "kubectl maintenance stage NAME Drain".
It prints immediately that a maintenance is paused, and waits for its end.

Without --timeout, the command also waits for a maintenance that is blocked: it goes on when a user has acted. A
maintenance that does not exist is an error, also with --for=complete, since its name may be misspelled; one that is
deleted during this wait has released its nodes.`,
		Example: `  # Wait again after Ctrl-C
  kubectl maintenance wait kernel-update

  # Wait until the nodes are back in service, for ten minutes at most
  kubectl maintenance wait kernel-update --for=complete --timeout=10m`,
		Args: exactArgs("wait needs the name of a maintenance", 1), ValidArgsFunction: e.completeMaintenances,
		SuggestFor: []string{"follow", "attach"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.wait(cmd.Context(), o, maintenanceName(args[0]), state)
		},
	}
	cmd.Flags().StringVar(&state, "for", "",
		"What to wait for: cordoned, drained or complete. The default is the state that the present stage leads to.")
	cmd.Flags().Var(&o.timeout, "timeout", "How long to wait, such as 1h30m; 0 waits forever. After a timeout the maintenance continues.")
	o.addKeptFlag(cmd)
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions(waitStates, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (e *environment) wait(ctx context.Context, o *waitOptions, name, state string) error {
	if state != "" {
		var err error
		if state, err = oneOf("--for", state, waitStates); err != nil {
			return err
		}
	}
	c, nm, err := e.stored(ctx, o, name)
	if err != nil {
		return err
	}
	stage := nm.Spec.Stage
	switch {
	case state != "":
		stage = drainer.State(state).Stage()
	case v1alpha1.IsEnding(nm):
		stage = v1alpha1.NodeMaintenanceStageComplete
	case stage == v1alpha1.NodeMaintenanceStageIdle:
		return fmt.Errorf("%s is in stage Idle, in which nothing happens: say with --for what to wait for", name)
	}
	if stage != v1alpha1.NodeMaintenanceStageComplete {
		return e.awaitStage(ctx, c, nm, stage, o)
	}
	return e.awaitComplete(ctx, c, nm, o)
}

// awaitComplete waits until a maintenance has released its nodes or is deleted, and shows the
// progress until then.
func (e *environment) awaitComplete(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, o *waitOptions) error {
	e.tellPaused(nm)
	last, err := e.await(ctx, c, nm, drainer.Complete, o, e.Out)
	switch {
	case err != nil && ctx.Err() != nil:
		return exitWith(exitInterrupted, "interrupted; %[1]s continues. To wait again: kubectl maintenance wait %[1]s --for=complete", nm.Name)
	case err != nil && last != nil && v1alpha1.IsEnding(last):
		return notReleased(err, nm.Name, o)
	case err != nil:
		return e.notReached(err, nm, o)
	case last == nil:
		e.screen(e.Out).Printf("%s was deleted.", nm.Name)
	default:
		e.screen(e.Out).Printf("%s is complete.", nm.Name)
	}
	return nil
}
