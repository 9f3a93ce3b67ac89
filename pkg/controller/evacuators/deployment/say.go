// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// sayEvery is the minimum interval of reports to the same Evacuation, sayEach limits the reports
// per second, and sayInLineEvery is the interval for Evacuations that wait for another surge.
// sayFirstAfter is the delay of the first report: most surges are over by then, and one report is
// enough for them.
const (
	sayEvery       = 5 * time.Second
	sayEach        = 50 * time.Millisecond
	sayInLineEvery = 15 * time.Second
	sayFirstAfter  = 10 * time.Second
)

// say reports the progress of the surge to its Evacuations, with a rate limit. Evacuations that
// wait for another surge get reports less often, because there may be any number of them.
func (d *decision) say(s situation, leaving []*pod, now mark, message func(*pod) string, expected *metav1.Time) {
	isUp := s.target.record.isUp()
	inLine := slices.DeleteFunc(slices.Clone(leaving), func(p *pod) bool { return !isUp || s.isRecorded(p) })
	first := slices.DeleteFunc(slices.Clone(leaving), func(p *pod) bool { return isUp && !s.isRecorded(p) })
	d.tell(s, first, &d.memory.first, now, message, expected, max(sayEvery, time.Duration(len(first))*sayEach))
	if len(inLine) > 0 {
		waits := func(p *pod) string {
			return fmt.Sprintf("Waits for the pods of Deployment %s that leave before: %s", s.deployment.Name, message(p))
		}
		d.tell(s, inLine, &d.memory.inLine, now, waits, expected, sayInLineEvery)
	}
	// Report a lasting state after a while, also without an event.
	for _, p := range s.replacements() {
		if at, ready := s.availableAt(p); ready && s.now.Before(at) {
			d.wakeAt(at)
		}
	}
}

// tell reports the same to some Evacuations, and records the reports. The first report of a turn is
// a heartbeat even without progress; later ones only with progress.
func (d *decision) tell(
	s situation, leaving []*pod, heard *heard, now mark, message func(*pod) string,
	expected *metav1.Time, every time.Duration,
) {
	progress := s.memory.known && now.isProgress(heard.mark)
	held := s.now.Before(heard.at.Add(every))
	changed := false
	for _, p := range leaving {
		reported := protocol.TurnOf(&p.evacuation.Status).Reported
		if d.waitsToReport(s, p) {
			continue
		}
		text := message(p)
		if reported && !progress && p.evacuation.Status.Message == wording.Cut(text, protocol.MaxMessage) {
			continue
		}
		if reported && held {
			d.wakeAt(heard.at.Add(every))
			continue
		}
		changed = true
		d.reports = append(d.reports, report{
			evacuation: p.evacuation, message: text, progress: progress || !reported, expected: expected,
		})
	}
	if changed || !s.memory.known || now.waitsForRollout != heard.mark.waitsForRollout {
		heard.mark = now.orHigher(heard.mark)
	}
	if changed {
		heard.at = s.now
	}
}

// sayScaled reports to Evacuations that the surge for their pods has started. The report restarts
// the deadline of the Evacuations that have waited for it.
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
// writes it: after at most a quarter of the start deadline. A turn that begins in the future has a
// timestamp from another clock, which is ignored.
func (d *decision) waitsToReport(s situation, p *pod) bool {
	turn := protocol.TurnOf(&p.evacuation.Status)
	if turn.Reported {
		return false
	}
	patience := turn.Patience(p.evacuation.Spec.ProgressDeadlineSeconds, s.startDeadline)
	at := turn.Since.Add(min(sayFirstAfter, patience/4))
	if s.now.Before(turn.Since) || !s.now.Before(at) {
		return false
	}
	d.wakeAt(at)
	return true
}
