/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package maintenance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/maintenance/show"
	"haulout.dev/haulout/pkg/cmd/screen"
)

func (e *environment) newStatusCommand() *cobra.Command {
	o := outputOfLines()
	var watch bool
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "See how far a maintenance is, and what it waits for",
		Long: `See how far a maintenance is: what is in the way first, then the pods that have left and how fast, then each node.

Without NAME the maintenance that is not complete is shown, or all in a table if there are several or none.

How many pods have left since the drain began is what is missing of the most that there were on each node. The pace is that
of the last minute.

With --watch the lines are redrawn in place on a terminal, without colors if NO_COLOR is set, until the maintenance is
deleted, completed or you interrupt. Elsewhere a line is written when something has changed.`,
		Example: `  # How far is it?
  kubectl maintenance status kernel-update

  # Follow it
  kubectl maintenance status kernel-update --watch

  # All maintenances of the cluster
  kubectl maintenance status`,
		Args: atMostOneName, ValidArgsFunction: e.completeMaintenances,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			name := ""
			if len(args) == 1 {
				name = maintenanceName(args[0])
			}
			if watch {
				return e.watchStatus(cmd.Context(), o, name)
			}
			return e.status(cmd.Context(), o, name)
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "Keep showing it.")
	o.addFlags(cmd)
	return cmd
}

func (e *environment) status(ctx context.Context, o *output, name string) error {
	c, err := e.connect()
	if err != nil {
		return err
	}
	all, err := e.snapshot(ctx, c, name)
	if err != nil {
		return err
	}
	if !o.forPeople() {
		return e.printMaintenances(o, all, name != "")
	}
	one := theOne(all, name)
	if one == nil {
		e.show(showAll(all))
		return nil
	}
	if one.Maintenance.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain {
		// What cannot be had is left out: the status says the most important without it.
		if preview, err := previewWaves(ctx, c, one.Maintenance.Name); err == nil {
			one.Waves = show.Waves(preview, nil)
		}
	}
	e.show(show.Status(*one, o.options(e.screen(e.Out).Columns())))
	return nil
}

// theOne returns the maintenance that is meant: that of the name, or the only one that is not complete; nil if there is none or several.
func theOne(all []show.Facts, name string) *show.Facts {
	var one *show.Facts
	for i := range all {
		if name == "" && all[i].Maintenance.Spec.Stage == v1alpha1.NodeMaintenanceStageComplete {
			continue
		}
		if one != nil {
			return nil
		}
		one = &all[i]
	}
	return one
}

func showAll(all []show.Facts) []screen.Line {
	if len(all) == 0 {
		return []screen.Line{{Text: "There are no maintenances. kubectl maintenance start NODE makes one."}}
	}
	return show.Table(all)
}

func (e *environment) printMaintenances(o *output, all []show.Facts, one bool) error {
	var items v1alpha1.NodeMaintenanceList
	for i := range all {
		items.Items = append(items.Items, *all[i].Maintenance)
	}
	if one && len(items.Items) == 1 {
		return o.write(e.Out, &items.Items[0])
	}
	return printAll(o, e.Out, &items, pointers(items.Items))
}

// watchStatus shows a maintenance, or all, until there is nothing left to watch.
func (e *environment) watchStatus(ctx context.Context, o *output, name string) error {
	if !o.forPeople() {
		return fmt.Errorf("--watch shows lines for people; kubectl get nodemaintenances --watch -o %s writes objects", o.format())
	}
	c, err := e.connect()
	if err != nil {
		return err
	}
	if name == "" {
		all, err := e.snapshot(ctx, c, "")
		if err != nil {
			return err
		}
		if one := theOne(all, ""); one != nil {
			name = one.Maintenance.Name
		}
	}
	f, err := e.newFollower(ctx, c, name)
	if err != nil {
		return err
	}
	r := e.newReporter(e.Out)
	err = f.each(ctx, func(all []show.Facts) (bool, error) {
		if name == "" {
			lines, text := watchAll(all)
			r.report(lines, text)
			return false, nil
		}
		if len(all) == 0 {
			r.screen.Keep()
			r.screen.Printf("%s is gone.", name)
			return true, nil
		}
		lines := func(columns int) []screen.Line { return show.Status(all[0], o.options(columns)) }
		if over(all[0].Maintenance) {
			r.end(lines, show.Summary(all[0]))
			r.screen.Printf("%s is complete.", name)
			return true, nil
		}
		r.report(lines, show.Summary(all[0]))
		return false, nil
	})
	r.screen.Keep()
	return err
}

// over says whether nothing is to come of a maintenance.
func over(nm *v1alpha1.NodeMaintenance) bool {
	return nm.Spec.Stage == v1alpha1.NodeMaintenanceStageComplete && !slices.Contains(nm.Finalizers, v1alpha1.FinalizerMaintenanceCompletion)
}

func watchAll(all []show.Facts) (lines func(int) []screen.Line, text string) {
	summaries := make([]string, 0, len(all))
	for i := range all {
		if !over(all[i].Maintenance) {
			summaries = append(summaries, show.Summary(all[i]))
		}
	}
	if len(summaries) == 0 {
		summaries = []string{"no maintenance is under way"}
	}
	return func(int) []screen.Line { return showAll(all) }, strings.Join(summaries, "; ")
}

func (e *environment) newBlockersCommand() *cobra.Command {
	o := outputOfLines()
	cmd := &cobra.Command{
		Use:   "blockers [NAME]",
		Short: "See which pods cannot leave, whose move it is and what they can do",
		Long: `See which pods cannot leave their nodes, since when, what is in the way, whose move it is and what they can do.

Below them, and apart, are pods that are not blocked and wait for an evacuator that has reported no progress for 10 seconds,
with what it says that it waits for. The other formats have both, the blocked ones first.

With NAME only the nodes of that maintenance count. With --namespace only the pods of a namespace are read, for which the
right to list its evacuations is enough.

The exit code is 3 if there is something in the way, and 0 if there is not. Waiting for an evacuator does not count.`,
		Example: `  # What is in the way of any drain?
  kubectl maintenance blockers

  # ... of this one?
  kubectl maintenance blockers kernel-update

  # What is in the way in my namespace?
  kubectl maintenance blockers --namespace=shop -o wide`,
		Args: atMostOneName, ValidArgsFunction: e.completeMaintenances,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			namespace := ""
			if cmd.Flags().Changed("namespace") {
				namespace = *e.flags.Namespace
			}
			name := ""
			if len(args) == 1 {
				name = maintenanceName(args[0])
			}
			return e.blockers(cmd.Context(), o, name, namespace)
		},
	}
	o.addFlags(cmd)
	return cmd
}

func (e *environment) blockers(ctx context.Context, o *output, name, namespace string) error {
	c, err := e.connect()
	if err != nil {
		return err
	}
	var refused []show.Refusal
	on := func(string) bool { return true }
	if name != "" {
		nm, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		nodes := show.Nodes(nm)
		on, refused = func(node string) bool { return nodes.Has(node) }, show.Refused(nm)
	}
	now := e.now()
	found, err := inTheWay(ctx, c, namespace, now)
	if err != nil {
		return err
	}
	found.Items = slices.DeleteFunc(found.Items, func(one v1alpha1.Evacuation) bool { return !on(one.Spec.NodeName) })
	blockers, waiting := show.BlockersOf(found.Items, nil), show.WaitingOf(found.Items, nil, now)
	switch {
	case !o.forPeople():
		err = printAll(o, e.Out, found, pointers(found.Items))
	case o.format() == wide && len(blockers)+len(waiting) > 0:
		e.show(show.BlockerTable(slices.Concat(blockers, waiting), now))
	default:
		e.show(show.Blockers(blockers, refused, waiting, now, o.options(e.screen(e.Out).Columns())))
	}
	if err == nil && len(blockers)+len(refused) > 0 {
		err = &exitError{code: exitBlocked}
	}
	return err
}

// selectActive selects the Evacuations that are not blocked and have an evacuator.
const selectActive = "status.blocked=false,status.activeEvacuatorClass!=" + v1alpha1.EvacuatorClassEviction

// inTheWay reads the Evacuations that are blocked, then those that wait for their evacuators. The server has an index for the first question and
// leaves out of the second those that wait for an eviction, which are most of a large drain.
func inTheWay(ctx context.Context, c clients, namespace string, now time.Time) (*v1alpha1.EvacuationList, error) {
	list := func(selector string, keep func(*v1alpha1.Evacuation) bool) (*v1alpha1.EvacuationList, error) {
		found, err := c.haulout.MaintenanceV1alpha1().Evacuations(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
		if apierrors.IsForbidden(err) && namespace == "" {
			err = fmt.Errorf("%w; --namespace looks at one namespace only", err)
		}
		if err == nil {
			found.Items = slices.DeleteFunc(found.Items, func(one v1alpha1.Evacuation) bool { return !keep(&one) })
		}
		return found, err
	}
	found, err := list("status.blocked=true", show.Blocked)
	if err != nil {
		return nil, err
	}
	waiting, err := list(selectActive, func(one *v1alpha1.Evacuation) bool { return show.Waits(one, now) })
	if err != nil {
		return nil, err
	}
	found.Items = append(found.Items, waiting.Items...)
	return found, nil
}
