// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/mergepatch"
	"haulout.dev/haulout/pkg/rollout/next"
)

const (
	// maxStarts is the maximum number of units that one sync starts, so that other rollouts and new
	// holds need not wait for all of them.
	maxStarts = 16
	// startRetry is the time after which units are tried again that did not start, because others
	// were enough for one sync, for example. Most likely an event comes earlier.
	startRetry = time.Second
	// statusPace is the time between two writes of counters and phases, and messagePace between two
	// that only differ in messages. A worker that is idle claims a node in less time, and a node
	// that is done returns in less time, so most units are never stored in the phases in between.
	statusPace  = 2 * time.Second
	messagePace = 30 * time.Second
)

// reconcile takes the next steps of a rollout and updates its status.
func (c *Controller) reconcile(ctx context.Context, r *v1alpha1.NodeMaintenanceRollout) error {
	f, err := c.gather(ctx, r)
	if err != nil {
		return errors.Join(err, c.showFailure(ctx, r))
	}
	d := decide(f)
	started, err := c.confirm(ctx, r, f, d)
	if !d.wake.IsZero() {
		// A deadline within the present second is due when the second is over.
		c.queue.AddAfter(r.Name, max(d.wake.Sub(c.Clock.Now()), time.Second))
	}
	return errors.Join(err, c.act(ctx, r, d, started))
}

// showFailure reports the error of a rollout about which the server cannot decide, if it lasts.
func (c *Controller) showFailure(ctx context.Context, r *v1alpha1.NodeMaintenanceRollout) error {
	failing, _ := c.problems.Of(r.Name)
	if failing == nil {
		return nil
	}
	f := &facts{failing: failing, rollout: next.Rollout{Object: r}, cluster: next.NewCluster(next.Facts{Now: c.Clock.Now()})}
	d := &decision{status: *r.Status.DeepCopy()}
	d.setFailure(f, "The server cannot decide about the rollout")
	_, err := c.writeStatus(ctx, r, d, false)
	return loop.IgnoreNotFound(err)
}

// confirm reads the nodes of the units to start from the API, and returns the entries of
// status.current for the units whose nodes are as the decision assumes. The caches may not show yet
// what another client, or the server itself, has changed: that is an error if no unit starts
// therefore. After an error no further unit starts. If none starts, the former conditions stay,
// unless the error lasts.
func (c *Controller) confirm(ctx context.Context, r *v1alpha1.NodeMaintenanceRollout, f *facts, d *decision) (started []v1alpha1.RolloutUnit, err error) {
	ready := !f.asking
	if ready && len(d.start) > 0 {
		ready, err = c.isCurrent(ctx)
	}
	for i, u := range d.start {
		agrees := false
		if ready && err == nil && i < maxStarts {
			if agrees, err = c.agrees(ctx, f, u); err != nil {
				c.failedStartOf(r.Name, u.Name).at = c.Clock.Now()
			}
		}
		if agrees {
			started = append(started, f.announce(u))
		} else {
			d.status.Nodes.Running -= int32(len(u.Nodes)) // they wait in this sync after all
			d.status.Nodes.Waiting += int32(len(u.Nodes))
		}
	}
	isStuck := len(d.start) > 0 && len(started) == 0
	if isStuck && err == nil && !f.asking {
		err = fmt.Errorf("unit %s does not start: the caches are older than the API", d.start[0].Name)
		if ready {
			c.failedStartOf(r.Name, d.start[0].Name).at = c.Clock.Now()
		}
	}
	if err == nil && len(started) < len(d.start) {
		c.queue.AddAfter(r.Name, startRetry)
	}
	if isStuck {
		d.status.Conditions = slices.Clone(r.Status.Conditions)
		if err != nil && f.failing != nil {
			d.setFailure(f, "The server cannot start a unit")
		} else {
			d.status.ObservedGeneration = r.Status.ObservedGeneration
		}
	}
	return started, err
}

// isCurrent reports whether this process knows all units that earlier leaders have announced. Its
// caches may have been filled from a replica that lags. Once they have all, later announcements are
// its own.
func (c *Controller) isCurrent(ctx context.Context) (bool, error) {
	if c.current {
		return true, nil
	}
	list, err := c.Cluster.Maintenance.MaintenanceV1alpha1().NodeMaintenanceRollouts().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list the rollouts: %w", err)
	}
	for i := range list.Items {
		known, exists := c.rollouts.Get(list.Items[i].Name)
		if !exists || known.ResourceVersion != list.Items[i].ResourceVersion {
			return false, nil
		}
	}
	c.current = true
	return true, nil
}

// agrees reports whether the nodes of a unit are in the API as the decision assumes.
func (c *Controller) agrees(ctx context.Context, f *facts, u *next.Unit) (bool, error) {
	for _, n := range u.Nodes {
		node, err := c.Cluster.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read node %s: %w", n.Name, err)
		}
		live := next.NewNode(node, c.holdersOf(n.Name), f.cluster.Now)
		if selected, _ := f.selector.Decide(node); !selected || !f.cluster.Agrees(&live) || f.goal.isMet(node) {
			return false, nil
		}
	}
	return true, nil
}

// act applies a decision. It completes and pauses maintenances. Then it announces the units that
// start, in a write that fails if a user has changed the rollout since the decision, and creates
// their maintenances only after that.
func (c *Controller) act(ctx context.Context, r *v1alpha1.NodeMaintenanceRollout, d *decision, started []v1alpha1.RolloutUnit) error {
	var errs []error
	for i := range d.units {
		errs = append(errs, c.change(ctx, &d.units[i]))
	}
	d.status.Current = slices.Concat(d.status.Current, started, d.unsettledBut(func(name string) bool {
		return slices.ContainsFunc(started, func(u v1alpha1.RolloutUnit) bool { return u.Unit == name })
	}))
	written, err := c.writeStatus(ctx, r, d, len(started) > 0)
	if err != nil {
		return errors.Join(append(errs, loop.IgnoreNotFound(err))...)
	}
	for i := range d.unsettled {
		// An earlier leader may have sent a creation that had no answer.
		if start := c.failedStartOf(r.Name, d.unsettled[i].Unit); start.unanswered.IsZero() {
			start.unanswered = c.Clock.Now()
		}
	}
	for i := range started {
		err := c.create(ctx, written, &started[i])
		c.noteCreation(r.Name, started[i].Unit, err)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// failedStartOf returns the last failed start of a unit, which the caller may change.
func (c *Controller) failedStartOf(rollout, unit string) *failedStart {
	starts := c.failedStarts[rollout]
	if starts == nil {
		starts = map[string]*failedStart{}
		c.failedStarts[rollout] = starts
	}
	if starts[unit] == nil {
		starts[unit] = &failedStart{}
	}
	return starts[unit]
}

// noteCreation records the result of the creation of the maintenance of a unit. A refusal says
// nothing about an earlier request that had no answer.
func (c *Controller) noteCreation(rollout, unit string, err error) {
	now := c.Clock.Now()
	start := c.failedStartOf(rollout, unit)
	switch {
	case err == nil:
		delete(c.failedStarts[rollout], unit)
	case isRefusal(err):
		start.at, start.refused = now, now.Sub(start.unanswered) > createPatience
	default:
		*start = failedStart{unanswered: now}
	}
}

// isRefusal reports whether the API has answered that it stores nothing. After any other error the
// request may still be carried out.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && code != http.StatusRequestTimeout
}

// change completes, pauses or resumes the maintenance of a unit.
func (c *Controller) change(ctx context.Context, u *followed) error {
	metadata := map[string]any{}
	spec := map[string]any{}
	switch {
	case u.end.Now:
		spec["stage"] = v1alpha1.NodeMaintenanceStageComplete
		if u.end.Withdrawn != "" {
			metadata["annotations"] = map[string]string{v1alpha1.AnnotationWithdrawn: u.end.Withdrawn}
		}
	case u.pause != nil:
		spec["paused"] = *u.pause
	default:
		return nil
	}
	stored, err := mergepatch.IfUnchanged(ctx, c.Cluster.Maintenance.MaintenanceV1alpha1().NodeMaintenances().Patch, u.nm, metadata,
		map[string]any{"spec": spec}, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("change NodeMaintenance %s: %w", u.nm.Name, err)
	}
	c.created.Wrote(stored)
	return nil
}

// create creates the maintenance of an announced unit. If it exists, an earlier attempt has created
// it. A maintenance of another user with this name is found by the next sync, which gives the
// announcement up.
func (c *Controller) create(ctx context.Context, r *v1alpha1.NodeMaintenanceRollout, unit *v1alpha1.RolloutUnit) error {
	_, err := c.Cluster.Maintenance.MaintenanceV1alpha1().NodeMaintenances().Create(ctx, maintenanceOf(r, unit), metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create NodeMaintenance %s: %w", unit.Maintenance, err)
	}
	return nil
}

// writeStatus stores the status of a decision if it differs, and returns the stored rollout. It
// fails with a conflict if the rollout has changed since it was read. If units start, it is written
// even if the same units were announced a moment ago. Counters, phases and messages may be stored
// by a later sync.
func (c *Controller) writeStatus(ctx context.Context, r *v1alpha1.NodeMaintenanceRollout, d *decision, starts bool) (*v1alpha1.NodeMaintenanceRollout, error) {
	if !starts && equality.Semantic.DeepEqual(r.Status, d.status) {
		return r, nil
	}
	if !starts && !isUrgent(&r.Status, &d.status) {
		if wait := c.writePause(r, &d.status); wait > 0 {
			c.queue.AddAfter(r.Name, wait)
			return r, nil
		}
	}
	changed := *r
	changed.Status = d.status
	stored, err := c.Cluster.Maintenance.MaintenanceV1alpha1().NodeMaintenanceRollouts().UpdateStatus(ctx, &changed, metav1.UpdateOptions{FieldManager: fieldManager})
	if err != nil {
		return nil, fmt.Errorf("write status: %w", err)
	}
	c.rollouts.Wrote(stored)
	c.written.Set(r.Name, c.Clock.Now())
	c.announceChanges(r, stored, d)
	return stored, nil
}

// isUrgent reports whether a status differs in more than counters, phases and messages: users wait
// for its conditions, and other rollouts for the places of units that leave.
func isUrgent(old, status *v1alpha1.NodeMaintenanceRolloutStatus) bool {
	if old.ObservedGeneration != status.ObservedGeneration || len(old.Current) != len(status.Current) {
		return true
	}
	return slices.ContainsFunc(status.Conditions, func(is metav1.Condition) bool {
		was := meta.FindStatusCondition(old.Conditions, is.Type)
		return was == nil || was.Status != is.Status || was.Reason != is.Reason
	})
}

// writePause returns the time until a status that is not urgent may be written.
func (c *Controller) writePause(r *v1alpha1.NodeMaintenanceRollout, status *v1alpha1.NodeMaintenanceRolloutStatus) time.Duration {
	last, known := c.written.Get(r.Name)
	if !known {
		return 0
	}
	pace := messagePace
	samePhase := func(a, b v1alpha1.RolloutUnit) bool { return a.Unit == b.Unit && a.Phase == b.Phase }
	if r.Status.Nodes != status.Nodes || !slices.EqualFunc(r.Status.Current, status.Current, samePhase) {
		pace = statusPace
	}
	return pace - c.Clock.Since(last)
}
