// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// frame is what a terminal shows for some time.
type frame struct {
	cells [][]cell
	lasts time.Duration
}

const (
	// shortest joins events that follow each other at once, such as the parts of one redraw.
	shortest = 200 * time.Millisecond
	// longest shortens a time in which nothing changes, and pause is how long the last frame stays
	// before the picture begins again.
	longest = 2 * time.Second
	pause   = 4 * time.Second
)

// frames returns what the terminal shows over time. Frames that look the same are one.
func frames(r *recording) ([]frame, error) {
	t := newTerminal(r.columns, r.rows)
	var out []frame
	for i, e := range r.events {
		if err := t.write(e.data); err != nil {
			return nil, fmt.Errorf("at %v: %w", e.at, err)
		}
		lasts := pause
		if i+1 < len(r.events) {
			if lasts = r.events[i+1].at - e.at; lasts < shortest && i+2 < len(r.events) {
				continue
			}
			lasts = min(lasts, longest)
		}
		cells := t.snapshot()
		if last := len(out) - 1; last >= 0 && slices.EqualFunc(out[last].cells, cells, slices.Equal[[]cell]) {
			out[last].lasts = max(out[last].lasts, lasts)
			continue
		}
		out = append(out, frame{cells: cells, lasts: lasts})
	}
	// A view of the whole terminal ends with an empty screen, which is no good last frame.
	for len(out) > 1 && isEmpty(out[len(out)-1].cells) {
		out = out[:len(out)-1]
		out[len(out)-1].lasts = pause
	}
	if len(out) == 0 {
		return nil, errors.New("the recording has no output")
	}
	return out, nil
}

func isEmpty(cells [][]cell) bool {
	return !slices.ContainsFunc(cells, func(line []cell) bool { return len(runs(line)) > 0 })
}

// run is a part of a line in one style.
type run struct {
	column int
	text   string
	style  style
}

// runs returns the parts of a line, without blanks at its end.
func runs(line []cell) []run {
	var out []run
	blanks := ""
	for column, c := range line {
		if c.char == 0 {
			blanks += " "
			continue
		}
		if last := len(out) - 1; last >= 0 && out[last].style == c.style {
			out[last].text += blanks + string(c.char)
		} else {
			out = append(out, run{column: column, text: string(c.char), style: c.style})
		}
		blanks = ""
	}
	return out
}

// The size of a character, of the margin, and the colors.
const (
	charWidth, lineHeight, margin, fontSize = 8, 17, 12, 13

	background, foreground = "#10151c", "#d6dde6"
)

var colors = map[int]string{
	31: "#ff7b72", 32: "#56d364", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea", 37: foreground,
}

// writeSVG writes an animated picture. All frames are beside each other, and the picture moves from
// one to the next. It has no script, so that GitHub shows it. Readers who prefer no motion see one
// frame.
func writeSVG(w io.Writer, title string, columns, rows int, all []frame) error {
	width, height := columns*charWidth+2*margin, rows*lineHeight+2*margin
	var total time.Duration
	for _, f := range all {
		total += f.lasts
	}
	var keys, defs, uses strings.Builder
	known := map[string]int{}
	var at time.Duration
	for i, f := range all {
		fmt.Fprintf(&keys, "%.3f%%{transform:translateX(%dpx)}", 100*at.Seconds()/total.Seconds(), -i*width)
		at += f.lasts
		for y, line := range f.cells {
			text := drawLine(line)
			if text == "" {
				continue
			}
			id, isKnown := known[text]
			if !isKnown {
				id = len(known)
				known[text] = id
				fmt.Fprintf(&defs, "<text id=\"l%d\" xml:space=\"preserve\">%s</text>\n", id, text)
			}
			fmt.Fprintf(&uses, "<use href=\"#l%d\" x=\"%d\" y=\"%d\"/>\n", id, i*width+margin, margin+y*lineHeight+fontSize)
		}
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img">
<title>%[3]s</title>
<style>
text{font:%[4]dpx ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:%[5]s;white-space:pre}
@keyframes play{%[6]s}
#frames{animation:play %.3[7]fs steps(1,end) infinite}
@media(prefers-reduced-motion:reduce){#frames{animation:none;transform:translateX(%[8]dpx)}}
</style>
<defs>
%[9]s</defs>
<rect width="%[1]d" height="%[2]d" rx="8" fill="%[10]s"/>
<g id="frames">
%[11]s</g>
</svg>
`, width, height, escape(title), fontSize, foreground, keys.String(), total.Seconds(), -len(all)/2*width, defs.String(), background, uses.String())
	return err
}

// drawLine returns the parts of a line of text, each at its column.
func drawLine(line []cell) string {
	var out strings.Builder
	for _, r := range runs(line) {
		length := len([]rune(r.text)) * charWidth
		fmt.Fprintf(&out, `<tspan x="%d" textLength="%d" lengthAdjust="spacingAndGlyphs"`, r.column*charWidth, length)
		if r.style.bold {
			out.WriteString(` font-weight="bold"`)
		}
		if r.style.faint {
			out.WriteString(` fill-opacity="0.65"`)
		}
		if r.style.color != 0 {
			fmt.Fprintf(&out, ` fill="%s"`, colors[r.style.color])
		}
		fmt.Fprintf(&out, ">%s</tspan>", escape(r.text))
	}
	return out.String()
}

func escape(text string) string {
	var out strings.Builder
	_ = xml.EscapeText(&out, []byte(text)) // A strings.Builder returns no error.
	return out.String()
}
