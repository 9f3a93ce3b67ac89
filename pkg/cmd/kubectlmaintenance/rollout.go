// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/retry"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
	"haulout.dev/haulout/pkg/drain/nodeselector"
	"haulout.dev/haulout/pkg/mergepatch"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/rollout/window"
)

func (e *environment) newRolloutCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout COMMAND",
		Short: "Follow and steer rollouts, which maintain the nodes of a pool a few at a time",
		Long: `Follow and steer rollouts. A rollout is an object in the cluster (kubectl get nodemaintenancerollouts) that takes
all nodes of a selector out of service and back, a few at a time, with work on each: a reboot, your script, or your
hands ("kubectl maintenance take"). Create it with kubectl apply; docs/rollouts.md has examples.`,
		Example: `  # How far is it, what does it wait for, and who has to act?
  kubectl maintenance rollout status kernel-6-12`,
		Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddGroup(&cobra.Group{ID: groupPools, Title: "Rollouts:"})
	for _, sub := range []*cobra.Command{
		e.newRolloutStatusCommand(), e.newHoldCommand(), e.newRolloutResumeCommand(), e.newRunNowCommand(), e.newRetryCommand(), e.newStopCommand(),
	} {
		sub.GroupID = groupPools
		cmd.AddCommand(sub)
	}
	return cmd
}

// changing completes a command that changes the rollout of its first argument.
func (e *environment) changing(cmd *cobra.Command, operation string, run func(context.Context, *waitOptions, string) error) *cobra.Command {
	o := &waitOptions{output: outputOfObjects(operation)}
	o.addWriteFlags(cmd)
	return aboutOne(cmd, "a rollout", e.completeRollouts, func(ctx context.Context, name string) error { return run(ctx, o, rolloutName(name)) })
}

func (e *environment) newHoldCommand() *cobra.Command {
	var hold v1alpha1.RolloutHold
	var drains bool
	cmd := &cobra.Command{
		Use: "hold NAME --reason=TEXT", Short: "Hold a rollout: no further unit starts", SuggestFor: []string{"pause", "suspend", "freeze"},
		Long: `Hold a rollout: no further unit starts. Units that run finish. With --drains, units that no worker has claimed are
paused, too: their nodes stay cordoned, and no further pod is asked to leave.

You need the right to patch the rollout, and no right to its nodes. The hold has your user name, unless you give it
another name, which people who share an account need. A rollout is held as long as it has a hold; "kubectl maintenance
rollout resume NAME" removes yours.`,
		Example: `  kubectl maintenance rollout hold kernel-6-12 --reason='storage rebuilds'`,
	}
	cmd.Flags().StringVar(&hold.Reason, "reason", "", "Why the rollout is held.")
	cmd.Flags().StringVar(&hold.Name, "name", "", "The name of the hold; the default is your user name.")
	cmd.Flags().BoolVar(&drains, "drains", false, "Also pause the drains of units that no worker has claimed.")
	return e.changing(cmd, "held", func(ctx context.Context, o *waitOptions, name string) error {
		if hold.Reason == "" {
			return errors.New("hold needs --reason: other users see it, and decide whether they can go on")
		}
		if hold.Stops = v1alpha1.RolloutHoldStarts; drains {
			hold.Stops = v1alpha1.RolloutHoldDrains
		}
		return e.hold(ctx, o, name, hold)
	})
}

func (e *environment) hold(ctx context.Context, o *waitOptions, name string, hold v1alpha1.RolloutHold) error {
	named, user := hold.Name != "", ""
	if !named {
		var err error
		if _, user, err = e.connectAs(ctx); err != nil {
			return fmt.Errorf("%w; give the hold a name with --name", err)
		}
		if hold.Name = holdName(user); hold.Name == "" {
			return fmt.Errorf("no name can be made of your user name %q; give the hold a name with --name", user)
		}
	}
	asked := hold.Stops
	written, err := e.changeRollout(ctx, o, name, func(r *v1alpha1.NodeMaintenanceRollout) (map[string]any, error) {
		hold.Stops = asked // a refused try may have changed it
		holds := slices.Clone(r.Spec.Holds)
		at := slices.IndexFunc(holds, func(h v1alpha1.RolloutHold) bool { return h.Name == hold.Name })
		if at < 0 {
			return map[string]any{"holds": append(holds, hold)}, nil
		}
		old := &holds[at]
		if window.IsOver(old, e.now()) {
			*old = hold
			return map[string]any{"holds": holds}, nil
		}
		if old.By != user && !named {
			// The names of two users can become the same name of a hold.
			return nil, fmt.Errorf("%s has a hold %q of another user: %s. To add another hold: --name=NAME", name, hold.Name, e.holds(holds[at:at+1]))
		}
		if old.Reason != hold.Reason && !named {
			// Several people may use the same account.
			return nil, fmt.Errorf("%s has a hold with your user name: %s. To add another hold: --name=NAME; to change this one: --name=%s",
				name, e.holds(holds[at:at+1]), hold.Name)
		}
		if old.Stops == v1alpha1.RolloutHoldDrains {
			hold.Stops = old.Stops // only resume ends what a hold stops
		}
		if begun := old.From == nil || !old.From.After(e.now()); begun && old.Reason == hold.Reason && old.Stops == hold.Stops {
			return nil, nil
		}
		old.Reason, old.Stops, old.From = hold.Reason, hold.Stops, nil // it applies from now on
		return map[string]any{"holds": holds}, nil
	})
	if err == nil && !o.dryRun.isOn() {
		paused := ""
		if hold.Stops == v1alpha1.RolloutHoldDrains {
			paused = ", and drains that no worker has claimed pause"
		}
		e.screen(e.ErrOut).Printf("No further unit starts%s; %d of its nodes are in work. To continue: kubectl maintenance rollout resume %s --name=%s",
			paused, written.Status.Nodes.Running, name, hold.Name)
	}
	return err
}

// holdName makes a DNS label of the name of a user; "" if there is no letter to make it of.
func holdName(user string) string {
	name := title(user)
	return strings.Trim(name[:min(len(name), validation.DNS1123LabelMaxLength)], "-")
}

func (e *environment) newRolloutResumeCommand() *cobra.Command {
	var hold string
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "Remove your hold of a rollout", SuggestFor: []string{"unhold", "release", "continue"},
		Long: `Remove your hold of a rollout, or the one with --name, which is needed if your user name has several. The rollout
continues when no hold is left. To remove the hold of another user you need the right to maintain the nodes of the
rollout, and to assign its workers.`,
		Example: `  kubectl maintenance rollout resume kernel-6-12`,
	}
	cmd.Flags().StringVar(&hold, "name", "", "Remove the hold with this name.")
	return e.changing(cmd, "resumed", func(ctx context.Context, o *waitOptions, name string) error {
		return e.removeHolds(ctx, o, name, hold)
	})
}

func (e *environment) removeHolds(ctx context.Context, o *waitOptions, name, hold string) error {
	user := ""
	if hold == "" {
		var err error
		if _, user, err = e.connectAs(ctx); err != nil {
			return fmt.Errorf("%w; name the hold with --name", err)
		}
	}
	var left []v1alpha1.RolloutHold
	_, err := e.changeRollout(ctx, o, name, func(r *v1alpha1.NodeMaintenanceRollout) (map[string]any, error) {
		isMeant := func(h v1alpha1.RolloutHold) bool { return hold != "" && h.Name == hold || hold == "" && h.By == user }
		left = slices.DeleteFunc(slices.Clone(r.Spec.Holds), isMeant)
		meant := slices.DeleteFunc(slices.Clone(r.Spec.Holds), func(h v1alpha1.RolloutHold) bool { return !isMeant(h) || window.IsOver(&h, e.now()) })
		switch {
		case len(r.Spec.Holds) == 0:
			return nil, nil
		case len(meant) > 1:
			// Several people may use the same account.
			return nil, fmt.Errorf("%d holds of %s have your user name (%s): %s. To remove one of them: --name", len(meant), name, user, e.holds(meant))
		case len(left) < len(r.Spec.Holds):
			return map[string]any{"holds": left}, nil
		case hold != "":
			return nil, fmt.Errorf("%s has no hold %q; it has: %s", name, hold, e.holds(left))
		}
		return nil, fmt.Errorf("no hold of %s is yours (%s): %s. To remove one of them: --name", name, user, e.holds(left))
	})
	if active := window.HoldsAt(left, e.now()).Active; err == nil && len(active) > 0 {
		e.screen(e.ErrOut).Printf("It is still held: %s", e.holds(active))
	}
	return err
}

func (e *environment) holds(holds []v1alpha1.RolloutHold) string {
	texts := make([]string, 0, len(holds))
	for i := range holds {
		texts = append(texts, show.Hold(&holds[i], e.now()))
	}
	return strings.Join(texts, "; ")
}

// clockSkew is the time by which the clock of the user may be ahead of that of the server: run-now
// opens its window so much earlier.
const clockSkew = 5 * time.Minute

// maxRunNow is the longest time for which run-now opens a window: with clockSkew, a window may be
// open for 168 h.
const maxRunNow = 167 * time.Hour

func (e *environment) newRunNowCommand() *cobra.Command {
	var length time.Duration
	cmd := &cobra.Command{
		Use: "run-now NAME --for=DURATION", Short: "Open a window of a rollout immediately",
		Long: `Open a window of a rollout immediately, for a limited time: the command adds an entry to spec.windows, and removes
entries for single windows that are over. Limits and holds apply as always.`,
		Example: `  kubectl maintenance rollout run-now kernel-6-12 --for=2h`,
	}
	cmd.Flags().DurationVar(&length, "for", 0, "How long units may start, such as 2h.")
	return e.changing(cmd, "opened", func(ctx context.Context, o *waitOptions, name string) error {
		if length < time.Minute || length > maxRunNow {
			return errors.New("run-now needs --for, the time for which units may start: from 1m to 167h, such as 2h")
		}
		return e.runNow(ctx, o, name, length)
	})
}

func (e *environment) runNow(ctx context.Context, o *waitOptions, name string, length time.Duration) error {
	written, err := e.changeRollout(ctx, o, name, func(r *v1alpha1.NodeMaintenanceRollout) (map[string]any, error) {
		if len(r.Spec.Windows) == 0 {
			return nil, fmt.Errorf("%s has no windows, so its units may start at any time", name)
		}
		now := e.now()
		windows := slices.DeleteFunc(slices.Clone(r.Spec.Windows), func(w v1alpha1.RolloutWindow) bool {
			return w.Start != nil && w.Start.Add(w.Duration.Duration).Before(now)
		})
		start := metav1.NewTime(now.Add(-clockSkew))
		windows = append(windows, v1alpha1.RolloutWindow{Start: &start, Duration: metav1.Duration{Duration: length + clockSkew}})
		return map[string]any{"windows": windows}, nil
	})
	if err != nil {
		return err
	}
	if written.Spec.Stage == v1alpha1.RolloutStageIdle {
		e.screen(e.ErrOut).Printf("Note: it is in stage Idle, in which no unit starts.")
	} else if active := window.HoldsAt(written.Spec.Holds, e.now()).Active; len(active) > 0 {
		e.screen(e.ErrOut).Printf("Note: it is held: %s", e.holds(active))
	}
	return nil
}

func (e *environment) newStopCommand() *cobra.Command {
	return e.changing(&cobra.Command{
		Use: "stop NAME", Short: "End a rollout: nothing starts any more", SuggestFor: []string{"complete", "cancel", "abort", "end", "undo"},
		Long: `End a rollout: it moves to stage Complete, and never back. No further unit starts. Units of which no worker
has a node return to service now, the others when their work is done. Units with a failed node stay until you act.

To stop it for a while: "kubectl maintenance rollout hold NAME".`,
		Example: `  kubectl maintenance rollout stop kernel-6-12`,
	}, "stopped", e.stop)
}

func (e *environment) stop(ctx context.Context, o *waitOptions, name string) error {
	written, err := e.changeRollout(ctx, o, name, func(r *v1alpha1.NodeMaintenanceRollout) (map[string]any, error) {
		if r.Spec.Stage == v1alpha1.RolloutStageComplete {
			return nil, nil
		}
		return map[string]any{"stage": v1alpha1.RolloutStageComplete}, nil
	})
	if err != nil {
		return err
	}
	inWork := 0
	for i := range written.Status.Current {
		if unit := &written.Status.Current[i]; unit.Phase == v1alpha1.RolloutPhaseClaimed || unit.Phase == v1alpha1.RolloutPhaseVerifying {
			inWork += len(unit.Nodes)
		}
	}
	if failed := int(written.Status.Nodes.Failed); inWork+failed > 0 {
		e.screen(e.ErrOut).Printf("%d of its nodes are with workers or being verified, and %d have failed. To see them: kubectl maintenance rollout status %s", inWork, failed, name)
	}
	return nil
}

func (e *environment) newRetryCommand() *cobra.Command {
	o := &waitOptions{output: outputOfObjects("retried")}
	cmd := &cobra.Command{
		Use:   "retry NAME UNIT",
		Short: "Try a unit again that has failed, is blocked, or was released by a user",
		Long: `Try a unit of a rollout again. If a node of it has failed, the command deletes the failed NodeTask: the node is
drained and offered again. If the unit was released before its work was done, because its drain was blocked, no worker
came, or a user completed its maintenance, the command marks these maintenances: the unit starts as if it were new, but
nodes whose work is done stay done.

A unit is a node, or the value of the label spec.unitKey.`,
		Example:           `  kubectl maintenance rollout retry kernel-6-12 node-002`,
		Args:              exactArgs("retry needs the name of a rollout and of a unit", 2),
		ValidArgsFunction: e.completeRollouts,
		RunE: func(cmd *cobra.Command, args []string) error {
			return e.retry(cmd.Context(), o, rolloutName(args[0]), nodeName(args[1]))
		},
	}
	o.addWriteFlags(cmd)
	return cmd
}

func (e *environment) retry(ctx context.Context, o *waitOptions, name, unit string) error {
	c, r, err := e.rollout(ctx, o, name)
	if err != nil {
		return err
	}
	if r.Spec.Stage == v1alpha1.RolloutStageComplete {
		return fmt.Errorf("%s is in stage %s, in which nothing starts, so no unit can be tried again. If a failed node is repaired: kubectl maintenance done NODE; "+
			"to return it as it is: kubectl maintenance complete MAINTENANCE", name, r.Spec.Stage)
	}
	phase := ""
	var retried []runtime.Object
	if at := slices.IndexFunc(r.Status.Current, func(u v1alpha1.RolloutUnit) bool { return u.Unit == unit }); at >= 0 {
		phase = ": it is " + string(r.Status.Current[at].Phase)
		retried, err = e.retryTasks(ctx, c, o, r, &r.Status.Current[at])
	}
	if err == nil && len(retried) == 0 {
		retried, err = retryMaintenances(ctx, c, o, r, unit)
	}
	switch {
	case err != nil:
		return err
	case len(retried) == 0:
		return fmt.Errorf("unit %q of %s has not failed and was not released before its work was done%s", unit, name, phase)
	}
	return e.write(o.output, retried...)
}

// retryTasks deletes the failed NodeTasks of a unit, and returns them.
func (e *environment) retryTasks(
	ctx context.Context, c clients, o *waitOptions, r *v1alpha1.NodeMaintenanceRollout, unit *v1alpha1.RolloutUnit,
) ([]runtime.Object, error) {
	var failed []*v1alpha1.NodeTask
	works := false
	for _, node := range unit.Nodes {
		task, err := c.haulout.MaintenanceV1alpha1().NodeTasks().Get(ctx, node.Name, metav1.GetOptions{})
		switch {
		case answer.ObjectGone(err):
			continue
		case err != nil:
			return nil, err
		case task.Spec.Maintenance.Name != unit.Maintenance:
		case task.Status.State == v1alpha1.NodeTaskFailed:
			failed = append(failed, task)
		default:
			works = works || next.IsKept(task)
		}
	}
	if len(failed) > 0 && !works {
		if why := e.whyReturns(ctx, c, r, unit); why != "" {
			return nil, fmt.Errorf("unit %q would return to service as it is: %s", unit.Unit, why)
		}
	}
	var deleted []runtime.Object
	for _, task := range failed {
		if err := c.haulout.MaintenanceV1alpha1().NodeTasks().Delete(ctx, task.Name, metav1.DeleteOptions{
			// A worker may report Done at this moment: then the node is verified, and not drained
			// again.
			DryRun: o.dryRun.inRequests(), Preconditions: &metav1.Preconditions{UID: &task.UID, ResourceVersion: &task.ResourceVersion},
		}); err != nil {
			return nil, err
		}
		deleted = append(deleted, task)
	}
	return deleted, nil
}

// whyReturns returns why the server would return a unit to service when none of its nodes has a
// NodeTask any more, instead of draining it again; "" if it would not, or if no node of it exists.
func (e *environment) whyReturns(ctx context.Context, c clients, r *v1alpha1.NodeMaintenanceRollout, unit *v1alpha1.RolloutUnit) string {
	selector, err := nodeselector.New(r.Spec.NodeSelector, nil, v1alpha1.NewNodesPolicyJoin)
	if err != nil {
		return ""
	}
	exists, matches := false, false
	for _, ref := range unit.Nodes {
		node, err := c.kube.CoreV1().Nodes().Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case answer.ObjectGone(err):
		case err != nil:
			exists, matches = true, true // the user may not read nodes
		default:
			selected, _ := selector.Decide(node)
			exists, matches = true, matches || selected
		}
	}
	windows, err := window.At(r.Spec.Windows, e.now())
	switch {
	case !exists:
		return ""
	case !matches:
		return "none of its nodes matches the selector of " + r.Name + " any more"
	case err == nil && !windows.Open && r.Spec.WhenClosed == v1alpha1.RolloutClosedWithdraw:
		return fmt.Sprintf("no window of %s is open, and whenClosed is %s", r.Name, r.Spec.WhenClosed)
	}
	return ""
}

// retryMaintenances marks the maintenances of a unit that have ended before their work was done, so
// that the server does not count them any more, and returns them. Their records of nodes that are
// done still count.
func retryMaintenances(ctx context.Context, c clients, o *waitOptions, r *v1alpha1.NodeMaintenanceRollout, unit string) ([]runtime.Object, error) {
	past, err := maintenancesOfRollout(ctx, c, r)
	if err != nil {
		return nil, err
	}
	var marked []runtime.Object
	for i := range past {
		nm := &past[i]
		outcome := next.OutcomeOf(nm)
		if nm.Annotations[v1alpha1.AnnotationRolloutUnit] != unit || outcome != next.Withdrawn && outcome != next.Released {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": nm.UID, "annotations": map[string]string{v1alpha1.AnnotationRetried: "true"},
		}})
		if err != nil {
			return nil, err
		}
		written, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Patch(ctx, nm.Name, types.MergePatchType, patch,
			metav1.PatchOptions{DryRun: o.dryRun.inRequests(), FieldManager: manager})
		if err != nil {
			return nil, err
		}
		marked = append(marked, written)
	}
	return marked, nil
}

// maintenancesOfRollout returns the maintenances of the units of a rollout, past ones too.
func maintenancesOfRollout(ctx context.Context, c clients, r *v1alpha1.NodeMaintenanceRollout) ([]v1alpha1.NodeMaintenance, error) {
	list, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{v1alpha1.LabelRollout: r.Name}.String(),
	})
	if err != nil {
		return nil, err
	}
	// A deleted rollout of the name may have left maintenances behind.
	return slices.DeleteFunc(list.Items, func(nm v1alpha1.NodeMaintenance) bool { return !protocol.BelongsTo(&nm, r.UID) }), nil
}

// rolloutName removes the kind from a name such as nmr/kernel-6-12.
func rolloutName(arg string) string {
	return withoutKind(arg, "nmr", "nodemaintenancerollout", "nodemaintenancerollouts", "nodemaintenancerollout."+v1alpha1.GroupName,
		"nodemaintenancerollouts."+v1alpha1.GroupName)
}

// rollout checks the flags, and reads the rollout that the command changes.
func (e *environment) rollout(ctx context.Context, o *waitOptions, name string) (c clients, r *v1alpha1.NodeMaintenanceRollout, err error) {
	if c, err = e.connectToChange(o); err != nil {
		return c, nil, err
	}
	r, err = c.haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts().Get(ctx, name, metav1.GetOptions{})
	return c, r, err
}

// changeRollout changes fields of the spec of a rollout, and prints it. It decides again if the
// rollout has changed in the meantime: a list is replaced as a whole. Without a change, nothing is
// written.
func (e *environment) changeRollout(
	ctx context.Context, o *waitOptions, name string, change func(*v1alpha1.NodeMaintenanceRollout) (map[string]any, error),
) (written *v1alpha1.NodeMaintenanceRollout, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		c, r, err := e.rollout(ctx, o, name)
		if err != nil {
			return err
		}
		spec, err := change(r)
		if err != nil {
			return err
		}
		if spec == nil {
			written = r
			return o.unchanged()
		}
		if r.Spec.Stage == v1alpha1.RolloutStageComplete {
			return fmt.Errorf("%s is in stage %s and cannot be changed", name, v1alpha1.RolloutStageComplete)
		}
		written, err = mergepatch.IfUnchanged(ctx, c.haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts().Patch, r, nil,
			map[string]any{"spec": spec}, metav1.PatchOptions{DryRun: o.dryRun.inRequests(), FieldManager: manager})
		return err
	})
	if err != nil {
		return nil, err
	}
	return written, e.write(o.output, written)
}

// connectAs creates the clients, and returns the name of the user as the cluster knows it.
func (e *environment) connectAs(ctx context.Context) (c clients, user string, err error) {
	if c, err = e.connect(); err != nil {
		return c, "", err
	}
	review, err := c.kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return c, "", errors.New("you may not create selfsubjectreviews.authentication.k8s.io, so your user name is unknown")
	case err != nil:
		return c, "", err
	}
	return c, review.Status.UserInfo.Username, nil
}
