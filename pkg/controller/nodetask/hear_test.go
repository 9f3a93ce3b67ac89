// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"testing"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

// TestHear changes the times of a task: a heartbeat is no change of the state, and what a leader
// finds when it begins is no change.
func TestHear(t *testing.T) {
	c := &Controller{}
	at := func(minute int) time.Time { return noon.Add(time.Duration(minute) * time.Minute) }
	task := func(state, progress time.Duration) *v1alpha1.NodeTask {
		return &v1alpha1.NodeTask{Status: v1alpha1.NodeTaskStatus{StateTime: ago(state), ProgressTime: ago(progress)}}
	}
	check := func(got heard, at, entered time.Time) {
		t.Helper()
		is.True(t, got.at.Equal(at) && got.entered.Equal(entered), "got %s and %s, want %s and %s", got.at, got.entered, at, entered)
	}
	check(c.hear("one", task(9, 9), at(0)), time.Time{}, time.Time{})
	check(c.hear("one", task(9, 8), at(1)), at(1), time.Time{})
	check(c.hear("one", task(7, 8), at(2)), at(2), at(2))
	check(c.hear("one", task(7, 6), at(3)), at(3), at(2))
	check(c.hear("one", task(7, 6), at(4)), at(3), at(2))
	check(c.hear("one", nil, at(5)), time.Time{}, time.Time{})
	check(c.hear("one", task(7, 6), at(6)), time.Time{}, time.Time{})
}
