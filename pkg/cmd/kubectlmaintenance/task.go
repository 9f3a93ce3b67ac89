// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/mergepatch"
)

// taskOptions are the flags of take and done.
type taskOptions struct {
	waitOptions
	message string
	failed  bool
}

func (e *environment) newTakeCommand() *cobra.Command {
	o := &taskOptions{waitOptions: waitOptions{output: outputOfObjects("taken"), dryRun: dryRun{strategy: dryRunNone}}}
	cmd := &cobra.Command{
		Use:   "take NODE",
		Short: "Take a node that is out of service, to work on it",
		Long: `Take a node that a rollout, or a maintenance with a task, has taken out of service, to work on it by hand. The command
ends when the server has granted the node to you: it is empty, and yours until you report with "kubectl maintenance done
NODE".

If the node is yours already, the command only tells the server that you are still working: do so before the deadline
that it prints. With --wait, it waits until the node is offered.

You need the right to patch nodetasks/status, and "progress" on the worker class, usually person.maintenance.haulout.dev.
That class also needs the right to maintain the node.`,
		Example: `  # When the node is empty
  kubectl maintenance take node-005 --wait --timeout=1h`,
		SuggestFor: []string{"claim", "lock", "grab"},
	}
	cmd.Flags().BoolVar(&o.wait, "wait", false, "Wait until the node is offered.")
	cmd.Flags().Var(&o.timeout, "timeout", "How long to wait, such as 1h; 0 waits forever.")
	cmd.Flags().StringVar(&o.message, "message", "", "What you do, for other users.")
	o.output.addFlags(cmd)
	complete := e.completeTasks(v1alpha1.NodeTaskOffered, v1alpha1.NodeTaskClaimed)
	return aboutOne(cmd, "a node", complete, func(ctx context.Context, name string) error { return e.take(ctx, o, nodeName(name)) })
}

// take claims the NodeTask of a node for the user, and waits until the server has granted it.
func (e *environment) take(ctx context.Context, o *taskOptions, node string) error {
	if err := o.validate(); err != nil {
		return err
	}
	c, user, err := e.connectAs(ctx)
	if err != nil {
		return err
	}
	if o.wait {
		// A node that does not exist is misspelled. A user who may not read nodes waits for it.
		if _, err := c.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); answer.ObjectGone(err) {
			return err
		}
	}
	ctx, cancel := o.timeout.begin(ctx)
	defer cancel()
	var mine types.UID // of the task that this command has claimed
	for {
		task, err := c.haulout.MaintenanceV1alpha1().NodeTasks().Get(ctx, node, metav1.GetOptions{})
		switch {
		case err == nil || ctx.Err() != nil:
		case mine != "" && answer.ObjectGone(err):
			return withdrawn(node)
		// A cluster may never serve the API.
		case answer.ObjectGone(err) && o.wait, answer.IsTemporary(err) && (mine != "" || o.wait && !answer.APIMissing(err)):
		default:
			return e.notOffered(ctx, c, node, err)
		}
		if err == nil {
			switch {
			case mine != "" && task.UID != mine:
				return withdrawn(node)
			case isTakenBy(task, user) && task.Status.State == v1alpha1.NodeTaskClaimed:
				return e.taken(ctx, c, o, task, mine != "")
			case isTakenBy(task, user):
				mine = task.UID
			case task.Status.State != v1alpha1.NodeTaskOffered || task.Status.Holder != "":
				return notForTaking(task)
			default:
				// After a conflict, the next read shows who was faster.
				_, err := e.report(ctx, c, task, map[string]any{"holder": holderOf(user), "message": o.message})
				switch {
				case err == nil:
					mine = task.UID
				case !apierrors.IsConflict(err):
					return err
				}
				continue
			}
		}
		select {
		case <-ctx.Done():
			if mine != "" {
				// A claim cannot be taken back before it is granted.
				e.screen(e.ErrOut).Printf("Your claim of node %[1]s remains: the node is yours as soon as the server grants it. To check: kubectl maintenance take %[1]s. "+
					"If you do not want the node, run this after the grant: kubectl maintenance done %[1]s --failed", node)
			}
			if errors.Is(context.Cause(ctx), errTimeout) {
				return exitWith(exitTimeout, "node %s is not yours after %s", node, o.timeout.text)
			}
			return ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

// taken prints a task that is granted to the user. If the user has taken the node earlier, it is a
// heartbeat.
func (e *environment) taken(ctx context.Context, c clients, o *taskOptions, task *v1alpha1.NodeTask, isNew bool) (err error) {
	if !isNew {
		o.output.says("is still yours")
		if o.message == "" {
			o.message = task.Status.Message
		}
		if task, err = e.report(ctx, c, task, map[string]any{"message": o.message}); err != nil {
			return err
		}
	}
	if err := e.write(o.output, task); err != nil {
		return err
	}
	s := e.screen(e.ErrOut)
	if task.Spec.Reason != "" {
		s.Printf("Reason: %s", task.Spec.Reason)
	}
	for _, name := range slices.Sorted(maps.Keys(task.Spec.Parameters)) {
		s.Printf("%s: %s", name, task.Spec.Parameters[name])
	}
	s.Printf("When you have finished: kubectl maintenance done %[1]s. If it takes longer than %[2]s, say so in time: kubectl maintenance take %[1]s",
		task.Name, duration.HumanDuration(time.Duration(task.Spec.ProgressDeadlineSeconds)*time.Second))
	return nil
}

func isTakenBy(task *v1alpha1.NodeTask, user string) bool {
	return task.Status.Holder == holderOf(user) && (task.Status.ClaimedBy == "" || task.Status.ClaimedBy == user) &&
		(task.Status.State == v1alpha1.NodeTaskOffered || task.Status.State == v1alpha1.NodeTaskClaimed)
}

// holderOf returns the name with which a user takes nodes: the holder has at most 128 bytes.
func holderOf(user string) string { return wording.Cut(user, protocol.MaxTaskMessage) }

func withdrawn(node string) error {
	return exitWith(exitEnded, "the offer of node %[1]s was withdrawn before it was granted: pods have returned, the node was uncordoned, or its "+
		"maintenance has ended. To wait for the next offer: kubectl maintenance take %[1]s --wait", node)
}

// notForTaking is the error about a node that another worker has, or whose work has ended.
func notForTaking(task *v1alpha1.NodeTask) error {
	s := &task.Status
	switch s.State {
	case v1alpha1.NodeTaskVerifying, v1alpha1.NodeTaskDone:
		return fmt.Errorf("the work on node %s is done: it is %s", task.Name, s.State)
	case v1alpha1.NodeTaskFailed:
		return fmt.Errorf("the work on node %[1]s has failed (%[2]s). If the node is repaired: kubectl maintenance done %[1]s", task.Name, s.Reason)
	}
	return fmt.Errorf("node %s is taken by %s", task.Name, describeHolder(s))
}

func describeHolder(s *v1alpha1.NodeTaskStatus) string {
	if s.ClaimedBy == "" || s.ClaimedBy == s.Holder {
		return s.Holder
	}
	return fmt.Sprintf("%s (user %s)", s.Holder, s.ClaimedBy)
}

// notOffered is the error about a node without a NodeTask.
func (e *environment) notOffered(ctx context.Context, c clients, node string, err error) error {
	if !answer.ObjectGone(err) {
		return err
	}
	if _, err := c.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); answer.ObjectGone(err) {
		return err
	}
	return fmt.Errorf("node %[1]s is not offered to a worker: no maintenance with a task has drained it. See kubectl maintenance rollout status; "+
		"to wait for it: kubectl maintenance take %[1]s --wait", node)
}

func (e *environment) newDoneCommand() *cobra.Command {
	o := &taskOptions{waitOptions: waitOptions{output: outputOfObjects("done"), dryRun: dryRun{strategy: dryRunNone}}}
	cmd := &cobra.Command{
		Use:   "done NODE",
		Short: "Report that the work on a node is done, or has failed",
		Long: `Report that the work on a node that you have taken is done: the server verifies that it is Ready and meets doneWhen of its
task. Then its rollout returns it to service; a maintenance that a user has made keeps it until a user completes that
maintenance. With --failed, the node stays out of service, and nothing more starts if the rollout allows no
further failure.

If the work of another worker has failed and you have finished it by hand, done does the same.`,
		Example: `  kubectl maintenance done node-004

  # Without success
  kubectl maintenance done node-004 --failed --message='the wrong memory was delivered'`,
	}
	cmd.Flags().BoolVar(&o.failed, "failed", false, "The work has failed: the node stays out of service.")
	cmd.Flags().StringVar(&o.message, "message", "", "The result, for other users.")
	o.output.addFlags(cmd)
	complete := e.completeTasks(v1alpha1.NodeTaskClaimed, v1alpha1.NodeTaskFailed)
	return aboutOne(cmd, "a node", complete, func(ctx context.Context, name string) error { return e.done(ctx, o, nodeName(name)) })
}

func (e *environment) done(ctx context.Context, o *taskOptions, node string) error {
	result := v1alpha1.NodeTaskResultDone
	if o.failed {
		result = v1alpha1.NodeTaskResultFailed
		o.output.says("failed")
	}
	if err := o.validate(); err != nil {
		return err
	}
	c, user, err := e.connectAs(ctx)
	if err != nil {
		return err
	}
	task, err := c.haulout.MaintenanceV1alpha1().NodeTasks().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return e.notOffered(ctx, c, node, err)
	}
	switch s := &task.Status; {
	case s.State == v1alpha1.NodeTaskFailed && !o.failed:
	case s.Result == result:
		return errors.Join(o.unchanged(), e.write(o.output, task))
	case s.State == v1alpha1.NodeTaskOffered || s.State == "":
		return fmt.Errorf("node %[1]s is not yours yet. To take it: kubectl maintenance take %[1]s", node)
	case s.State != v1alpha1.NodeTaskClaimed:
		return fmt.Errorf("the work on node %s has ended: it is %s", node, s.State)
	case !isTakenBy(task, user):
		return fmt.Errorf("node %s is taken by %s, who has to report", node, describeHolder(s))
	}
	status := map[string]any{"result": result}
	if o.message != "" {
		status["message"] = o.message
	}
	written, err := e.report(ctx, c, task, status)
	if err != nil {
		return err
	}
	if err := e.write(o.output, written); err != nil {
		return err
	}
	if o.failed {
		e.screen(e.ErrOut).Printf("The node stays out of service. When it is repaired: kubectl maintenance done %s", node)
	} else {
		e.sayWhoReturns(ctx, c, written)
	}
	return nil
}

// sayWhoReturns prints how a node whose work is done returns to service.
func (e *environment) sayWhoReturns(ctx context.Context, c clients, task *v1alpha1.NodeTask) {
	name := task.Spec.Maintenance.Name
	e.screen(e.ErrOut).Printf("The server verifies that the node is Ready, and meets doneWhen if its task has that.")
	nm, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil: // the work is reported all the same
	case protocol.RolloutOf(nm) != nil:
		e.screen(e.ErrOut).Printf("Then rollout %s returns it to service, with all nodes of its unit.", protocol.RolloutOf(nm).Name)
	case !v1alpha1.IsEnding(nm):
		e.screen(e.ErrOut).Printf("It stays out of service until a user completes the maintenance: kubectl maintenance complete %s", name)
	}
}

// report changes fields of the status of a task. The resourceVersion makes the patch fail if the
// task has changed in the meantime.
func (e *environment) report(ctx context.Context, c clients, task *v1alpha1.NodeTask, status map[string]any) (*v1alpha1.NodeTask, error) {
	return mergepatch.IfUnchanged(ctx, c.haulout.MaintenanceV1alpha1().NodeTasks().Patch, task, nil, map[string]any{"status": status},
		metav1.PatchOptions{FieldManager: manager}, "status")
}

// completeTasks returns the names of the nodes with tasks in these states as completions.
func (e *environment) completeTasks(states ...v1alpha1.NodeTaskState) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		return e.completeFirst(args, toComplete, func(c clients) (runtime.Object, error) {
			list, err := c.haulout.MaintenanceV1alpha1().NodeTasks().List(cmd.Context(), completionOptions)
			if err != nil {
				return nil, err
			}
			list.Items = slices.DeleteFunc(list.Items, func(task v1alpha1.NodeTask) bool { return !slices.Contains(states, task.Status.State) })
			return list, nil
		})
	}
}
