// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Policy is how evictions are sent. All of it has options of the server.
type Policy struct {
	// MaxConcurrent bounds the evictions in flight, for all pods together.
	MaxConcurrent int
	// DeniedAfter is how long admission has to refuse a pod before the pod is called blocked.
	// KubeVirt refuses to evict virtual machines and migrates them in that time.
	DeniedAfter time.Duration
	// UnprotectedMaxUnavailable is how many pods of an owner without a budget may be missing, at
	// least one; 100% bounds nothing.
	UnprotectedMaxUnavailable Percent
	// UnprotectedPatience is how long after an eviction the next share of an owner's pods goes
	// although others are still missing.
	UnprotectedPatience time.Duration
}

// DefaultMaxConcurrent is how many evictions may be in flight, unless an option says something
// else.
const DefaultMaxConcurrent = 200

// DefaultPolicy returns the defaults of the options.
func DefaultPolicy() Policy {
	return Policy{
		MaxConcurrent: DefaultMaxConcurrent, DeniedAfter: 5 * time.Minute, UnprotectedMaxUnavailable: 25, UnprotectedPatience: 5 * time.Minute,
	}
}

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
