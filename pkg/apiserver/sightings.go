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

// leaderlessAfter is the number of LeaseDurations without a renewal after which a replica reports
// that no replica leads. An orderly end of a term and the start of the next one take less than one
// LeaseDuration.
const leaderlessAfter = 2

// sightings has the observations of the Lease by this replica, with the times of its own clock,
// because the times in the Lease come from other clocks. Unlike a lease, it outlives a term of
// leadership.
type sightings struct {
	mu sync.Mutex
	// seen is the time at which the Lease was last read or written; zero if this replica has never
	// read one.
	seen time.Time
	// read is the time at which this replica last found out whether the Lease exists, and which
	// replica holds it.
	read time.Time
	// renewed is the time at which the holder or its renewal time last changed. Before the first
	// change, it is the time at which this replica began to look for a leader.
	renewed         time.Time
	holder, renewal string
	// led is the time at which this replica first observed the present term of leadership, which
	// acquired identifies together with the holder. Before the first observation, it is the time at
	// which this replica began to look for a leader.
	led      time.Time
	acquired string
	// began is the time at which this replica began to look for a leader.
	began time.Time
}

// begin records that the replica begins to look for a leader.
func (s *sightings) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renewed.IsZero() {
		s.began = time.Now()
		s.renewed, s.led = s.began, s.began
	}
}

// note records a Lease that was read or written.
func (s *sightings) note(lease *coordinationv1.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = time.Now()
	s.read = s.seen
	holder, renewal, acquired := "", "", ""
	if h := lease.Spec.HolderIdentity; h != nil {
		holder = *h
	}
	if lease.Spec.RenewTime != nil {
		renewal = lease.Spec.RenewTime.String()
	}
	if lease.Spec.AcquireTime != nil {
		acquired = lease.Spec.AcquireTime.String()
	}
	if holder != "" && (holder != s.holder || renewal != s.renewal) {
		s.renewed = s.seen
	}
	if holder != "" && (holder != s.holder || acquired != s.acquired) {
		s.led = s.seen
	}
	s.holder, s.renewal, s.acquired = holder, renewal, acquired
}

// noteAbsent records that the Lease does not exist.
func (s *sightings) noteAbsent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = time.Now()
}

// sinceSeen returns the time since this replica last read the Lease. If it never read one, it
// returns the time since it began to look for a leader, and false.
func (s *sightings) sinceSeen() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen.IsZero() {
		return time.Since(s.renewed), false
	}
	return time.Since(s.seen), true
}

// sinceRenewed returns the time since this replica last noticed a renewal. It returns 0 if this is
// unknown, because the replica has not read the Lease within the given time.
func (s *sightings) sinceRenewed(within time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renewed.IsZero() || s.read.IsZero() || time.Since(s.read) > within {
		return 0
	}
	return time.Since(s.renewed)
}

// sinceRead returns the time since this replica last found out whether the Lease exists, or since
// it began to look for a leader; 0 if it has not begun.
func (s *sightings) sinceRead() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		return 0
	}
	if s.read.After(s.began) {
		return time.Since(s.read)
	}
	return time.Since(s.began)
}

// leads returns the time at which this replica first observed the present term of leadership, and
// the time at which it last noticed a renewal.
func (s *sightings) leads() (since, renewed time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.led, s.renewed
}

// LeaderSince returns the time since which this replica knows that the present leader leads. It
// returns the present time if it does not know: it has not begun to look for a leader, or the
// holder of the Lease has not renewed it for RenewDeadline, so the term of the next leader is yet
// to come.
func (c *Controllers) LeaderSince() time.Time {
	since, renewed := c.sightings.leads()
	if since.IsZero() || c.Election.Enabled && time.Since(renewed) > c.Election.RenewDeadline {
		return time.Now()
	}
	return since
}

// NoKnownLeader returns the reason of NoLeader or, if this replica has not been able to read the
// Lease for as long, that. Use it for requests that must not wait for a leader that may not exist.
func (c *Controllers) NoKnownLeader() string {
	why, since := c.NoLeader(), c.sightings.sinceRead()
	if why != "" || !c.Election.Enabled || since < leaderlessAfter*c.Election.LeaseDuration {
		return why
	}
	return fmt.Sprintf("this replica has not been able to read Lease %s/%s for %v, so it does not know whether a replica leads; see its log",
		c.Election.Namespace, c.Election.Name, since.Round(time.Second))
}

// NoLeader returns the warning for users that no replica leads; empty if one leads or if this is
// unknown. Every replica returns the warning, since each reads the Lease. A replica that cannot
// read the Lease returns no warning, since other replicas may be able to read it.
func (c *Controllers) NoLeader() string {
	if !c.Election.Enabled {
		return ""
	}
	since := c.sightings.sinceRenewed(checkTimeout + leaderlessAfter*c.Election.RetryPeriod)
	if since < leaderlessAfter*c.Election.LeaseDuration {
		return ""
	}
	// Clients print equal warnings once.
	return fmt.Sprintf("%s: none has renewed Lease %s/%s since %s; an event of the Lease with reason %s, or the log of the server, explains why",
		protocol.NoLeaderWarning, c.Election.Namespace, c.Election.Name, time.Now().Add(-since).UTC().Format(time.RFC3339), EventControllersOff)
}
