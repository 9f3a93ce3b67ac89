// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
)

func (e *environment) newRolloutStatusCommand() *cobra.Command {
	o := outputOfLines()
	var watch bool
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "See how far a rollout is, what it waits for, and who has to act",
		Long: `See how far a rollout is: the nodes by state, the windows and holds, the units that run with what each waits for,
and the reason why no further unit starts, with the user or component that must act.

Without NAME, the command shows the only rollout that is not over. If there are several or none, it shows one line for
each rollout. The time that the other nodes need is estimated from the pace of the last hour.

The exit code is 3 if a user must act: the rollout is halted, not authorized or SyncFailed, or has nodes that have
failed, are blocked or are skipped. With --watch, the command redraws the lines until the rollout is complete, or
stopped with no unit in work, or deleted.`,
		Example: `  # Once
  kubectl maintenance rollout status kernel-6-12

  # Until it is complete
  kubectl maintenance rollout status kernel-6-12 --watch`,
		Args: atMostOneName, ValidArgsFunction: e.completeRollouts,
		SuggestFor: []string{"list", "get", "show", "progress", "watch", "blockers"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			if watch && !o.forPeople() {
				return fmt.Errorf("--watch cannot be combined with -o %[1]s; use kubectl get nodemaintenancerollouts.%[2]s --watch -o %[1]s",
					o.format(), v1alpha1.GroupName)
			}
			name := ""
			if len(args) == 1 {
				name = rolloutName(args[0])
			}
			return e.rolloutStatus(cmd.Context(), o, name, watch)
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "Follow the progress.")
	o.addFlags(cmd)
	return cmd
}

func (e *environment) rolloutStatus(ctx context.Context, o *output, name string, watch bool) error {
	c, err := e.connect()
	if err != nil {
		return err
	}
	all, err := rolloutsNamed(ctx, c, name)
	if err != nil {
		return err
	}
	if !o.forPeople() {
		if name != "" {
			return e.write(o, &all[0])
		}
		return e.writeAll(o, &v1alpha1.NodeMaintenanceRolloutList{Items: all})
	}
	if left := slices.DeleteFunc(slices.Clone(all), isOver); len(left) == 1 && name == "" {
		all = left
	}
	switch {
	case watch && len(all) != 1:
		return fmt.Errorf("--watch needs the name of a rollout: %d exist", len(all))
	case watch:
		last, err := e.watchRollout(ctx, c, o, &all[0])
		if last == nil || err != nil {
			return err
		}
		all[0] = *last
	case len(all) == 1:
		f := show.RolloutFacts{Rollout: &all[0], Now: e.now()}
		if f.Maintenances, f.Notes, err = pastOf(ctx, c, &all[0]); err != nil {
			return err
		}
		options := o.fitting(e.screen(e.Out))
		options.Rows = max(options.Rows-1, 0) // that of the command
		e.show(show.Rollout(f, options))
	default:
		e.show(show.Rollouts(all))
	}
	if slices.ContainsFunc(all, func(r v1alpha1.NodeMaintenanceRollout) bool { return show.NeedsUser(&r) }) {
		return &exitError{code: exitBlocked}
	}
	return nil
}

// rolloutsNamed reads the named rollout, or all of them without a name.
func rolloutsNamed(ctx context.Context, c clients, name string) ([]v1alpha1.NodeMaintenanceRollout, error) {
	client := c.haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts()
	if name != "" {
		r, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return []v1alpha1.NodeMaintenanceRollout{*r}, nil
	}
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// pastOf returns the maintenances of a rollout, or a note if the user may not list them.
func pastOf(ctx context.Context, c clients, r *v1alpha1.NodeMaintenanceRollout) (past []v1alpha1.NodeMaintenance, notes []string, err error) {
	past, err = maintenancesOfRollout(ctx, c, r)
	if apierrors.IsForbidden(err) {
		return nil, []string{"you may not list nodemaintenances, so the pace is not shown"}, nil
	}
	return past, nil, err
}

const (
	// rolloutPollEvery is the interval at which --watch reads a rollout, and pastEvery that at
	// which it reads the maintenances, of which there may be thousands.
	rolloutPollEvery = 2 * time.Second
	pastEvery        = time.Minute
)

// watchRollout shows a rollout until it is complete, or stopped and without units that run. It
// returns the last state, or nil if it was deleted.
func (e *environment) watchRollout(ctx context.Context, c clients, o *output, r *v1alpha1.NodeMaintenanceRollout) (*v1alpha1.NodeMaintenanceRollout, error) {
	reporter := e.newReporter(e.Out)
	defer reporter.end(ctx)
	f := show.RolloutFacts{Rollout: r}
	var pastAt time.Time
	var poll, pastPoll reads
	for {
		if f.Now = e.now(); poll.err == nil && f.Now.Sub(pastAt) >= pastEvery {
			pastPoll.begin(f.Now)
			past, notes, err := pastOf(ctx, c, r)
			pastPoll.end(err)
			if err != nil {
				f.Notes = []string{pastPoll.note(f.Now)}
			} else {
				f.Maintenances, f.Notes = past, notes
			}
			pastAt = f.Now
		}
		shown := f
		if note := poll.note(f.Now); note != "" {
			shown.Notes = []string{note}
		}
		done := isOver(*f.Rollout)
		reporter.report(func(int) []screen.Line { return show.Rollout(shown, o.fitting(reporter.screen)) },
			strings.Join(append([]string{show.RolloutSummary(f.Rollout)}, shown.Notes...), "; "), done)
		if done {
			return f.Rollout, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(rolloutPollEvery):
		}
		poll.begin(e.now())
		request, end := context.WithTimeout(ctx, answerWithin)
		now, err := c.haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts().Get(request, r.Name, metav1.GetOptions{})
		end()
		poll.end(err)
		switch {
		case answer.ObjectGone(err) || err == nil && now.UID != r.UID:
			reporter.screen.Keep()
			reporter.screen.Printf("%s was deleted.", r.Name)
			return nil, nil
		case err == nil:
			f.Rollout = now
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !answer.IsTemporary(err):
			return nil, err
		}
	}
}

// isOver reports whether a rollout changes nothing any more before a user acts on it.
func isOver(r v1alpha1.NodeMaintenanceRollout) bool {
	switch show.RolloutState(&r) {
	case v1alpha1.ReasonRolloutComplete:
		return true
	case v1alpha1.ReasonStopped:
		return r.Status.Nodes.Running == 0
	}
	return false
}
