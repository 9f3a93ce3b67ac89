// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestFailures(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	var notified []string
	failures := NewFailures(clock, func(node string) { notified = append(notified, node) })
	want := func(step, text string, next time.Duration, changes ...string) {
		t.Helper()
		failure, wait := failures.Of("one")
		if (failure == nil) != (text == "") || failure != nil && failure.Text != text || wait != next {
			t.Errorf("%s: got %+v and %s, want %q and %s", step, failure, wait, text, next)
		}
		if !slices.Equal(notified, changes) {
			t.Errorf("%s: notified of nodes %q, want %q", step, notified, changes)
		}
		notified = nil
	}
	want("nothing fails", "", 0)
	failures.Note("one", "the node", "forbidden")
	want("writing the node fails", "", VisibleAfter, "one")
	clock.SetTime(clock.Now().Add(VisibleAfter / 2))
	failures.Note("one", "the node", "still forbidden")
	failures.Note("one", "an Evacuation", "refused")
	failures.Note("two", "an Evacuation", "refused")
	want("writing the node fails with another error, and an Evacuation fails", "", VisibleAfter/2, "one", "two")
	clock.SetTime(clock.Now().Add(VisibleAfter / 2))
	want("writing the node has failed for VisibleAfter", "still forbidden", 0)
	failures.Note("one", "the node", "")
	want("writing the node succeeds again", "", VisibleAfter/2, "one")
	clock.SetTime(clock.Now().Add(VisibleAfter))
	want("the Evacuation still fails", "refused", 0)
	failures.End("an Evacuation")
	slices.Sort(notified)
	want("the Evacuation fails on neither node", "", 0, "one", "two")
	failures.End("an Evacuation")
	failures.Note("one", "the node", "")
	want("nothing failed before", "", 0)
	failures.Note("one", "the node", "forbidden")
	notified = nil
	failures.Forget("one")
	want("the node is deleted", "", 0)
}

func TestVisibleFailures(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	failures := NewFailures[string](clock, nil)
	for _, about := range []string{"b", "a", "c"} {
		failures.Note("one", about, about+" is refused")
		if about == "a" {
			clock.SetTime(clock.Now().Add(time.Second))
		}
	}
	want := func(step string, next time.Duration, abouts ...string) {
		t.Helper()
		visible, wait := failures.Visible("one")
		var got []string
		for _, failure := range visible {
			got = append(got, failure.About)
		}
		if !slices.Equal(got, abouts) || wait != next {
			t.Errorf("%s: got %q and %s, want %q and %s", step, got, wait, abouts, next)
		}
	}
	want("all are new", VisibleAfter-time.Second)
	if failures.Note("one", "c", "") {
		t.Error("got a visible failure that ended, want one that was not visible")
	}
	failures.Note("one", "c", "c is refused")
	clock.SetTime(clock.Now().Add(VisibleAfter - time.Second))
	want("two are older", time.Second, "a", "b")
	if !failures.Note("one", "a", "") {
		t.Error("got no visible failure that ended")
	}
	want("one has ended", time.Second, "b")
}

func TestTextIsToldOnce(t *testing.T) {
	failures := NewFailures[string](clocktesting.NewFakePassiveClock(time.Time{}), nil)
	for i, step := range []struct {
		text string
		want bool
	}{{"denied by policy", true}, {"denied by policy", false}, {"denied by webhook", true}, {"denied by policy", true}} {
		if got := failures.Tell("one", step.text); got != step.want {
			t.Errorf("step %d: got %t, want %t", i, got, step.want)
		}
	}
	if failures.Note("one", "", ""); failures.Tell("one", "denied by policy") {
		t.Error("the text is new after a success, want it to be told once")
	}
	if failures.Tell("one", ""); !failures.Tell("one", "denied by policy") {
		t.Error("the text is not new although it was dropped")
	}
	if failures.Forget("one"); !failures.Tell("one", "denied by policy") {
		t.Error("the text is not new although the key was forgotten")
	}
}
