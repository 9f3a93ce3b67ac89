// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
)

// lastLookFor limits the time of the reads after a timeout.
const lastLookFor = 5 * time.Second

// plainAfter is the minimum time between two lines if there is no terminal.
const plainAfter = 2 * time.Second

// reporter shows progress: on a terminal it redraws the lines in place, otherwise it prints new
// lines.
type reporter struct {
	screen *screen.Screen
	now    func() time.Time

	last     time.Time
	lastText string
}

func (e *environment) newReporter(out io.Writer) *reporter {
	return &reporter{screen: e.screen(out), now: e.now}
}

// report shows the progress, or a line of it if there is no terminal. The final progress is shown
// immediately and stays.
func (r *reporter) report(lines func(columns int) []screen.Line, summary string, final bool) {
	switch {
	case r.screen.Live():
		r.screen.Draw(lines(r.screen.Columns()))
		if final {
			r.screen.Keep()
		}
	case summary != r.lastText && (final || r.now().Sub(r.last) >= plainAfter):
		r.last, r.lastText = r.now(), summary
		r.screen.Printf("%s  %s", r.now().UTC().Format(timeOfDay), summary)
	}
}

// timeOfDay is the format of times in progress lines. Z marks UTC.
const timeOfDay = time.TimeOnly + "Z"

// end keeps the last progress. After Ctrl-C the terminal shows "^C", which gets a line of its own.
func (r *reporter) end(ctx context.Context) {
	r.screen.Keep()
	if r.screen.Live() && ctx.Err() != nil && !errors.Is(context.Cause(ctx), errTimeout) {
		r.screen.Println(screen.Line{})
	}
}

// timeout is the value of --timeout. It keeps the text of the user, which messages repeat: 60m and
// 1h0m0s are correct for --timeout=1h, but the user did not write them.
type timeout struct {
	time.Duration
	text string
}

// String implements pflag.Value. It is empty without the flag.
func (t *timeout) String() string { return t.text }

// Set implements pflag.Value.
func (t *timeout) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err == nil {
		*t = timeout{d, text}
	}
	return err
}

// Type implements pflag.Value.
func (t *timeout) Type() string { return "duration" }

// begin adds the timeout to a context; 0 means none.
func (t *timeout) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.Duration <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, t.Duration, errTimeout)
}

// lastLook returns a context for the reads after a timeout or an interruption.
func lastLook(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), lastLookFor)
}

// tellPaused prints that a maintenance is paused, so that the user does not wait in vain.
func (e *environment) tellPaused(nm *v1alpha1.NodeMaintenance) {
	if v1alpha1.IsPaused(nm) {
		e.screen(e.ErrOut).Printf("%[1]s was paused %[2]s, so it asks no pod to leave. To continue: kubectl maintenance resume %[1]s", nm.Name, show.PausedBy(nm, e.now()))
	}
}

// becomes has what the nodes become in a stage, if a command waits for it.
var becomes = map[v1alpha1.NodeMaintenanceStage]string{
	v1alpha1.NodeMaintenanceStageCordon: "cordoned", v1alpha1.NodeMaintenanceStageDrain: "drained",
}

// awaitStage waits until a maintenance has reached a stage, and shows the progress.
func (e *environment) awaitStage(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, stage v1alpha1.NodeMaintenanceStage, o *waitOptions) error {
	out := e.Out
	if o.output.format() != "" {
		// Write the progress to the error stream: it is not part of the requested output.
		out = e.ErrOut
	}
	ctx, cancel := o.timeout.begin(ctx)
	defer cancel()
	e.tellPaused(nm)
	kept := ""
	err := e.follow(ctx, c, nm, out, func(f *show.Facts) (bool, error) {
		if f == nil {
			return true, exitWith(exitEnded, "%s was deleted before this command saw its nodes %s", nm.Name, cmp.Or(becomes[stage], "announced"))
		}
		kept = keptPods(f.Maintenance)
		return reached(f.Maintenance, stage)
	})
	switch {
	case errors.Is(err, errTimeout):
		return e.timedOut(ctx, c, o, nm)
	case err != nil && ctx.Err() != nil:
		return exitWith(exitInterrupted,
			"interrupted; %[1]s continues. To pause it: kubectl maintenance pause %[1]s. To wait again: kubectl maintenance wait %[1]s. "+
				"To cancel it: kubectl maintenance cancel %[1]s",
			nm.Name)
	case err != nil:
		return err
	}
	if verb := becomes[stage]; verb != "" && o.output.format() == "" {
		if kept != "" {
			e.screen(out).Printf("%s.", kept)
		}
		e.screen(out).Printf("%s is %s. To put its nodes back into service: kubectl maintenance complete %s", nm.Name, verb, nm.Name)
	}
	return nil
}

// keptPods returns the server's message about pods that stay on the drained nodes; empty if all
// pods have left.
func keptPods(nm *v1alpha1.NodeMaintenance) string {
	drained := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
	if drained == nil || drained.Status != metav1.ConditionTrue || drained.Reason != v1alpha1.ReasonDrainCompleteWithPodsLeft {
		return ""
	}
	return drained.Message
}

// timedOut returns an error with a different exit code for a maintenance that makes progress, for
// one that is paused and for one that needs an action. first is the maintenance at the beginning.
func (e *environment) timedOut(ctx context.Context, c clients, o *waitOptions, first *v1alpha1.NodeMaintenance) error {
	ctx, cancel := lastLook(ctx)
	defer cancel()
	name, after, blocked := first.Name, o.timeout.text, ""
	if nm, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{}); err == nil {
		switch stuck := show.Stuck(nm); {
		case v1alpha1.IsPaused(nm) && v1alpha1.IsPaused(first):
			// tellPaused has told who paused it.
			return exitWith(exitPaused, "%s is still paused after %s", name, after)
		case v1alpha1.IsPaused(nm):
			return exitWith(exitPaused, "%[1]s is paused after %[3]s: it was paused %[2]s. To continue: kubectl maintenance resume %[1]s",
				name, show.PausedBy(nm, e.now()), after)
		case stuck != nil:
			return exitWith(exitBlocked, "%[1]s is blocked after %[2]s (%[3]s: %[4]s); the server keeps trying. To see who must act: kubectl maintenance blockers %[1]s",
				name, after, stuck.Reason, stuck.Message)
		case glance.BlockedPods(nm) > 0:
			blocked = ". To see the pods that cannot leave: kubectl maintenance blockers " + name
		}
	}
	return exitWith(exitTimeout, "%[1]s is not done after %[2]s; the server continues. To see its progress: kubectl maintenance status %[1]s%[3]s",
		name, after, blocked)
}

// follow shows the progress of a maintenance until look returns done. It passes nil to look if the
// maintenance does not exist any more. Another one that was created under its name is not shown.
func (e *environment) follow(
	ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, out io.Writer, look func(*show.Facts) (bool, error),
) error {
	f, err := e.newFollower(ctx, c, nm.Name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = look(nil)
		return err
	case err != nil && errors.Is(context.Cause(ctx), errTimeout):
		return errTimeout
	case err != nil:
		return err
	}
	r := e.newReporter(out)
	err = f.each(ctx, func(all []show.Facts) (bool, error) {
		if len(all) == 0 || all[0].Maintenance.UID != nm.UID {
			return look(nil)
		}
		facts := all[0]
		done, err := look(&facts)
		lines := func(int) []screen.Line { return show.Status(facts, fitting(r.screen)) }
		r.report(lines, show.Summary(facts), done || err != nil)
		return done, err
	})
	r.end(ctx)
	return err
}

// reached reports whether a maintenance has reached a stage. It returns an error if the maintenance
// can no longer reach the stage.
func reached(nm *v1alpha1.NodeMaintenance, stage v1alpha1.NodeMaintenanceStage) (bool, error) {
	if v1alpha1.IsEnding(nm) {
		return true, exitWith(exitEnded, "%[1]s was completed before this command saw its nodes %[2]s. To see what happened: kubectl maintenance history %[1]s",
			nm.Name, cmp.Or(becomes[stage], "announced"))
	}
	if nm.Status.ObservedGeneration < nm.Generation {
		return false, nil
	}
	switch stage {
	case v1alpha1.NodeMaintenanceStageDrain:
		return meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained), nil
	case v1alpha1.NodeMaintenanceStageCordon:
		return isCordoned(nm), nil
	}
	return true, nil
}

// isCordoned reports whether all nodes of a maintenance are cordoned. It is also for a maintenance
// in stage Drain, whose condition Ready is about the drain.
func isCordoned(nm *v1alpha1.NodeMaintenance) bool {
	return glance.Nodes(nm) > 0 && !slices.ContainsFunc(nm.Status.NodeStatuses, func(node v1alpha1.NodeMaintenanceNodeStatus) bool {
		return show.IsOutside(&node)
	})
}

// firstOf returns the first names and the number of the remaining names.
func firstOf(names []string) string {
	const few = 3
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

// awaitEnd waits until a maintenance has released its nodes or, with deleted, until the object is
// deleted.
func (e *environment) awaitEnd(ctx context.Context, c clients, name string, uid types.UID, deleted bool, timeout *timeout) error {
	ctx, cancel := timeout.begin(ctx)
	defer cancel()
	f, err := e.newFollower(ctx, c, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = f.each(ctx, func(all []show.Facts) (bool, error) {
			if len(all) == 0 || all[0].Maintenance.UID != uid {
				return true, nil
			}
			return !deleted && v1alpha1.IsDone(all[0].Maintenance), nil
		})
	}
	switch {
	case errors.Is(context.Cause(ctx), errTimeout) && err != nil:
		return notReleased(ctx, c, timeout.text, name)
	case err != nil && ctx.Err() != nil:
		return exitWith(exitInterrupted, "interrupted; the server continues to release the nodes of %s", name)
	}
	return err
}

// notReleased returns an error with a different exit code for nodes whose release takes time and
// for nodes whose release fails.
func notReleased(ctx context.Context, c clients, after, name string) error {
	ctx, cancel := lastLook(ctx)
	defer cancel()
	if nm, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{}); err == nil {
		if stuck := show.Stuck(nm); stuck != nil {
			return exitWith(exitBlocked, "%s cannot release all of its nodes after %s (%s: %s); the server keeps trying",
				name, after, stuck.Reason, stuck.Message)
		}
	}
	return exitWith(exitTimeout, "%s has not released all of its nodes after %s; the server continues", name, after)
}
