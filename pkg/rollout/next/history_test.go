// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"testing"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestOutcomeOf(t *testing.T) {
	completed := func(states ...v1alpha1.NodeTaskState) *v1alpha1.NodeMaintenance {
		m := &simMaintenance{owner: "kernel", person: true, complete: 1, ended: 2, records: map[string]record{}}
		m.nodes = append(m.nodes, []string{"n0", "n1"}[:len(states)]...)
		nm := m.object()
		for i, state := range states {
			if state != "" {
				nm.Status.NodeStatuses[i].Task = &v1alpha1.NodeMaintenanceNodeTask{State: state}
			}
		}
		return nm
	}
	with := func(nm *v1alpha1.NodeMaintenance, change func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
		change(nm)
		return nm
	}
	for name, c := range map[string]struct {
		nm   *v1alpha1.NodeMaintenance
		want Outcome
	}{
		"drains":                    {attempt("n0", ""), Running},
		"is about to release":       {with(completed(v1alpha1.NodeTaskDone), func(nm *v1alpha1.NodeMaintenance) { nm.Finalizers = []string{v1alpha1.FinalizerMaintenanceCompletion} }), Running},
		"all done":                  {completed(v1alpha1.NodeTaskDone, v1alpha1.NodeTaskDone), Done},
		"done and gone":             {completed(v1alpha1.NodeTaskDone, v1alpha1.NodeTaskGone), Done},
		"done and deleted":          {with(completed(v1alpha1.NodeTaskDone, ""), func(nm *v1alpha1.NodeMaintenance) { nm.Annotations[v1alpha1.AnnotationWithdrawn] = WithdrawnDone }), Done},
		"half done":                 {completed(v1alpha1.NodeTaskDone, ""), Released},
		"done and failed":           {completed(v1alpha1.NodeTaskDone, v1alpha1.NodeTaskFailed), Released},
		"gone":                      {completed(v1alpha1.NodeTaskGone), Released},
		"before it had nodes":       {completed(), Released},
		"retried":                   {retried(attempt("n0", "Released")), Retried},
		"withdrawn":                 {attempt("n0", WithdrawnBlocked), Withdrawn},
		"withdrawn, done after all": {with(completed(v1alpha1.NodeTaskDone), func(nm *v1alpha1.NodeMaintenance) { nm.Annotations[v1alpha1.AnnotationWithdrawn] = WithdrawnStopped }), Withdrawn},
	} {
		t.Run(name, func(t *testing.T) { is.Equal(t, OutcomeOf(c.nm), c.want) })
	}
}

// A blocked unit is tried again after 10 minutes, then after twice as long each time, up to 6
// hours.
func TestRetry(t *testing.T) {
	for blocked, want := range map[int]time.Duration{
		1: 10 * time.Minute, 2: 20 * time.Minute, 3: 40 * time.Minute, 6: 320 * time.Minute, 7: 6 * time.Hour, 1000: 6 * time.Hour,
	} {
		is.Equal(t, (&past{blocked: blocked, lastBlocked: now}).retry().Sub(now), want)
	}
}

// The last failure is that of the newest failed task or attempt without a worker, until a user
// deletes it.
func TestLastFailure(t *testing.T) {
	noWorker := ended(attempt("n0", WithdrawnNoWorker), time.Hour)
	failing := attempt("n1", "")
	failed := map[string]time.Time{failing.Name: now.Add(-time.Minute), "other": now}
	for name, c := range map[string]struct {
		attempts []*v1alpha1.NodeMaintenance
		want     time.Time
	}{
		"none":             {},
		"no worker":        {[]*v1alpha1.NodeMaintenance{noWorker}, now.Add(-time.Hour)},
		"retried":          {[]*v1alpha1.NodeMaintenance{retried(ended(attempt("n0", WithdrawnNoWorker), time.Hour))}, time.Time{}},
		"deleted":          {[]*v1alpha1.NodeMaintenance{deleted(ended(attempt("n0", WithdrawnNoWorker), time.Hour))}, time.Time{}},
		"a failed task":    {[]*v1alpha1.NodeMaintenance{noWorker, failing}, now.Add(-time.Minute)},
		"another's task":   {[]*v1alpha1.NodeMaintenance{attempt("n2", "")}, time.Time{}},
		"blocked is none":  {[]*v1alpha1.NodeMaintenance{attempt("n0", WithdrawnBlocked)}, time.Time{}},
		"the order is not": {[]*v1alpha1.NodeMaintenance{failing, noWorker}, now.Add(-time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			got := historyOf(failed, c.attempts...).history.lastFailure
			is.True(t, got.Equal(c.want), "got %s, want %s", got, c.want)
		})
	}
	d := historyOf(nil, ended(attempt("n0", WithdrawnBlocked), time.Minute), ended(attempt("n0", WithdrawnBlocked), time.Hour))
	is.Equal(t, d.byName["n0"].past.retry().Sub(now), 19*time.Minute, "the last of two attempts counts, in any order")
}

func historyOf(failed map[string]time.Time, attempts ...*v1alpha1.NodeMaintenance) *decider {
	d := newDecider(&Cluster{failed: failed}, &Rollout{Attempts: attempts})
	d.unit("n0")
	d.readHistory()
	return d
}
