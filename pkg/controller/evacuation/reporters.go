// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
)

// reporters remembers the classes whose evacuators have reported, as the cached Evacuations show. A
// new leader knows only the classes of Evacuations that still exist. Only programs with the right
// to write as an evacuator of a class can add the class.
type reporters struct {
	classes loop.Memory[string, reporter]
}

// reporter is the evacuator of a class.
type reporter struct {
	// reported is the time of its last report. silent is the time at which it last exceeded the
	// longer deadline for its first report.
	reported, silent time.Time
}

// note records the last report in a status.
func (r *reporters) note(status *v1alpha1.EvacuationStatus) {
	turn := protocol.TurnOf(status)
	if !turn.Reported {
		return
	}
	r.classes.Change(turn.Class, func(known reporter, _ bool) (reporter, bool) {
		if turn.Since.After(known.reported) {
			known.reported = turn.Since
		}
		return known, true
	})
}

// wasSilent records that the evacuator of a class did not report until its deadline: the program
// may no longer exist. Until it reports again, its class counts as never seen.
func (r *reporters) wasSilent(class string, now time.Time) {
	r.classes.Change(class, func(known reporter, _ bool) (reporter, bool) {
		known.silent = now
		return known, true
	})
}

// among returns the classes of the evacuators that have reported.
func (r *reporters) among(evacuators []v1alpha1.Evacuator) sets.Set[string] {
	seen := sets.New[string]()
	for i := range evacuators {
		class := evacuators[i].EvacuatorClass
		if known, ok := r.classes.Get(class); ok && known.reported.After(known.silent) {
			seen.Insert(class)
		}
	}
	return seen
}

// startLimit returns the maximum time until the first report of an evacuator.
// progressDeadlineSeconds limits it further. A program that has reported before exists, and may
// need that time to recover from a disruption. The built-in evacuators run in the server and in the
// node agents, whose failures are known by other means. The client of an eviction waits no longer
// than startDeadline for each evacuator: the owner of a pod must not keep a node of others.
func (s situation) startLimit(class string) time.Duration {
	switch {
	case slices.Contains(protocol.BuiltInClasses, class) || protocol.OnlyEvictionAsks(s.evacuation):
		return s.startDeadline
	case s.seen.Has(class):
		return math.MaxInt64
	}
	return max(s.startDeadline, s.podStartDeadline)
}
