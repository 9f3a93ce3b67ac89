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
	var told []string
	troubles := newTroubles(clock, func(node string) { told = append(told, node) })
	want := func(step, text string, next time.Duration, changes ...string) {
		t.Helper()
		trouble, wait := troubles.Of("one")
		if (trouble == nil) != (text == "") || trouble != nil && trouble.Text != text || wait != next {
			t.Errorf("%s: got %+v and %s, want %q and %s", step, trouble, wait, text, next)
		}
		if !slices.Equal(told, changes) {
			t.Errorf("%s: told of %q, want %q", step, told, changes)
		}
		told = nil
	}
	want("nothing fails", "", 0)
	troubles.Note("one", "the node", "forbidden")
	want("it fails", "", VisibleAfter, "one")
	clock.SetTime(clock.Now().Add(VisibleAfter / 2))
	troubles.Note("one", "the node", "still forbidden")
	troubles.Note("one", "an Evacuation", "refused")
	troubles.Note("two", "an Evacuation", "refused")
	want("it fails with another text, and something else does", "", VisibleAfter/2, "one", "two")
	clock.SetTime(clock.Now().Add(VisibleAfter / 2))
	want("it has failed for long enough", "still forbidden", 0)
	troubles.Note("one", "the node", "")
	want("it works again", "", VisibleAfter/2, "one")
	clock.SetTime(clock.Now().Add(VisibleAfter))
	want("the other one goes on failing", "refused", 0)
	troubles.End("an Evacuation")
	slices.Sort(told)
	want("both have ended", "", 0, "one", "two")
	troubles.End("an Evacuation")
	troubles.Note("one", "the node", "")
	want("nothing was failing", "", 0)
	troubles.Note("one", "the node", "forbidden")
	told = nil
	troubles.Forget("one")
	want("the node is deleted", "", 0)
}

func TestTextOf(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"one error":                  {a, "a"},
		"several, in whatever order": {errors.Join(b, a), "a and 1 more errors"},
		"several within one": {
			utilerrors.NewAggregate([]error{errors.Join(b, a), fmt.Errorf("c: %w", a)}), "a and 2 more errors",
		},
		"one that only wraps another": {fmt.Errorf("read: %w", a), "read: a"},
		"one that is longer than shown": {
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
