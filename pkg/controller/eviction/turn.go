// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Percent is a share of the pods of a workload, from 1% to 100%. It is a flag.
type Percent int

// String returns the share as it is written in a flag.
func (p *Percent) String() string { return strconv.Itoa(int(*p)) + "%" }

// Set reads a flag.
func (p *Percent) Set(s string) error {
	n, err := strconv.Atoi(strings.TrimSuffix(s, "%"))
	if err != nil || !strings.HasSuffix(s, "%") || n < 1 || n > 100 {
		return fmt.Errorf("must be a percentage from 1%% to 100%%")
	}
	*p = Percent(n)
	return nil
}

// Type names the kind of the flag in its help.
func (p *Percent) Type() string { return "percent" }

// of returns how many of n pods the share is: rounded up, as budgets do, and one at least. Rounded
// up, a workload of any size leaves in at most four shares.
func (p Percent) of(n int) int {
	return max(1, (n*int(p)+99)/100)
}

// workload is what a turn of pods that no budget protects depends on.
type workload struct {
	// desired is how many pods there should be, and serving how many are available and not about to
	// leave.
	desired, serving int
	// writtenOff is how many pods were missing when patience with the workload last ended. They are
	// not waited for again.
	writtenOff int
	// since is when the patience begins: the newest eviction or, if there was none, when the first
	// pod began to wait.
	since time.Time
	// unanswered is whether an eviction of one of the pods is in flight: its answer may begin the
	// patience again.
	unanswered bool
}

// missing is how many of the desired pods do not serve.
func (w workload) missing() int {
	return max(0, w.desired-w.serving)
}

// turn decides whether a pod of the workload that serves may leave now. It returns the number of
// pods that are written off from now on and, if no pod may leave, when one may even if nothing
// changes until then.
func (w workload) turn(most Percent, patience time.Duration, now time.Time) (granted bool, writtenOff int, at time.Time) {
	missing := w.missing()
	writtenOff = min(w.writtenOff, missing)
	if missing-writtenOff < most.of(w.desired) {
		return true, writtenOff, time.Time{}
	}
	if w.unanswered {
		return false, writtenOff, time.Time{}
	}
	if end := w.since.Add(patience); now.Before(end) {
		return false, writtenOff, end
	}
	return true, missing, time.Time{}
}
