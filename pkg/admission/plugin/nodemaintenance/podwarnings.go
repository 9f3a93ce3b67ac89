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

package nodemaintenance

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/drainplan"
	"haulout.dev/haulout/pkg/preflight"
)

// No warning names a pod: who may write maintenances need not be allowed to see pods. A budget is named, for somebody has to be asked to
// change it.

// warnOfPods warns of pods that the drain cannot move, or that it would lose.
func warnOfPods(_ context.Context, w *write) []string {
	var texts []string
	switch {
	case w.outlook.late:
		return []string{"the pods on these nodes were not checked: the cluster did not list them in time"}
	case w.outlook.failed:
		return []string{"the pods on these nodes were not checked: the cluster did not list them; the log of the Haulout server says why"}
	}
	if s := w.outlook.tally.Summary(preflight.BudgetNeverAllows); s.Pods > 0 {
		texts = append(texts, neverAllowed(s)...)
	}
	if s := w.outlook.tally.Summary(preflight.SeveralBudgets); s.Pods > 0 {
		text := fmt.Sprintf("pods that cannot be evicted: %d; more than one PodDisruptionBudget selects each", s.Pods)
		texts = append(texts, firstThatFits(text+", above all "+join(s.Causes[0].Budgets), text))
	}
	if s := w.outlook.tally.Summary(preflight.NoController); s.Pods > 0 {
		texts = append(texts, fmt.Sprintf("pods that have no controller and will not come back once evicted: %d", s.Pods))
	}
	if w.outlook.read > 0 {
		texts = append(texts, fmt.Sprintf("only the first %d pods were checked, so that these numbers may be too low", w.outlook.read))
	}
	return texts
}

// neverAllowed also says, on a line of its own, why the worst of them are not replaced before they leave.
func neverAllowed(s preflight.Summary) []string {
	worst := s.Causes[0]
	name, under := join(worst.Budgets), ""
	text := fmt.Sprintf("pods that cannot be evicted: %d; never allowed by PodDisruptionBudget %s", s.Pods, name)
	texts := []string{firstThatFits(fmt.Sprintf("%s (%s)", text, worst.Why), text)}
	if len(s.Causes) > 1 {
		text = fmt.Sprintf("pods that cannot be evicted: %d; never allowed by %d PodDisruptionBudgets, above all %s", s.Pods, len(s.Causes), name)
		texts[0] = firstThatFits(fmt.Sprintf("%s (%d, %s)", text, worst.Pods, worst.Why), fmt.Sprintf("%s (%d)", text, worst.Pods), text)
		under = " under " + name
	}
	if worst.Refusal.IsZero() {
		return texts
	}
	const nor = "nor are they replaced before they leave"
	return append(texts, firstThatFits(nor+under+": their Deployment "+worst.Refusal.Fact, nor+": their Deployment "+worst.Refusal.Fact))
}

// warnOfPodsLeft warns of pods that the drain leaves running, so that Drained does not stand for an empty node.
func warnOfPodsLeft(_ context.Context, w *write) []string {
	left := map[drainplan.LeftReason]int{}
	for _, cause := range w.outlook.tally.Summary(preflight.LeftRunning).Causes {
		left[cause.Left] = cause.Pods
	}
	var texts []string
	for _, kind := range []struct {
		reason drainplan.LeftReason
		text   string
	}{
		{drainplan.LeftStatic, "static pods that are left running, as no agent on their nodes can stop them: %d"},
		{drainplan.LeftDaemonSet, "DaemonSet pods that are left running, as no evacuator for them is on: %d"},
		{drainplan.LeftTolerant, "DaemonSet pods that are left running, as they tolerate the drain taint and would come back: %d"},
	} {
		if n := left[kind.reason]; n > 0 {
			texts = append(texts, fmt.Sprintf(kind.text, n))
		}
	}
	return texts
}

func join(names []types.NamespacedName) string {
	texts := make([]string, 0, len(names))
	for _, name := range names {
		texts = append(texts, name.String())
	}
	return strings.Join(texts, ", ")
}

// firstThatFits returns the first text that is short enough for a warning, else the last, which is going to be cut.
func firstThatFits(texts ...string) string {
	for _, text := range texts {
		if utf8.RuneCountInString(text) <= warningLength {
			return text
		}
	}
	return texts[len(texts)-1]
}
