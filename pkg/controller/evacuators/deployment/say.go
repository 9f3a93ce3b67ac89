// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// sayEvery is the minimum interval between reports about the progress of a surge. It is longer for
// many pods: at least sayEach for each pod.
const (
	sayEvery = 5 * time.Second
	sayEach  = 50 * time.Millisecond
)

// say reports the progress of a surge, or of what it waits for, to the Evacuations. The first
// report of a turn sets the progress timestamp; later reports only if there was progress, which
// means a new maximum of the score. A flapping pod or a restarted rollout is no progress.
func (d *decision) say(s situation, leaving []*pod, score int, message func(*pod) string, expected *metav1.Time) {
	due := s.memory.saidAt.Add(max(sayEvery, min(time.Duration(len(leaving))*sayEach, s.timeout/4)))
	progress := d.memory.highest != nil && score > *d.memory.highest
	said, held := false, false
	for _, p := range leaving {
		if d.waitsToReport(s, p) {
			continue
		}
		text := message(p)
		if s.target.record.isUp() && !s.isRecorded(p) {
			text = fmt.Sprintf("Waits for the pods of Deployment %s that leave first: %s", s.deployment.Name, text)
		}
		isFirst := !protocol.TurnOf(&p.evacuation.Status).Reported
		if !isFirst && !progress && p.evacuation.Status.Message == wording.Cut(text, protocol.MaxMessage) {
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
	// Report again when a replacement becomes available, which is no event.
	for _, p := range s.replacements() {
		if at, ready := s.availableAt(p); ready && s.now.Before(at) {
			d.wakeAt(at)
		}
	}
}

// sayScaled reports to Evacuations that the surge for their pods has started. The report restarts
// the deadline of these Evacuations.
func (d *decision) sayScaled(s situation, r *record, pods []*pod) {
	for _, p := range pods {
		if d.waitsToReport(s, p) {
			continue
		}
		d.reports = append(d.reports, report{
			evacuation: p.evacuation, progress: true, expected: s.expectedFinish(), message: s.scaledMessage(r, p) + ".",
		})
	}
}

// waitsToReport reports whether the first report of a turn can wait, and schedules the sync that
// writes it: most surges end before that and need only one report. It waits for at most a quarter
// of the start deadline. If the turn starts in the future, that time comes from another clock, and
// the report does not wait.
func (d *decision) waitsToReport(s situation, p *pod) bool {
	turn := protocol.TurnOf(&p.evacuation.Status)
	if turn.Reported {
		return false
	}
	patience := turn.Patience(p.evacuation.Spec.ProgressDeadlineSeconds, s.startDeadline)
	at := turn.Since.Add(min(2*sayEvery, patience/4))
	if s.now.Before(turn.Since) || !s.now.Before(at) {
		return false
	}
	d.wakeAt(at)
	return true
}
