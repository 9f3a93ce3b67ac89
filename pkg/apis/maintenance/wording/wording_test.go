// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package wording

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestWording(t *testing.T) {
	for name, tc := range map[string]struct{ got, want string }{
		"a short text stays":                  {Cut("abc", 3), "abc"},
		"a long text is cut":                  {Cut("abcd", 3), "abc"},
		"no character is cut in two":          {Cut("aéé", 4), "aé"},
		"a sentence gets a full stop":         {Sentence("no room"), "no room."},
		"a sentence keeps its only full stop": {Sentence("no room. "), "no room."},
		"one static pod":                      {StaticPodsKept(1), "1 static pod keeps running until the machine goes down"},
		"several static pods":                 {StaticPodsKept(2), "2 static pods keep running until the machine goes down"},
		"one thing":                           {Count(1, "pod"), "1 pod"},
		"several things":                      {Count(int32(0), "pod"), "0 pods"},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, tc.got, tc.want)
		})
	}
}

func TestBudgetIn(t *testing.T) {
	for message, want := range map[string]string{
		NeverOpens("web", "maxUnavailable 0"):             "web",
		Budget("web") + " allows no disruption":           "web",
		"The pod is selected by the PodDisruptionBudgets": "",
		"PodDisruptionBudget":                             "",
		"PodDisruptionBudget  of nobody":                  "",
	} {
		got, ok := BudgetIn(message)
		is.True(t, got == want && ok == (want != ""), "%q: got %q, %v", message, got, ok)
	}
}

func TestStoppingUntil(t *testing.T) {
	until := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	got, ok := StoppingUntil(Stopping(until))
	is.True(t, ok && got.Equal(until), "got %s, %v", got, ok)
	for _, message := range []string{"", "The pod is stopping.", "The pod is stopping until noon, the end of its grace period."} {
		_, ok := StoppingUntil(message)
		is.True(t, !ok, "%q", message)
	}
}

func TestBesidePodsLeft(t *testing.T) {
	for message, want := range map[string]string{
		PodsLeft(1, 1, 0):                    "",
		PodsLeft(12, 9, 3) + "; 2 new nodes": "2 new nodes",
		"All pods are gone":                  "All pods are gone",
	} {
		is.Equal(t, BesidePodsLeft(message), want)
	}
}

// TestRemedies checks that each remedy names a user or component and a command, for every kind of
// pod.
func TestRemedies(t *testing.T) {
	for _, remedy := range append(append(Blocked, notBlocked...), RemedyFor("SomethingNew")) {
		for _, format := range []string{remedy.Who, remedy.Look} {
			text := fmt.Sprintf(format+"%[5]s", "shop", "web-1", "node-3", "example.com", "")
			is.True(t, format != "" && !strings.Contains(text, "%"), "%s: %q", remedy.Reason, text)
		}
		is.Equal(t, RemedyFor(remedy.Reason), remedy)
	}
}
