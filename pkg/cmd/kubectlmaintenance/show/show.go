// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package show formats facts about maintenances as lines of text. It has no client and no clock:
// the caller passes values.
package show

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// Width is the width at which text is wrapped without a terminal.
const Width = 100

// Options are the user's choices about the lines, and the properties of the terminal.
type Options struct {
	// Wide shows all nodes and all pods.
	Wide bool
	// Columns is the maximum width of a line. 0 means that there is no terminal: then text is
	// wrapped at Width, and tables are as wide as their cells.
	Columns int
	// Rows is the maximum number of lines of Status; 0 means no limit.
	Rows int
	// ASCII is set if the terminal shows only ASCII characters.
	ASCII bool
	// Scrolls is set if the user can scroll the lines, and see the blockers by pressing a key.
	Scrolls bool
}

func (o Options) columns() int {
	if o.Columns <= 0 {
		return Width
	}
	return o.Columns
}

// escape escapes a text as the screen does, to measure it.
func (o Options) escape(text string) string {
	if o.ASCII {
		return screen.EscapeASCII(text)
	}
	return screen.Escape(text)
}

// ellipsis begins the last line of a truncated list.
func (o Options) ellipsis() string {
	if o.Columns <= 0 || o.ASCII {
		return "..."
	}
	return "…"
}

// more shows the number of omitted items of a list, if any.
func (o Options) more(count int, noun, indent string) []screen.Line {
	if count <= 0 {
		return nil
	}
	text := indent + o.ellipsis() + " " + wording.Count(count, "more "+noun)
	if !o.Scrolls {
		text += " (-o wide lists all)"
	}
	return o.Fit(line(screen.Faint, "%s", text))
}

// Fit breaks lines that are wider than the terminal. The rest of a line is indented.
func (o Options) Fit(lines ...screen.Line) []screen.Line {
	if o.Columns <= 0 {
		return lines
	}
	var out []screen.Line
	for _, l := range lines {
		indent := l.Text[:len(l.Text)-len(strings.TrimLeft(l.Text, " "))]
		rest := indent + "  "
		if len(indent) > 2 {
			// The lines of a cause are aligned with each other.
			rest = indent
		}
		rest = rest[:min(len(rest), o.Columns/2)]
		for text := o.escape(l.Text); ; {
			head, tail := split(text, o.Columns, len(rest))
			if head != "" || tail == "" {
				out = append(out, screen.Line{Text: head, Style: l.Style})
			}
			if tail == "" {
				break
			}
			text = rest + tail
		}
	}
	return out
}

// split splits a text that is wider than the given columns: at the last space that is not within
// its first columns or, without such a space, within a word.
func split(text string, columns, first int) (head, tail string) {
	if screen.Width(text) <= columns {
		return text, ""
	}
	at, used := 0, 0
	for i, r := range text {
		if r == ' ' && i > first {
			at = i
		}
		if used += screen.Width(string(r)); used > columns {
			if at == 0 {
				at = i
			}
			if at <= first {
				// Not even one character fits; show it nevertheless.
				at = i + utf8.RuneLen(r)
			}
			break
		}
	}
	return strings.TrimRight(text[:at], " "), strings.TrimLeft(text[at:], " ")
}

// noteRows is the maximum number of lines of Note, which take the place of others.
const noteRows = 2

// Note shows a note about all lines below it; none if the text is empty.
func (o Options) Note(text string) []screen.Line {
	if text == "" {
		return nil
	}
	return o.shorten(o.Fit(wrap("", "note: "+text, o.columns(), screen.Warning)...), noteRows)
}

// shorten returns at most limit lines, and marks the end of the last one if lines are missing.
func (o Options) shorten(lines []screen.Line, limit int) []screen.Line {
	if len(lines) <= limit {
		return lines
	}
	lines = slices.Clone(lines[:limit])
	if limit > 0 {
		last, mark := &lines[limit-1], " "+o.ellipsis()
		if room := o.columns() - screen.Width(mark); screen.Width(last.Text) > room {
			last.Text, _ = split(last.Text, room, len(last.Text)-len(strings.TrimLeft(last.Text, " ")))
		}
		last.Text += mark
	}
	return lines
}

// cut returns the number of items to list, given the number of all items and a limit.
func (o Options) cut(count, limit int) int {
	if o.Wide {
		return count
	}
	return min(count, limit)
}

// Entry describes the pods of a plan entry.
func Entry(e v1alpha1.DrainPlanEntry) string {
	text := fmt.Sprintf("priority <= %d", e.PodPriority)
	switch e.PodPriority {
	case v1alpha1.SystemClusterCritical:
		text = "system-cluster-critical"
	case v1alpha1.SystemNodeCritical:
		text = "system-node-critical"
	}
	if e.PodType != v1alpha1.PodTypeDefault {
		text = string(e.PodType) + " " + text
	}
	if e.PodSelector != nil {
		text += " " + metav1.FormatLabelSelector(e.PodSelector)
	}
	return text
}

func line(style screen.Style, format string, args ...any) screen.Line {
	return screen.Line{Text: strings.TrimRight(fmt.Sprintf(format, args...), " "), Style: style}
}

func plain(format string, args ...any) screen.Line { return line(screen.Plain, format, args...) }

// wrap breaks text between words, so that each line with its indent fits into columns where
// possible.
func wrap(indent, text string, columns int, style screen.Style) []screen.Line {
	var lines []screen.Line
	at := indent
	for _, word := range strings.Fields(text) {
		word = screen.Escape(word)
		switch {
		case at == indent:
			at += word
		case screen.Width(at)+1+screen.Width(word) > columns:
			lines = append(lines, line(style, "%s", at))
			at = indent + word
		default:
			at += " " + word
		}
	}
	if at != indent {
		lines = append(lines, line(style, "%s", at))
	}
	return lines
}

// ago returns the time since a moment, formatted like an age in kubectl.
func ago(now, since time.Time) string {
	if since.IsZero() {
		return "?"
	}
	return duration.HumanDuration(max(now.Sub(since), 0))
}
