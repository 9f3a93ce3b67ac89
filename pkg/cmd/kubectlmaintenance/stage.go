// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/drainer"
)

// waitOptions are the flags of the commands that write a maintenance and may wait for the result.
type waitOptions struct {
	wait, yes bool
	// uncordonAll allows that a maintenance in stage Idle uncordons nodes that others cordoned.
	uncordonAll bool
	// expectsKept is set if pods that are kept on the nodes do not change the exit code.
	expectsKept bool
	timeout     timeout
	dryRun      dryRun
	output      *output
}

func (o *waitOptions) addStageFlags(cmd *cobra.Command, waits bool, waitUsage string) {
	cmd.Flags().BoolVar(&o.wait, "wait", waits, waitUsage)
	cmd.Flags().Var(&o.timeout, "timeout", "How long to wait, such as 5m; 0 waits forever. After a timeout the server continues.")
	o.addWriteFlags(cmd)
}

// addKeptFlag adds the flag for pods that are kept, with the name that it has in kubectl drain.
func (o *waitOptions) addKeptFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.expectsKept, "ignore-daemonsets", false,
		"Expect pods that are kept, such as DaemonSet pods that would be recreated on the node: end with exit code 0 instead of 6. Other DaemonSet pods leave last.")
}

func (o *waitOptions) addWriteFlags(cmd *cobra.Command) {
	o.dryRun.addFlag(cmd)
	o.output.addFlags(cmd)
}

// unchanged makes the command print unchanged after the name of the object, as kubectl does: the
// object has the requested state already.
func (o *waitOptions) unchanged() error {
	o.output.says("unchanged")
	return o.dryRun.complete(o.output)
}

func (o *waitOptions) addUncordonFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&o.uncordonAll, "uncordon-all", false,
		"From stage Idle to Complete, uncordon also nodes that others have cordoned, without a question.")
}

// needsWait returns an error if there is a timeout and the command does not wait.
func (o *waitOptions) needsWait() error {
	if o.timeout.Duration > 0 && !o.wait {
		return errors.New("--timeout needs --wait")
	}
	return nil
}

func (o *waitOptions) validate() error {
	if o.timeout.Duration < 0 {
		return fmt.Errorf("invalid --timeout %s: it must not be negative; 0 waits forever", o.timeout.text)
	}
	return errors.Join(o.dryRun.complete(o.output), o.output.validate())
}

func (e *environment) newStageCommand() *cobra.Command {
	o := &waitOptions{output: outputOfObjects("")}
	cmd := &cobra.Command{
		Use:   "stage NAME STAGE",
		Short: "Move a maintenance to its next stage",
		Long: `Move a maintenance to a later stage: Cordon, Drain or Complete. Stages only go forward.

Before a drain begins, the command shows what will block it, as start does. Complete is the same as "kubectl
maintenance complete NAME".

The command asks for a confirmation if the maintenance selects all nodes or all control-plane nodes of the cluster,
unless --yes is given.`,
		Example: `  # Drain the nodes of a maintenance that is in stage Idle or Cordon
  kubectl maintenance stage kernel-update Drain

  # ... and wait until they are drained
  kubectl maintenance stage kernel-update Drain --wait --timeout=1h`,
		Args: exactArgs("stage needs the name of a maintenance and a stage: Cordon, Drain or Complete", 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return laterStages, cobra.ShellCompDirectiveNoFileComp
			}
			return e.completeActive(cmd, args, toComplete)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			stage, err := stageOf(args[1], laterStages)
			if err != nil {
				return err
			}
			if err := o.needsWait(); err != nil {
				return err
			}
			o.output.says("moved to stage " + string(stage))
			return e.moveTo(cmd.Context(), o, maintenanceName(args[0]), stage)
		},
	}
	o.addStageFlags(cmd, false, "Wait until the stage is reached: the nodes are cordoned, drained or released.")
	o.addKeptFlag(cmd)
	o.addUncordonFlag(cmd)
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "Do not ask for a confirmation if all nodes or all control-plane nodes are selected.")
	return cmd
}

var laterStages = []string{string(v1alpha1.NodeMaintenanceStageCordon), string(v1alpha1.NodeMaintenanceStageDrain), string(v1alpha1.NodeMaintenanceStageComplete)}

func (e *environment) newCompleteCommand() *cobra.Command {
	o := &waitOptions{output: outputOfObjects("completed"), yes: true}
	cmd := &cobra.Command{
		Use:   "complete NAME",
		Short: "Put the nodes of a maintenance back into service",
		Long: `Put the nodes of a maintenance back into service: the server withdraws open Evacuations and makes the
nodes schedulable, unless another maintenance holds them.

Nodes that others had cordoned before stay cordoned, with one exception: a maintenance that goes from stage Idle
straight to Complete has cordoned nothing, and uncordons all of its nodes. Before it uncordons a node that others have
cordoned, the command asks for a confirmation; without a terminal it needs --uncordon-all. "kubectl maintenance cancel
NAME" ends a maintenance in stage Idle and uncordons nothing.

The object and its history are kept until the object is deleted.`,
		Example:    `  kubectl maintenance complete kernel-update`,
		SuggestFor: []string{"uncordon", "undrain", "finish", "end", "release", "abort", "stop", "undo"},
	}
	o.addStageFlags(cmd, true, "Wait until the nodes are released.")
	o.addUncordonFlag(cmd)
	return aboutOne(cmd, "a maintenance", e.completeActive, func(ctx context.Context, name string) error {
		return e.moveTo(ctx, o, maintenanceName(name), v1alpha1.NodeMaintenanceStageComplete)
	})
}

func (e *environment) newCancelCommand() *cobra.Command {
	o := &waitOptions{output: outputOfObjects("cancelled")}
	cmd := &cobra.Command{
		Use:   "cancel NAME",
		Short: "Cancel a maintenance: put its nodes back into service and delete it",
		Long: `Cancel a maintenance: put its nodes back into service, and delete the object. If a drain is in progress, pods that
have not left stay; pods that have left do not return to their nodes by themselves.

The history goes with the object; "kubectl maintenance complete NAME" keeps it. The nodes of a maintenance in stage
Idle are not changed, while complete would uncordon them. A maintenance of a rollout cannot be cancelled: without the
object, the rollout would start its unit again.`,
		Example:    `  kubectl maintenance cancel kernel-update`,
		SuggestFor: []string{"delete", "stop", "abort", "undo"},
	}
	o.addStageFlags(cmd, true, "Wait until the nodes are released and the object is deleted.")
	return aboutOne(cmd, "a maintenance", e.completeMaintenances, func(ctx context.Context, name string) error { return e.cancel(ctx, o, maintenanceName(name)) })
}

// maintenanceName removes the kind from a name such as nodemaintenance/kernel-update.
func maintenanceName(arg string) string {
	return withoutKind(arg, "nm", "nodemaintenance", "nodemaintenances", "nodemaintenance."+v1alpha1.GroupName,
		"nodemaintenances."+v1alpha1.GroupName)
}

// connectToChange checks the flags of a command that changes an object.
func (e *environment) connectToChange(o *waitOptions) (clients, error) {
	if o.dryRun.strategy == dryRunClient {
		return clients{}, errors.New("invalid --dry-run=client: only the server can check whether the change is allowed; use --dry-run=server")
	}
	if err := o.validate(); err != nil {
		return clients{}, err
	}
	return e.connect()
}

// stored checks the flags, and reads the maintenance that the command changes.
func (e *environment) stored(ctx context.Context, o *waitOptions, name string) (c clients, nm *v1alpha1.NodeMaintenance, err error) {
	if c, err = e.connectToChange(o); err != nil {
		return c, nil, err
	}
	nm, err = c.haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
	return c, nm, err
}

// moveTo sets the stage of a maintenance and, with --wait, waits until the maintenance has reached
// the stage.
func (e *environment) moveTo(ctx context.Context, o *waitOptions, name string, stage v1alpha1.NodeMaintenanceStage) error {
	c, nm, err := e.stored(ctx, o, name)
	if err != nil {
		return err
	}
	if !o.dryRun.isOn() && nm.Spec.Stage != stage {
		if err := e.checkMove(ctx, c, nm, stage, o); err != nil {
			return err
		}
	}
	note := ""
	if stage == v1alpha1.NodeMaintenanceStageDrain && nm.Spec.Stage != stage {
		note, err = e.previewFirst(ctx, name, func(ctx context.Context) (*v1alpha1.NodeMaintenancePreview, error) {
			return previewStored(ctx, c, name)
		})
		if err != nil {
			return err
		}
	}
	moved, err := newDrainer(c, o).Start(ctx, nm, stage)
	if err != nil {
		return err
	}
	if note != "" {
		e.screen(e.ErrOut).Printf("%s", note)
	}
	if nm.Spec.Stage == stage {
		if err := o.unchanged(); err != nil {
			return err
		}
	}
	if err := e.write(o.output, moved); err != nil || o.dryRun.isOn() {
		return err
	}
	switch {
	case !o.wait:
		e.tellPaused(moved)
		return nil
	case stage == v1alpha1.NodeMaintenanceStageComplete:
		return e.awaitEnd(ctx, c, moved, drainer.Complete, o)
	}
	return e.awaitStage(ctx, c, moved, stage, o)
}

// checkMove asks for a confirmation if a move to a stage may have effects that the user does not
// expect.
func (e *environment) checkMove(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, stage v1alpha1.NodeMaintenanceStage, o *waitOptions) error {
	if stage != v1alpha1.NodeMaintenanceStageComplete {
		return e.checkNodes(ctx, c, &chosen{selector: nm.Spec.NodeSelector}, nodeChecks{stage: stage, yes: o.yes, stored: true})
	}
	if nm.Spec.Stage != v1alpha1.NodeMaintenanceStageIdle || o.uncordonAll {
		return nil
	}
	nodes, err := selectedNodes(ctx, c, nm.Spec.NodeSelector)
	text := "nodes that others have cordoned, if there are any (you may not read the nodes)"
	switch {
	case apierrors.IsForbidden(err):
	case err != nil:
		return err
	default:
		foreign, err := cordonedByOthers(nm.Spec.NodeSelector, nodes)
		if err != nil || len(foreign) == 0 {
			return err
		}
		text = "nodes that others have cordoned: " + wording.FirstOf(foreign)
	}
	text = fmt.Sprintf("%[1]s is in stage Idle, so Complete uncordons %[2]s. To end it and leave its nodes as they are: kubectl maintenance cancel %[1]s.", nm.Name, text)
	return e.confirm(ctx, text, "Without a terminal, this needs --uncordon-all.")
}

// cordonedByOthers returns the selected nodes that are cordoned, but not by Haulout.
func cordonedByOthers(selector *corev1.NodeSelector, nodes []corev1.Node) ([]string, error) {
	matcher, err := nodeaffinity.NewNodeSelector(selector)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range nodes {
		if marks.IsCordonedByOthers(&nodes[i]) && matcher.Match(&nodes[i]) {
			names = append(names, nodes[i].Name)
		}
	}
	return names, nil
}

func (e *environment) cancel(ctx context.Context, o *waitOptions, name string) error {
	c, nm, err := e.stored(ctx, o, name)
	if err != nil {
		return err
	}
	if rollout := protocol.RolloutOf(nm); rollout != nil {
		return fmt.Errorf("%[1]s belongs to rollout %[2]s, which would start its unit again. To end the unit: kubectl maintenance complete %[1]s; "+
			"to try it again: kubectl maintenance rollout retry %[2]s %[3]s", name, rollout.Name, nm.Annotations[v1alpha1.AnnotationRolloutUnit])
	}
	if err := newDrainer(c, o).Cancel(ctx, nm); err != nil {
		return err
	}
	if !o.dryRun.isOn() && o.wait {
		if err := e.awaitEnd(ctx, c, nm, drainer.Deleted, o); err != nil {
			return err
		}
	}
	return e.write(o.output, nm)
}

// aboutOne completes a command whose argument is the name of one object; the error about another
// number of arguments names what it is.
func aboutOne(cmd *cobra.Command, what string, complete cobra.CompletionFunc, run func(ctx context.Context, arg string) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = exactArgs(cmd.Name()+" needs the name of "+what, 1), complete
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), args[0]) }
	return cmd
}

// exactArgs checks the number of arguments; its error names the arguments.
func exactArgs(what string, count int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == count && !slices.Contains(args, "") {
			return nil
		}
		return fmt.Errorf("%s (%s --help)", what, cmd.CommandPath())
	}
}

// atMostOneName is for commands that show one maintenance or all.
func atMostOneName(cmd *cobra.Command, args []string) error {
	if len(args) <= 1 {
		return nil
	}
	return fmt.Errorf("%s takes the name of one maintenance, or none (%s --help)", cmd.Name(), cmd.CommandPath())
}
