// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

// DefaultMaxConcurrent is how many evictions may be in flight, unless an option says something
// else.
const DefaultMaxConcurrent = 200

// concurrency is how many calls may be in flight: half as many after an answer that means trouble,
// one more after each good one.
type concurrency struct {
	limit, most int
}

func (c *concurrency) good() {
	c.limit = min(c.limit+1, c.most)
}

// bad takes in a bad answer to a call that was sent when sentUnder calls were allowed. Half of that
// is allowed now: the answers to calls that were sent together halve it once.
func (c *concurrency) bad(sentUnder int) {
	c.limit = max(1, min(c.limit, sentUnder/2))
}

// forBudgets is how many of the calls may be those of pods with budgets. A call that meets a
// conflict on a budget sleeps in the API server for up to ten seconds, and pods without budgets
// must not wait for those.
func (c *concurrency) forBudgets() int {
	return max(1, c.limit/2)
}
