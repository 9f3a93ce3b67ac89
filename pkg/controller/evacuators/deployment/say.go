// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// sayEvery is the minimum interval between two reports about the progress of a surge. sayFirst is
// how long a report waits for pods to leave. For many pods it waits longer: sayEach for each pod,
// and at most sayLatest.
const (
	sayEvery  = 5 * time.Second
	sayFirst  = 2 * sayEvery
	sayEach   = 100 * time.Millisecond
	sayLatest = time.Minute
)

// say reports the progress of a surge, or of what it waits for, to the Evacuations. The first
// report to an Evacuation sets the progress timestamp. Later reports set it only if there was
// progress, which means a new maximum of the score. A flapping pod or a restarted rollout is no
// progress.
func (d *decision) say(s situation, leaving []*pod, score int, message func(*pod) string, expected *metav1.Time) {
	first := s.reportAfter(s.tracked)
	progress := d.hasProgressed(score)
	due := d.memory.saidAt.Add(s.timeout / 2)
	if progress {
		due = heartbeat(s.timeout, leaving, due)
	}
	// The numbers change with each pod that leaves, and most pods leave before the next report.
	if stopped := latest(d.memory.saidAt, d.memory.delivered).Add(s.reportAfter(1)); stopped.Before(due) {
		due = stopped
	}
	due = latest(due, d.memory.saidAt.Add(sayEvery))
	said, held := false, false
	// Most pods get the same text.
	type kind struct {
		purpose, refusal, stays string
		recorded                bool
	}
	texts := map[kind]string{}
	for _, p := range leaving {
		if d.waitsToReport(s, p, first) {
			continue
		}
		of := kind{p.purpose, s.refusal(p), d.stays[p.UID], s.isRecorded(p)}
		text, known := texts[of]
		if !known {
			text = message(p) + of.refusal
			if s.target.record.isUp() && !of.recorded {
				text = fmt.Sprintf("Waits for the pods of Deployment %s that leave first: %s", s.deployment.Name, text)
			}
			text = wording.Cut(text, protocol.MaxMessage)
			texts[of] = text
		}
		isFirst := !protocol.TurnOf(&p.evacuation.Status).Reported
		if !isFirst && !progress && p.evacuation.Status.Message == text {
			continue
		}
		if !isFirst && s.now.Before(due) {
			held = true
			continue
		}
		said = true
		d.reports = append(d.reports, report{evacuation: p.evacuation, message: text, progress: progress || isFirst, expected: expected})
	}
	if held {
		d.wakeAt(due)
	} else if said {
		d.memory.saidAt = s.now
	}
	if d.memory.highest == nil || progress && said && !held {
		d.memory.highest = &score
	}
	// Report again when a replacement becomes available, since no event announces that.
	for _, p := range s.replacements() {
		if at, ready := s.availableAt(p); ready && s.now.Before(at) {
			d.wakeAt(at)
		}
	}
}

// hasProgressed reports whether a score is higher than the highest reported one.
func (d *decision) hasProgressed(score int) bool {
	return d.memory.highest != nil && score > *d.memory.highest
}

// sayScaled reports to Evacuations that the surge for their pods has started. These reports restart
// the deadlines of this evacuator.
func (d *decision) sayScaled(s situation, r *record, pods []*pod) {
	first := s.reportAfter(s.tracked)
	// It iterates over all pods.
	expected := sync.OnceValue(s.expectedFinish)
	for _, p := range pods {
		if d.waitsToReport(s, p, first) {
			continue
		}
		d.reports = append(d.reports, report{
			evacuation: p.evacuation, progress: true, expected: expected(), message: s.scaledMessage(r, p.purpose) + ".",
		})
	}
}

// heartbeat returns the time at which progress must be reported at the latest. It is due if there
// is no report of progress yet.
func heartbeat(timeout time.Duration, leaving []*pod, due time.Time) time.Time {
	for _, p := range leaving {
		if at := nextHeartbeat(timeout, p); !at.IsZero() && at.Before(due) {
			due = at
		}
	}
	return due
}

// nextHeartbeat returns the time at which the next report of progress to an Evacuation is due, so
// that it comes well before the surge timeout and the deadline of the Evacuation. It is zero before
// the first report.
func nextHeartbeat(timeout time.Duration, p *pod) time.Time {
	turn := protocol.TurnOf(&p.evacuation.Status)
	if !turn.Reported {
		return time.Time{}
	}
	return turn.Since.Add(min(timeout, turn.Patience(p.evacuation.Spec.ProgressDeadlineSeconds, 0)) / 2)
}

// reportAfter returns how long reports wait for pods to leave if so many Deployments have as many
// pods to leave as this one: all of them together leave more slowly. It also counts the pods that
// have left during the surge: otherwise it would become shorter while the other pods wait.
func (s *situation) reportAfter(deployments int) time.Duration {
	pods := len(s.leaving())
	if s.target.record.isUp() {
		pods += s.gone()
	}
	return max(sayFirst, min(time.Duration(pods*max(1, deployments))*sayEach, sayLatest, s.timeout/4))
}

// waitsToReport reports whether the first report to an Evacuation can wait, and schedules the sync
// that writes it. Most pods leave before that sync and need only one report. The report waits for
// at most a quarter of the start deadline. If this evacuator became active in the future, that time
// comes from another clock, and the report does not wait.
func (d *decision) waitsToReport(s situation, p *pod, wait time.Duration) bool {
	turn := protocol.TurnOf(&p.evacuation.Status)
	if turn.Reported {
		return false
	}
	patience := turn.Patience(p.evacuation.Spec.ProgressDeadlineSeconds, s.startDeadline)
	at := turn.Since.Add(min(wait, patience/4))
	if s.now.Before(turn.Since) || !s.now.Before(at) {
		return false
	}
	d.wakeAt(at)
	return true
}
