// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Policy configures how evictions are sent. Each field is an option of the server.
type Policy struct {
	// MaxConcurrent is the maximum number of evictions in flight, for all pods together.
	MaxConcurrent int
	// DeniedAfter is how long admission may refuse the eviction of a pod before the pod counts as
	// blocked. For a virtual machine, KubeVirt refuses the eviction and migrates the machine in
	// that time.
	DeniedAfter time.Duration
	// UnprotectedMaxUnavailable is the share of an owner's pods without a budget that may be
	// missing, but at least one pod. 100% means no limit.
	UnprotectedMaxUnavailable Percent
	// UnprotectedPatience is the time after an eviction at which the next share of an owner's pods
	// is evicted although other pods are still missing.
	UnprotectedPatience time.Duration
}

// DefaultMaxConcurrent is the default of MaxConcurrent.
const DefaultMaxConcurrent = 200

// DefaultPolicy returns the defaults of the options.
func DefaultPolicy() Policy {
	return Policy{
		MaxConcurrent: DefaultMaxConcurrent, DeniedAfter: 5 * time.Minute, UnprotectedMaxUnavailable: 25, UnprotectedPatience: 5 * time.Minute,
	}
}

// Percent is a share, such as that of the pods of a workload, from 1% to 100%. It implements
// pflag.Value.
type Percent int

// String returns the share as the value of a flag.
func (p *Percent) String() string { return strconv.Itoa(int(*p)) + "%" }

// Set parses the value of a flag.
func (p *Percent) Set(s string) error {
	n, err := strconv.Atoi(strings.TrimSuffix(s, "%"))
	if err != nil || !strings.HasSuffix(s, "%") || n < 1 || n > 100 {
		return fmt.Errorf("must be a percentage from 1%% to 100%%")
	}
	*p = Percent(n)
	return nil
}

// Type returns the name of the type in the help of a flag.
func (p *Percent) Type() string { return "percent" }

// of returns the share of n pods, rounded up as in budgets, and at least one. So with 25%, a
// workload of any size is evicted in at most four shares.
func (p Percent) of(n int) int {
	return max(1, (n*int(p)+99)/100)
}
