// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"slices"
	"strings"

	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

const (
	// barColumns and smallBar are the widths of progress bars.
	barColumns, smallBar = 24, 12
	// narrow is the width below which there are no bars, and causes are indented less.
	narrow = 50
	// leastText is the width to which the last column can be cut, and leastName that of the first.
	leastText, leastName = 16, 8
)

// grid is a table: cells aligned in columns, two spaces apart.
type grid struct {
	indent string
	// rows has the heading in its first row, unless plain is set.
	rows  [][]string
	plain bool
	// styles has the style of each row.
	styles []screen.Style
	// drop has the columns that a narrow terminal does not show, the first one to drop first. With
	// cut, the last column of the grid is cut before it is dropped.
	drop []int
	cut  bool
}

// table aligns cells without a limit of their width. The first row is the heading.
func table(indent string, rows [][]string, styles []screen.Style) []screen.Line {
	g := grid{indent: indent, rows: rows, styles: styles}
	return g.lines(Options{})
}

// lines returns the rows of the grid, within the width of the terminal.
func (g *grid) lines(o Options) []screen.Line {
	return g.linesOf(g.widths(o.escaped(g.rows), o.Columns), o)
}

// escaped escapes cells before the alignment, since escaped text is longer.
func (o Options) escaped(rows [][]string) [][]string {
	out := make([][]string, len(rows))
	for i, row := range rows {
		out[i] = make([]string, len(row))
		for j, cell := range row {
			out[i][j] = o.escape(cell)
		}
	}
	return out
}

// linesOf returns the rows of the grid in columns of the given widths.
func (g *grid) linesOf(widths []int, o Options) []screen.Line {
	lines := g.align(o.escaped(g.rows), widths)
	for i := range lines {
		lines[i].Text = screen.Fit(lines[i].Text, o.Columns)
	}
	return lines
}

// widths returns the width of each column; 0 for a column that is not shown.
func (g *grid) widths(rows [][]string, columns int) []int {
	if len(rows) == 0 {
		return nil
	}
	full := make([]int, len(rows[0]))
	for _, row := range rows {
		for j, cell := range row {
			full[j] = max(full[j], screen.Width(cell))
		}
	}
	last := len(full) - 1
	if columns <= 0 {
		return full
	}
	for dropped := 0; ; dropped++ {
		widths := slices.Clone(full)
		for _, j := range g.drop[:dropped] {
			widths[j] = 0
		}
		over := g.total(widths) - columns
		if over <= 0 {
			return widths
		}
		// The columns before the last one are dropped before the last one is cut.
		isNext := dropped == len(g.drop) || g.drop[dropped] == last
		if g.cut && isNext && widths[last]-over >= leastText {
			widths[last] -= over
			return widths
		}
		if dropped == len(g.drop) {
			if g.cut {
				cut := min(over, max(widths[last]-leastText, 0))
				widths[last], over = widths[last]-cut, over-cut
			}
			widths[0] = max(widths[0]-over, min(widths[0], leastName))
			return widths
		}
	}
}

// joinNamespace joins the columns NAMESPACE and WORKLOAD, which are the first ones: a name without
// its namespace would be of no use.
func (g *grid) joinNamespace() {
	for i, row := range g.rows {
		if i > 0 {
			kind, name, _ := strings.Cut(row[1], " ")
			row[1] = kind + " " + row[0] + "/" + name
		}
		g.rows[i] = row[1:]
	}
	for i := range g.drop {
		g.drop[i]--
	}
}

// total returns the width of a row.
func (g *grid) total(widths []int) int {
	total := len(g.indent) - 2
	for _, w := range widths {
		if w > 0 {
			total += w + 2
		}
	}
	return total
}

func (g *grid) align(rows [][]string, widths []int) []screen.Line {
	lines := make([]screen.Line, 0, len(rows))
	for i, row := range rows {
		var b strings.Builder
		b.WriteString(g.indent)
		first := true
		for j, cell := range row {
			if widths[j] == 0 {
				continue
			}
			if !first {
				b.WriteString("  ")
			}
			first = false
			cell = screen.Fit(cell, widths[j])
			b.WriteString(cell + strings.Repeat(" ", widths[j]-screen.Width(cell)))
		}
		style := screen.Plain
		switch {
		case i == 0 && !g.plain:
			style = screen.Faint
		case i < len(g.styles):
			style = g.styles[i]
		}
		lines = append(lines, line(style, "%s", b.String()))
	}
	return lines
}

// withBars returns the lines of a grid with the first width of progress bars at which no column is
// dropped or cut, or with the last one if there is none.
func withBars(o Options, build func(bar int) grid, bars ...int) []screen.Line {
	for _, bar := range bars[:len(bars)-1] {
		if g := build(bar); o.Columns <= 0 || g.fits(o) {
			return g.lines(o)
		}
	}
	g := build(bars[len(bars)-1])
	return g.lines(o)
}

// bars are the widths of progress bars in the order in which they are tried. A very narrow terminal
// has none.
func (o Options) bars() []int {
	if o.Columns > 0 && o.Columns < narrow {
		return []int{0}
	}
	return []int{barColumns, smallBar}
}

// fits reports whether the terminal has room for all columns.
func (g *grid) fits(o Options) bool {
	for _, l := range g.lines(Options{ASCII: o.ASCII}) {
		if screen.Width(l.Text) > o.Columns {
			return false
		}
	}
	return true
}

// progressCell is a bar with the numbers that it stands for.
func progressCell(bar int, text string, done, whole int) string {
	if bar == 0 {
		return text
	}
	return screen.Bar(done, whole, bar) + " " + text
}
