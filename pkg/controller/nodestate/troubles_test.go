// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestTroubles(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	var notified []string
	troubles := newTroubles(clock, func(node string) { notified = append(notified, node) })
	want := func(step, text string, next time.Duration, changes ...string) {
		t.Helper()
		trouble, wait := troubles.Of("one")
		if (trouble == nil) != (text == "") || trouble != nil && trouble.Text != text || wait != next {
			t.Errorf("%s: got %+v and %s, want %q and %s", step, trouble, wait, text, next)
		}
		if !slices.Equal(notified, changes) {
			t.Errorf("%s: notified of nodes %q, want %q", step, notified, changes)
		}
		notified = nil
	}
	want("nothing fails", "", 0)
	troubles.Note("one", "the node", "forbidden")
	want("writing the node fails", "", VisibleAfter, "one")
	clock.SetTime(clock.Now().Add(VisibleAfter / 2))
	troubles.Note("one", "the node", "still forbidden")
	troubles.Note("one", "an Evacuation", "refused")
	troubles.Note("two", "an Evacuation", "refused")
	want("writing the node fails with another error, and an Evacuation fails", "", VisibleAfter/2, "one", "two")
	clock.SetTime(clock.Now().Add(VisibleAfter / 2))
	want("writing the node has failed for VisibleAfter", "still forbidden", 0)
	troubles.Note("one", "the node", "")
	want("writing the node succeeds again", "", VisibleAfter/2, "one")
	clock.SetTime(clock.Now().Add(VisibleAfter))
	want("the Evacuation still fails", "refused", 0)
	troubles.End("an Evacuation")
	slices.Sort(notified)
	want("the Evacuation fails on neither node", "", 0, "one", "two")
	troubles.End("an Evacuation")
	troubles.Note("one", "the node", "")
	want("nothing failed before", "", 0)
	troubles.Note("one", "the node", "forbidden")
	notified = nil
	troubles.Forget("one")
	want("the node is deleted", "", 0)
}

func TestTextOf(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"one error":                 {a, "a"},
		"several errors are sorted": {errors.Join(b, a), "a and 1 more errors"},
		"an aggregate of several errors": {
			utilerrors.NewAggregate([]error{errors.Join(b, a), fmt.Errorf("c: %w", a)}), "a and 2 more errors",
		},
		"an error that wraps another one": {fmt.Errorf("read: %w", a), "read: a"},
		"an error that is longer than maxText": {
			errors.New(strings.Repeat("x", 2*maxText)), strings.Repeat("x", maxText-len("…")) + "…",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := TextOf(test.err); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
