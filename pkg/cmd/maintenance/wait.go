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
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/maintenance/show"
	"haulout.dev/haulout/pkg/cmd/screen"
)

// lastLook is how long it may take to find out why the time was too short.
const lastLook = 5 * time.Second

// plainAfter is how long after a line the next one is written where nothing can be redrawn.
const plainAfter = 2 * time.Second

// reporter shows progress: redrawn in place on a terminal, else as lines.
type reporter struct {
	screen *screen.Screen
	now    func() time.Time

	last     time.Time
	lastText string
}

func (e *environment) newReporter(out io.Writer) *reporter {
	return &reporter{screen: e.screen(out), now: e.now}
}

// report shows the progress, or a line of it if there is no terminal.
func (r *reporter) report(lines func(columns int) []screen.Line, summary string) {
	if r.screen.Live() {
		r.screen.Draw(lines(r.screen.Columns()))
		return
	}
	if summary != r.lastText && r.now().Sub(r.last) >= plainAfter {
		r.write(summary)
	}
}

// end shows the last progress, which stays.
func (r *reporter) end(lines func(columns int) []screen.Line, summary string) {
	if r.screen.Live() {
		r.screen.Draw(lines(r.screen.Columns()))
		r.screen.Keep()
		return
	}
	if summary != r.lastText {
		r.write(summary)
	}
}

func (r *reporter) write(summary string) {
	r.last, r.lastText = r.now(), summary
	r.screen.Printf("%s  %s", r.now().UTC().Format(time.TimeOnly), summary)
}

// withTimeout bounds a context; 0 does not.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, timeout, errTimeout)
}

// awaitStage waits until a maintenance has done what its stage says.
func (e *environment) awaitStage(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, o *startOptions) error {
	out := e.Out
	if o.output.format() != "" {
		// What was asked for is the output; how it goes on is not part of it.
		out = e.ErrOut
	}
	ctx, cancel := withTimeout(ctx, o.timeout)
	defer cancel()
	err := e.follow(ctx, c, nm.Name, out, func(f *show.Facts) (bool, error) {
		if f == nil || f.Maintenance.UID != nm.UID {
			return true, exitWith(exitEnded, "%s was deleted before it had reached the stage %s", nm.Name, nm.Spec.Stage)
		}
		return e.reached(ctx, c, f.Maintenance, nm.Spec.Stage)
	})
	switch {
	case errors.Is(err, errTimeout):
		return timedOut(ctx, c, o.timeout, nm.Name)
	case err != nil && ctx.Err() != nil:
		return exitWith(exitInterrupted, "interrupted; %s goes on. To look at it: kubectl maintenance status %s. To call it off: kubectl maintenance cancel %s", nm.Name, nm.Name, nm.Name)
	case err != nil:
		return err
	}
	verb := map[v1alpha1.NodeMaintenanceStage]string{v1alpha1.NodeMaintenanceStageDrain: "drained", v1alpha1.NodeMaintenanceStageCordon: "cordoned"}[nm.Spec.Stage]
	if verb != "" && o.output.format() == "" {
		e.screen(out).Printf("%s %s. When you are done with the nodes: kubectl maintenance complete %s", nm.Name, verb, nm.Name)
	}
	return nil
}

// timedOut says how things stood when the time was over.
func timedOut(ctx context.Context, c clients, timeout time.Duration, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	if nm, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{}); err == nil {
		drained := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
		if drained != nil && slices.Contains([]string{v1alpha1.ReasonDrainBlocked, v1alpha1.ReasonNotAuthorized, v1alpha1.ReasonNoNodes}, drained.Reason) {
			return exitWith(exitBlocked, "%s is blocked after %s (%s: %s); it goes on trying. kubectl maintenance blockers %s says whose move it is",
				name, timeout, drained.Reason, drained.Message, name)
		}
	}
	return exitWith(exitTimeout, "%s is not done after %s; it goes on. To look at it: kubectl maintenance status %s", name, timeout, name)
}

// follow shows the progress of a maintenance until look says that it is done. It hands nil to look if there is no such maintenance.
func (e *environment) follow(ctx context.Context, c clients, name string, out io.Writer, look func(*show.Facts) (bool, error)) error {
	f, err := e.newFollower(ctx, c, name)
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
		if len(all) == 0 {
			return look(nil)
		}
		facts := all[0]
		done, err := look(&facts)
		lines := func(columns int) []screen.Line { return show.Status(facts, show.Options{Columns: columns}) }
		if done || err != nil {
			r.end(lines, show.Summary(facts))
		} else {
			r.report(lines, show.Summary(facts))
		}
		return done, err
	})
	r.screen.Keep()
	return err
}

// reached says whether a maintenance has done what the stage says, and fails if it never will.
func (e *environment) reached(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance, stage v1alpha1.NodeMaintenanceStage) (bool, error) {
	if nm.DeletionTimestamp != nil || nm.Spec.Stage == v1alpha1.NodeMaintenanceStageComplete {
		return true, exitWith(exitEnded, "%s was ended before it had reached the stage %s", nm.Name, stage)
	}
	if nm.Status.ObservedGeneration < nm.Generation {
		return false, nil
	}
	switch stage {
	case v1alpha1.NodeMaintenanceStageDrain:
		return meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained), nil
	case v1alpha1.NodeMaintenanceStageCordon:
		return cordoned(ctx, c, nm)
	}
	return true, nil
}

// cordoned says whether all nodes of a maintenance that are not left alone are unschedulable.
func cordoned(ctx context.Context, c clients, nm *v1alpha1.NodeMaintenance) (bool, error) {
	refused := show.Refused(nm)
	for i := range nm.Status.NodeStatuses {
		name := nm.Status.NodeStatuses[i].NodeRef.Name
		if slices.ContainsFunc(refused, func(r show.Refusal) bool { return r.Node == name }) {
			return false, fmt.Errorf("node %s is left alone: %s", name, refused[0].Message)
		}
		node, err := c.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return false, err
		case !node.Spec.Unschedulable:
			return false, nil
		}
	}
	return len(nm.Status.NodeStatuses) > 0, nil
}

// awaitEnd waits until everything that a maintenance had changed was put back, or, if it is to be deleted, until it is gone.
func (e *environment) awaitEnd(ctx context.Context, c clients, name string, uid types.UID, deleted bool, timeout time.Duration) error {
	ctx, cancel := withTimeout(ctx, timeout)
	defer cancel()
	f, err := e.newFollower(ctx, c, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		f.waves.off = true
		err = f.each(ctx, func(all []show.Facts) (bool, error) {
			if len(all) == 0 || all[0].Maintenance.UID != uid {
				return true, nil
			}
			return !deleted && !slices.Contains(all[0].Maintenance.Finalizers, v1alpha1.FinalizerMaintenanceCompletion), nil
		})
	}
	switch {
	case errors.Is(context.Cause(ctx), errTimeout) && err != nil:
		return exitWith(exitTimeout, "%s has not given all of its nodes back after %s; it goes on", name, timeout)
	case err != nil && ctx.Err() != nil:
		return exitWith(exitInterrupted, "interrupted; the server goes on giving the nodes of %s back", name)
	}
	return err
}
