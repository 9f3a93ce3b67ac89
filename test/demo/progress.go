/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package main

import (
	"fmt"
	"strings"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
	"haulout.dev/haulout/pkg/cmd/screen"
	"haulout.dev/haulout/test/internal/audit"
)

const barColumns = 24

// progress is what is known of a drain at one moment: what the API says (the maintenance) and what
// was seen (the books).
type progress struct {
	elapsed     time.Duration
	maintenance *v1alpha1.NodeMaintenance
	seen        audit.Snapshot
	nodes       []string
}

// nodeRow is the state of one node.
type nodeRow struct {
	name                            string
	pods, left, evacuating, blocked int
	message                         string
}

// rows returns the state of each node: how many pods are left from the books, the rest as the
// maintenance tells it. Its counters are written once a second at most, so they may be behind.
func (p progress) rows() []nodeRow {
	var statuses []v1alpha1.NodeMaintenanceNodeStatus
	if p.maintenance != nil {
		statuses = p.maintenance.Status.NodeStatuses
	}
	var rows []nodeRow
	for _, name := range p.nodes {
		row := nodeRow{name: name, pods: p.seen.Nodes[name].Pods, left: p.seen.Nodes[name].Left}
		for i := range statuses {
			if s := &statuses[i]; s.NodeRef.Name == name {
				row.evacuating, row.blocked = min(int(s.PodsEvacuating), row.left), min(int(s.PodsBlocked), row.left)
				row.message = s.DrainMessage
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// lines shows all of it.
func (p progress) lines() []screen.Line {
	lines := []screen.Line{
		{
			Text: fmt.Sprintf("  %s   %d of %d pods have left",
				seconds(p.elapsed), p.seen.Gone(), p.seen.Gone()+p.seen.Left()),
			Style: screen.Heading,
		},
		{},
	}
	lines = append(lines, p.waveLines()...)
	lines = append(
		lines, screen.Line{},
		screen.Line{
			Text:  fmt.Sprintf("  %-10s%-*s%11s%9s  %s", "NODE", barColumns+14, "", "EVACUATING", "BLOCKED", "MESSAGE"),
			Style: screen.Faint,
		},
	)
	for _, row := range p.rows() {
		line := screen.Line{Text: strings.TrimRight(fmt.Sprintf("  %-10s%s %3d of %-4d%11d%9d  %s", row.name,
			screen.Bar(row.pods-row.left, row.pods, barColumns), row.left, row.pods, row.evacuating, row.blocked,
			row.message),
			" ")}
		switch {
		case row.left == 0:
			line.Style = screen.Good
		case row.blocked > 0:
			line.Style = screen.Warning
		}
		lines = append(lines, line)
	}
	lines = append(
		lines, screen.Line{},
		screen.Line{
			Text:  fmt.Sprintf("  %-24s%10s%10s%10s", "BUDGET", "HEALTHY", "NEEDED", "MAY GO"),
			Style: screen.Faint,
		},
	)
	for _, b := range p.seen.Budgets {
		line := screen.Line{Text: fmt.Sprintf("  %-24s%10d%10d%10d", b.Name, b.Healthy, b.Floor, b.Healthy-b.Floor)}
		if b.Healthy < b.Floor {
			line.Style = screen.Bad
		}
		lines = append(lines, line)
	}
	return lines
}

func (p progress) waveLines() []screen.Line {
	current := p.currentWave()
	var lines []screen.Line
	for i, w := range p.seen.Waves {
		line := screen.Line{
			Text: fmt.Sprintf("  wave %d  %-26s%s %3d of %d gone",
				i+1, show.Entry(w.Entry), screen.Bar(w.Gone, w.Pods, barColumns), w.Gone, w.Pods),
		}
		switch {
		case w.Left() == 0:
			line.Style = screen.Good
		case i > current:
			line.Style = screen.Faint
		}
		lines = append(lines, line)
	}
	return lines
}

// currentWave is the index of the first wave that has not left.
func (p progress) currentWave() int {
	for i, w := range p.seen.Waves {
		if w.Left() > 0 {
			return i
		}
	}
	return len(p.seen.Waves)
}

// summary is one line for an output that cannot be redrawn.
func (p progress) summary() string {
	var left []string
	blocked := 0
	for _, row := range p.rows() {
		left = append(left, fmt.Sprintf("%s %d", row.name, row.left))
		blocked += row.blocked
	}
	wave := "all waves are over"
	if current := p.currentWave(); current < len(p.seen.Waves) {
		wave = fmt.Sprintf("wave %d of %d (%s)", current+1, len(p.seen.Waves), show.Entry(p.seen.Waves[current].Entry))
	}
	return fmt.Sprintf("%s, %d of %d pods have left; left: %s; blocked: %d",
		wave, p.seen.Gone(), p.seen.Gone()+p.seen.Left(), strings.Join(left, ", "), blocked)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%3d s", int(d.Seconds())) }

// reporter shows progress: redrawn in place on a terminal, else as lines, the next no sooner than
// plainInterval after the last.
type reporter struct {
	screen *screen.Screen
	now    func() time.Time

	last     time.Time
	lastText string
}

const (
	drawInterval  = 100 * time.Millisecond
	plainInterval = 2 * time.Second
)

// show shows the progress if it is time to.
func (r *reporter) show(p progress) {
	if r.screen.Live() {
		if r.now().Sub(r.last) >= drawInterval {
			r.last = r.now()
			r.screen.Draw(p.lines())
		}
		return
	}
	if text := p.summary(); text != r.lastText && r.now().Sub(r.last) >= plainInterval {
		r.last, r.lastText = r.now(), text
		r.screen.Printf("%s   %s", seconds(p.elapsed), text)
	}
}

// end shows the last progress, which stays.
func (r *reporter) end(p progress) {
	if r.screen.Live() {
		r.screen.Draw(p.lines())
		r.screen.Keep()
		return
	}
	r.screen.Printf("%s   %s", seconds(p.elapsed), p.summary())
}
