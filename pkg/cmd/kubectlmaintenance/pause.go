// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
	"haulout.dev/haulout/pkg/rollout/window"
)

func (e *environment) newPauseCommand() *cobra.Command {
	o := &waitOptions{output: outputOfObjects("paused")}
	cmd := &cobra.Command{
		Use:   "pause NAME",
		Short: "Pause a drain: no further pod is asked to leave",
		Long: `Pause a drain: the server asks no further pod to leave for this maintenance, and withdraws the requests that no
evacuator has begun. Pods that are already leaving finish. The nodes stay cordoned, and the maintenance keeps its
plan and its history. Another maintenance of the same nodes goes on.

In the stages Idle and Cordon the pause has an effect when stage Drain begins, except that no node is offered to a
worker meanwhile. A worker that has a node keeps it.

You need the rights with which you could change the stage. "kubectl maintenance resume NAME" continues the drain.`,
		Example:    `  kubectl maintenance pause kernel-update`,
		SuggestFor: []string{"hold", "suspend", "stop", "freeze", "halt"},
	}
	o.addWriteFlags(cmd)
	return aboutOne(cmd, "a maintenance", e.completeActive, func(ctx context.Context, name string) error { return e.setPaused(ctx, o, maintenanceName(name), true) })
}

func (e *environment) newResumeCommand() *cobra.Command {
	o := &waitOptions{output: outputOfObjects("resumed")}
	cmd := &cobra.Command{
		Use:   "resume NAME",
		Short: "Continue a drain that was paused",
		Long: `Continue a drain that was paused, and print who had paused it. The server asks the pods to leave again, wave by
wave, within their disruption budgets.`,
		Example:    `  kubectl maintenance resume kernel-update`,
		SuggestFor: []string{"unpause", "continue", "proceed"},
	}
	o.addWriteFlags(cmd)
	return aboutOne(cmd, "a maintenance", e.completeActive, func(ctx context.Context, name string) error { return e.setPaused(ctx, o, maintenanceName(name), false) })
}

// setPaused sets spec.paused of a maintenance. It writes nothing if the field has the value.
func (e *environment) setPaused(ctx context.Context, o *waitOptions, name string, paused bool) error {
	c, nm, err := e.stored(ctx, o, name)
	if err != nil {
		return err
	}
	before := ""
	if nm.Spec.Paused {
		before = show.PausedBy(nm, e.now())
	}
	switch {
	case v1alpha1.IsEnding(nm):
		return fmt.Errorf("%s is in stage %s, which cannot be paused or resumed", nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	case paused == nm.Spec.Paused:
		if err := errors.Join(o.unchanged(), e.write(o.output, nm)); err != nil {
			return err
		}
		if paused {
			e.screen(e.ErrOut).Printf("It was already paused %s.", before)
			if owner := protocol.PausingRollout(nm); owner != nil {
				e.screen(e.ErrOut).Printf("A hold of rollout %[1]s has paused it, and resumes it when it ends. For a hold of your own: kubectl maintenance rollout hold %[1]s --drains", owner.Name)
			}
		} else {
			e.screen(e.ErrOut).Printf("It was not paused.")
		}
		return nil
	}
	if owner := protocol.PausingRollout(nm); owner != nil && !paused {
		r, err := c.haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts().Get(ctx, owner.Name, metav1.GetOptions{})
		if err == nil && window.HoldsAt(r.Spec.Holds, e.now()).Drains {
			return fmt.Errorf("a hold of rollout %[1]s has paused %[2]s, and would pause it again. To end the hold: %[3]s", owner.Name, nm.Name, protocol.ResumeCommand(nm))
		}
	}
	write := newDrainer(c, o).Pause
	if !paused {
		write = newDrainer(c, o).Resume
	}
	written, err := write(ctx, nm)
	if err != nil {
		return err
	}
	if err := e.write(o.output, written); err != nil || o.dryRun.isOn() {
		return err
	}
	switch {
	case !paused:
		e.screen(e.ErrOut).Printf("It was paused %s.", before)
	case written.Spec.Stage == v1alpha1.NodeMaintenanceStageCordon && written.Spec.Task != nil:
		e.screen(e.ErrOut).Printf("No node is offered to a worker. To continue: kubectl maintenance resume %s", nm.Name)
	case written.Spec.Stage != v1alpha1.NodeMaintenanceStageDrain:
		e.screen(e.ErrOut).Printf("The pause has an effect when stage Drain begins. To end it: kubectl maintenance resume %s", nm.Name)
	default:
		e.screen(e.ErrOut).Printf("No further pod is asked to leave. To continue: kubectl maintenance resume %s", nm.Name)
	}
	return nil
}
