// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"slices"

	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// layout has the parts of Status, of which a terminal may have room for some.
type layout struct {
	f *Facts
	o Options
	// head is always shown.
	head []screen.Line
	// waves has one line for each wave, and over is the number of waves that are over before the
	// first one with pods.
	waves []screen.Line
	over  int
	// pace has the number of drained nodes and the pace, which are always shown.
	pace []screen.Line
	// nodes has the heading and the lines of the first nodes, of allNodes.
	nodes    []screen.Line
	allNodes int
	causes   causeList
	// tight is set if there is no room for empty lines.
	tight bool
}

// room is how much of each part is shown. detail is that of the first cause, and rest that of the
// other causes.
type room struct{ waves, nodes, causes, detail, rest int }

// limits of a Status that is not limited by the rows of a terminal. A message never has as many
// lines as allDetail.
const (
	nodesShown  = 40
	causesShown = 5
	allDetail   = 1000
)

// lines returns the lines for the given room.
func (l *layout) lines(r room) []screen.Line {
	lines := slices.Clone(l.head)
	part := func(more []screen.Line) {
		if len(more) > 0 && !l.tight {
			lines = append(lines, screen.Line{})
		}
		lines = append(lines, more...)
	}
	lines = append(append(lines, l.waveLines(r.waves)...), l.pace...)
	shown := max(min(r.nodes, len(l.nodes)-1), 0)
	var nodes []screen.Line
	if shown > 0 {
		nodes = slices.Clone(l.nodes[:shown+1])
	}
	part(append(nodes, l.o.more(l.allNodes-shown, "node", "  ")...))
	part(l.causes.lines(r.causes, r.detail, r.rest, l.f, l.o))
	return lines
}

// waveLines returns count waves. It omits waves that are over first, then the last ones.
func (l *layout) waveLines(count int) []screen.Line {
	rest := len(l.waves) - count
	if rest <= 0 {
		return l.waves
	}
	first := min(l.over, rest)
	var lines []screen.Line
	// The numbers of the waves have gaps: entries of the plan without pods are not shown.
	switch first {
	case 0:
	case 1:
		lines = l.o.Fit(line(screen.Faint, "  1 earlier wave is done"))
	default:
		lines = l.o.Fit(line(screen.Faint, "  %d earlier waves are done", first))
	}
	lines = append(lines, l.waves[first:first+count]...)
	if later := rest - first; later > 0 {
		lines = append(lines, l.o.Fit(line(screen.Faint, "  %s %s", l.o.ellipsis(), wording.Count(later, "more wave")))...)
	}
	return lines
}

// fit returns as much as the terminal has room for: one item of each part, then the whole first
// cause, then more of each part in turn.
func (l *layout) fit() []screen.Line {
	all := room{len(l.waves), max(len(l.nodes)-1, 0), len(l.causes.blocks), allDetail, allDetail}
	if l.o.Rows <= 0 {
		if !l.o.Wide && !l.o.Scrolls {
			all.causes = min(all.causes, causesShown)
		}
		return l.lines(all)
	}
	if lines := l.lines(all); len(lines) <= l.o.Rows {
		return lines
	}
	r := room{min(all.waves, 1), min(all.nodes, 1), min(all.causes, 1), titleOnly, titleOnly}
	if len(l.lines(r)) > l.o.Rows {
		r.nodes, l.tight = 0, true
	}
	all.detail, all.rest = l.o.Rows, l.o.Rows
	// One complete cause helps more than the titles of several.
	detail := func(r *room) *int { return &r.detail }
	r = l.grow(r, all, detail)
	if len(l.causes.blocks) > 0 && r.detail < l.causes.blocks[0].complete() {
		l.tight = true
		r = l.grow(r, all, detail)
	}
	r = l.grow(
		r, all, func(r *room) *int { return &r.causes }, func(r *room) *int { return &r.nodes },
		func(r *room) *int { return &r.waves }, func(r *room) *int { return &r.rest },
	)
	return l.o.Truncate(l.lines(r))
}

// grow gives each of the parts one more in turn, as long as there is room.
func (l *layout) grow(r, all room, parts ...func(*room) *int) room {
	for grown := true; grown; {
		grown = false
		for _, part := range parts {
			next := r
			if *part(&next)++; *part(&next) > *part(&all) {
				continue
			}
			if len(l.lines(next)) <= l.o.Rows {
				r, grown = next, true
			}
		}
	}
	return r
}

// Truncate returns as many lines as the terminal has rows. The last one has the number of omitted
// lines.
func (o Options) Truncate(lines []screen.Line) []screen.Line {
	if o.Rows <= 0 || len(lines) <= o.Rows {
		return lines
	}
	shown := max(o.Rows-1, 0)
	rest := line(screen.Faint, "%s %s", o.ellipsis(), wording.Count(len(lines)-shown, "more line"))
	rest.Text = screen.Fit(rest.Text, o.Columns)
	return append(slices.Clone(lines[:shown]), rest)
}
