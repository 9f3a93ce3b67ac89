// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"errors"
	"io"
	"time"

	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
	"haulout.dev/haulout/pkg/drainer"
)

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

// tellPaused prints that a maintenance is paused, so that the user does not wait in vain.
func (e *environment) tellPaused(nm *v1alpha1.NodeMaintenance) {
	if v1alpha1.IsPaused(nm) {
		e.screen(e.ErrOut).Printf("%[1]s was paused %[2]s, so it asks no pod to leave. To continue: %[3]s", nm.Name, show.PausedBy(nm, e.now()), protocol.ResumeCommand(nm))
	}
}

// newDrainer returns the library that writes and follows maintenances for the plugin.
func newDrainer(c clients, o *waitOptions) *drainer.Drainer {
	return &drainer.Drainer{Client: c.haulout, FieldManager: manager, DryRun: o.dryRun.isOn()}
}

// await waits until a maintenance has reached a state. It shows the progress on out, unless that is
// nil.
func (e *environment) await(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, state drainer.State, o *waitOptions, out io.Writer,
) (*v1alpha1.NodeMaintenance, error) {
	ctx, cancel := o.timeout.begin(ctx)
	defer cancel()
	d := newDrainer(c, o)
	if out != nil {
		d.Follow = func(ctx context.Context, nm *v1alpha1.NodeMaintenance, look func(*v1alpha1.NodeMaintenance) (bool, error)) error {
			return e.follow(ctx, c, nm, out, look)
		}
	}
	return d.Wait(ctx, nm, state)
}

// awaitStage waits until a maintenance has reached a stage, and shows the progress.
func (e *environment) awaitStage(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, stage v1alpha1.NodeMaintenanceStage, o *waitOptions) error {
	out := e.Out
	if o.output.format() != "" {
		// Write the progress to the error stream: it is not part of the requested output.
		out = e.ErrOut
	}
	e.tellPaused(nm)
	state := drainer.StateOf(stage)
	_, err := e.await(ctx, c, nm, state, o, out)
	var ended *drainer.WaitError
	kept := ""
	switch {
	case errors.Is(err, drainer.ErrPodsKept) && errors.As(err, &ended):
		kept = ended.Condition.Message
	case err != nil && ctx.Err() != nil:
		return exitWith(exitInterrupted,
			"interrupted; %[1]s continues. To pause it: kubectl maintenance pause %[1]s. To wait again: kubectl maintenance wait %[1]s. "+
				"To cancel it: kubectl maintenance cancel %[1]s",
			nm.Name)
	case err != nil:
		return e.notReached(err, nm, o)
	}
	if kept != "" {
		e.screen(out).Printf("%s.", kept)
	}
	if (state == drainer.Cordoned || state == drainer.Drained) && o.output.format() == "" {
		e.screen(out).Printf("%s is %s. To put its nodes back into service: kubectl maintenance complete %s", nm.Name, state, nm.Name)
	}
	if kept != "" && !o.expectsKept {
		return &exitError{code: exitPodsKept}
	}
	return nil
}

// notReached returns the error of a wait with a different exit code for a maintenance that has
// ended, for one that makes progress, for one that is paused and for one that needs an action.
// first is the maintenance at the beginning.
func (e *environment) notReached(err error, first *v1alpha1.NodeMaintenance, o *waitOptions) error {
	var why *drainer.WaitError
	if !errors.As(err, &why) {
		return err
	}
	name, after, blocked := first.Name, o.timeout.text, ""
	state := string(why.State)
	if why.State == drainer.Observed {
		state = "announced"
	}
	switch {
	case errors.Is(err, drainer.ErrEnded) && why.Maintenance == nil:
		return exitWith(exitEnded, "%s was deleted before this command saw its nodes %s", name, state)
	case errors.Is(err, drainer.ErrEnded):
		return exitWith(exitEnded, "%[1]s was completed before this command saw its nodes %[2]s. To see what happened: kubectl maintenance history %[1]s",
			name, state)
	case errors.Is(err, drainer.ErrPaused) && v1alpha1.IsPaused(first):
		// tellPaused has told who paused it.
		return exitWith(exitPaused, "%s is still paused after %s", name, after)
	case errors.Is(err, drainer.ErrPaused):
		return exitWith(exitPaused, "%[1]s is paused after %[3]s: it was paused %[2]s. To continue: %[4]s",
			name, show.PausedBy(why.Maintenance, e.now()), after, protocol.ResumeCommand(why.Maintenance))
	case errors.Is(err, drainer.ErrBlocked):
		return exitWith(exitBlocked, "%[1]s is blocked after %[2]s (%[3]s: %[4]s); the server keeps trying. To see who must act: kubectl maintenance blockers %[1]s",
			name, after, why.Condition.Reason, why.Condition.Message)
	case why.Maintenance != nil && glance.BlockedPods(why.Maintenance) > 0:
		blocked = ". To see the pods that cannot leave: kubectl maintenance blockers " + name
	}
	return exitWith(exitTimeout, "%[1]s is not done after %[2]s; the server continues. To see its progress: kubectl maintenance status %[1]s%[3]s",
		name, after, blocked)
}

// follow shows the progress of a maintenance on out until look returns done. It passes nil to look
// if the maintenance does not exist any more. Another one that was created under its name is not
// shown.
func (e *environment) follow(
	ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, out io.Writer, look func(*v1alpha1.NodeMaintenance) (bool, error),
) error {
	f, err := e.newFollower(ctx, c, nm.Name)
	switch {
	case answer.ObjectGone(err):
		_, err = look(nil)
		return err
	case err != nil:
		return err
	}
	r := e.newReporter(out)
	defer r.end(ctx)
	return f.each(ctx, func(all []show.Facts) (bool, error) {
		if len(all) == 0 || all[0].Maintenance.UID != nm.UID {
			return look(nil)
		}
		facts := all[0]
		done, err := look(facts.Maintenance)
		lines := func(o show.Options) []screen.Line { return show.Status(facts, o) }
		f.report(r, fitting(r.screen), lines, show.Summary(facts), done || err != nil)
		return done, err
	})
}

// awaitEnd waits until a maintenance has released its nodes or, with drainer.Deleted, until the
// object is deleted. It shows no progress.
func (e *environment) awaitEnd(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, state drainer.State, o *waitOptions) error {
	_, err := e.await(ctx, c, nm, state, o, nil)
	if err != nil && ctx.Err() != nil {
		return exitWith(exitInterrupted, "interrupted; the server continues to release the nodes of %s", nm.Name)
	}
	return notReleased(err, nm.Name, o)
}

// notReleased returns the error of a wait with a different exit code for nodes whose release takes
// time and for nodes whose release fails.
func notReleased(err error, name string, o *waitOptions) error {
	var why *drainer.WaitError
	switch {
	case !errors.As(err, &why):
		return err
	case errors.Is(err, drainer.ErrBlocked):
		return exitWith(exitBlocked, "%s cannot release all of its nodes after %s (%s: %s); the server keeps trying",
			name, o.timeout.text, why.Condition.Reason, why.Condition.Message)
	}
	return exitWith(exitTimeout, "%s has not released all of its nodes after %s; the server continues", name, o.timeout.text)
}
