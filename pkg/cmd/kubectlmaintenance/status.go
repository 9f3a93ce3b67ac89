// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
)

func (e *environment) newStatusCommand() *cobra.Command {
	o := outputOfLines()
	var watch bool
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "See the progress of a maintenance, and what it waits for",
		Long: `See the progress of a maintenance: first how many pods have left, in total, in each wave and from each node, then
the causes that stop it, with the workloads and the user or component that must act.

Without NAME, the command shows the only maintenance that is not complete. If there are several or none, it shows a
table of all maintenances.

On a terminal, the lines fit its columns and rows. A list that is cut ends with the number of what is missing; -o wide
shows all of it. The number of departed pods is counted from the highest number of pods on each node since the drain
began. The pace is that of the last minute.

With --watch, the command uses the whole terminal until the maintenance is deleted or completed. Keys: q quits, b shows
the blockers or the progress, the arrow and page keys scroll. If the standard input is not a terminal, the lines are
redrawn in place; without a terminal for the output, the command writes a line after each change. There are no colors
if NO_COLOR is set, and only ASCII characters if the locale is not UTF-8.`,
		Example: `  # Show the progress once
  kubectl maintenance status kernel-update

  # Follow the progress
  kubectl maintenance status kernel-update --watch

  # All maintenances of the cluster
  kubectl maintenance status

  # The maintenances with a label
  kubectl maintenance status -l team=storage`,
		Args: atMostOneName, ValidArgsFunction: e.completeMaintenances,
		SuggestFor: []string{"list", "get", "ls", "show", "progress", "watch"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			name := ""
			if len(args) == 1 {
				name = maintenanceName(args[0])
			}
			if name != "" && e.labels != "" {
				return errors.New("a name and --selector cannot be combined")
			}
			if _, err := labels.Parse(e.labels); err != nil {
				return fmt.Errorf("invalid --selector: %w", err)
			}
			if watch {
				return e.watchStatus(cmd.Context(), o, name)
			}
			return e.status(cmd.Context(), o, name)
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "Follow the progress.")
	cmd.Flags().StringVarP(&e.labels, "selector", "l", "", "Show only the maintenances (not nodes) with these labels, such as team=storage.")
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
	s := e.screen(e.Out)
	if one := theOne(all, name); one != nil {
		options := o.fitting(s)
		// One row is that of the command.
		options.Rows = max(options.Rows-1, 0)
		e.show(show.Status(*one, options))
		return nil
	}
	e.show(showAll(all, o.options(s)))
	return nil
}

// theOne returns the named maintenance. Without a name, it returns the only maintenance that is not
// complete; nil if there is none or more than one.
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

func showAll(all []show.Facts, o show.Options) []screen.Line {
	if len(all) == 0 {
		return []screen.Line{{Text: "No maintenance found. Start one: kubectl maintenance start NODE"}}
	}
	return show.Table(all, o)
}

func (e *environment) printMaintenances(o *output, all []show.Facts, one bool) error {
	var items v1alpha1.NodeMaintenanceList
	for i := range all {
		items.Items = append(items.Items, *all[i].Maintenance)
	}
	if one && len(items.Items) == 1 {
		return e.write(o, &items.Items[0])
	}
	return e.writeAll(o, &items)
}

// watchStatus shows one maintenance until it ends, or all maintenances.
func (e *environment) watchStatus(ctx context.Context, o *output, name string) error {
	if !o.forPeople() {
		return fmt.Errorf("--watch cannot be combined with -o %[1]s; use kubectl get nodemaintenances.maintenance.haulout.dev --watch -o %[1]s", o.format())
	}
	return e.watch(ctx, o, name)
}

// watchLines redraws the progress in place or, without a terminal, writes a line after each change.
func (e *environment) watchLines(ctx context.Context, f *follower, o *output, name string) error {
	r := e.newReporter(e.Out)
	err := f.each(ctx, func(all []show.Facts) (bool, error) {
		if name == "" {
			table := func(o show.Options) []screen.Line { return showAll(all, o) }
			f.report(r, o.fitting(r.screen), table, summaryOfAll(all), false)
			return false, nil
		}
		if len(all) == 0 {
			r.screen.Keep()
			r.screen.Printf("%s was deleted.", name)
			return true, nil
		}
		lines := func(o show.Options) []screen.Line { return show.Status(all[0], o) }
		done := v1alpha1.IsDone(all[0].Maintenance)
		f.report(r, o.fitting(r.screen), lines, show.Summary(all[0]), done)
		if done {
			r.screen.Printf("%s is complete.", name)
		}
		return done, nil
	})
	r.end(ctx)
	return err
}

// summaryOfAll returns the progress of the maintenances that are not complete in one line.
func summaryOfAll(all []show.Facts) string {
	summaries := make([]string, 0, len(all))
	for i := range all {
		if !v1alpha1.IsDone(all[i].Maintenance) {
			summaries = append(summaries, show.Summary(all[i]))
		}
	}
	if len(summaries) == 0 {
		return "no maintenance is active"
	}
	return strings.Join(summaries, "; ")
}
