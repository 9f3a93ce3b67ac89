// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

// leaderlessAfter is how long, in terms of LeaseDuration, a replica has to see no renewal of the
// Lease until it reports that no replica leads. An orderly end of a leader and the next term fit
// into one LeaseDuration.
const leaderlessAfter = 2

// sightings is what this replica has seen of the Lease, by its own clock: the times in the Lease
// are those of other clocks. Unlike a lease it outlives a term.
type sightings struct {
	mu sync.Mutex
	// seen is when the Lease was last read or written; zero if this replica has never seen one.
	seen time.Time
	// read is when this replica last learned whether there is a Lease, and whose it is.
	read time.Time
	// renewed is when the holder or its renewal last differed from what was seen before; at first
	// it is when this replica began to look.
	renewed         time.Time
	holder, renewal string
}

// begin notes that the replica looks for a leader from now on.
func (s *sightings) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renewed.IsZero() {
		s.renewed = time.Now()
	}
}

// note takes in a Lease that was read or written.
func (s *sightings) note(lease *coordinationv1.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = time.Now()
	s.read = s.seen
	holder, renewal := "", ""
	if h := lease.Spec.HolderIdentity; h != nil {
		holder = *h
	}
	if lease.Spec.RenewTime != nil {
		renewal = lease.Spec.RenewTime.String()
	}
	if holder != "" && (holder != s.holder || renewal != s.renewal) {
		s.renewed = s.seen
	}
	s.holder, s.renewal = holder, renewal
}

// noteAbsent takes in that there is no Lease.
func (s *sightings) noteAbsent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = time.Now()
}

// sinceSeen returns for how long this replica has not seen the Lease; false if it never has, since
// it began to look.
func (s *sightings) sinceSeen() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen.IsZero() {
		return time.Since(s.renewed), false
	}
	return time.Since(s.seen), true
}

// sinceRenewed returns for how long this replica has seen no renewal of a holder; 0 if it does not
// know, since it has not read the Lease for the given time.
func (s *sightings) sinceRenewed(within time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renewed.IsZero() || s.read.IsZero() || time.Since(s.read) > within {
		return 0
	}
	return time.Since(s.renewed)
}

// NoLeader returns the warning for users that no replica leads, as far as this one knows; empty if
// one does or if this one does not know. Every replica can tell, since each reads the Lease. One
// that cannot read it says nothing: the others, and the leader, may be able to.
func (c *Controllers) NoLeader() string {
	if !c.Election.Enabled {
		return ""
	}
	since := c.sightings.sinceRenewed(checkTimeout + leaderlessAfter*c.Election.RetryPeriod)
	if since < leaderlessAfter*c.Election.LeaseDuration {
		return ""
	}
	return fmt.Sprintf("%s: none has renewed Lease %s/%s for %v; an event of the Lease with reason %s, or the log of the server, has the cause",
		protocol.NoLeaderWarning, c.Election.Namespace, c.Election.Name, since.Round(time.Second), EventControllersOff)
}
