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

package evacuators

import (
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// DefaultProgressDeadline is the default of spec.progressDeadlineSeconds.
const DefaultProgressDeadline = 30 * time.Minute

// stampingTakes is how much later than the message about a turn its stamp may be: the API stamps it itself, a moment after the controller has
// made the message.
const stampingTakes = 2 * time.Second

const turnWords = " has the turn since "

// Turn is that of the active evacuator, as the status of the Evacuation tells of it.
type Turn struct {
	// Class is whose turn it is.
	Class string
	// Completed: it says that it has done all it can.
	Completed bool
	// Since is when it last reported or, if it has not, got its turn; zero if nobody wrote that down.
	Since time.Time
	// Reported: it has given any sign since it got its turn.
	Reported bool
}

// TurnOf reads the turn from a status.
func TurnOf(status *maintenancev1alpha1.EvacuationStatus) Turn {
	return readTurn(status.ActiveEvacuatorClass, status.Message, status.EvacuationProgressTimestamp, status.ActiveEvacuatorCompleted,
		status.ExpectedEvacuationFinishTime != nil || status.EvacuationCancellationPolicy == maintenancev1alpha1.EvacuationCancellationPolicyForbid)
}

// TurnOfInternal is TurnOf for the internal type.
func TurnOfInternal(status *maintenance.EvacuationStatus) Turn {
	return readTurn(status.ActiveEvacuatorClass, status.Message, status.EvacuationProgressTimestamp, status.ActiveEvacuatorCompleted,
		status.ExpectedEvacuationFinishTime != nil || status.EvacuationCancellationPolicy == maintenance.EvacuationCancellationPolicyForbid)
}

// readTurn finds out whether the evacuator has reported: its own words in the status tell, or a later stamp than the one in the message about its
// turn.
func readTurn(class, message string, progress *metav1.Time, completed, committed bool) Turn {
	turn := Turn{Class: class, Completed: completed}
	if progress != nil {
		turn.Since = progress.Time
	}
	start, untouched := TurnSince(message, class)
	turn.Reported = !untouched || completed || committed || progress != nil && progress.Sub(start) > stampingTakes
	return turn
}

// Patience is for how long the evacuator may be silent before it loses its turn. progressDeadlineSeconds is that of the spec; start is how long
// one has for its first report, if that is shorter.
func (t Turn) Patience(progressDeadlineSeconds *int32, start time.Duration) time.Duration {
	patience := DefaultProgressDeadline
	if progressDeadlineSeconds != nil {
		patience = time.Duration(*progressDeadlineSeconds) * time.Second
	}
	if t.Reported {
		return patience
	}
	return min(patience, start)
}

// FirstTurn returns who has the turn in a new Evacuation with the given evacuators, and why.
func FirstTurn(evacuators []maintenance.Evacuator) (class, account string) {
	if len(evacuators) == 0 {
		return maintenancev1alpha1.EvacuatorClassEviction, "it has no evacuator"
	}
	sorted := slices.Clone(evacuators)
	SortInternal(sorted)
	return sorted[0].EvacuatorClass, "it is the first evacuator"
}

// TurnMessage tells whose turn it is and why. Besides its reader it is for TurnSince, and so survives a restart.
func TurnMessage(class string, since time.Time, account string) string {
	if class == maintenancev1alpha1.EvacuatorClassEviction {
		return "The pod is up for eviction, as its disruption budget allows: " + account + "."
	}
	return class + turnWords + since.UTC().Format(time.RFC3339) + ": " + account + "."
}

// TurnSince returns when the class got its turn, if the message is still the one that told so.
func TurnSince(message, class string) (time.Time, bool) {
	rest, ok := strings.CutPrefix(message, class+turnWords)
	if !ok {
		return time.Time{}, false
	}
	at, _, ok := strings.Cut(rest, ": ")
	if !ok {
		return time.Time{}, false
	}
	since, err := time.Parse(time.RFC3339, at)
	return since, err == nil
}
