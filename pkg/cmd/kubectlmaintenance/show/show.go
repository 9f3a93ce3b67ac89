// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package show formats facts about maintenances as lines of text. It has no client and no clock:
// the caller passes values.
package show

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// Width is the width at which text is wrapped without a terminal.
const Width = 100

// Options are the user's choices about the lines.
type Options struct {
	// Wide shows all nodes and all pods.
	Wide bool
	// Columns is the width at which text is wrapped; 0 means Width.
	Columns int
}

func (o Options) columns() int {
	if o.Columns <= 0 {
		return Width
	}
	return o.Columns
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

// table aligns cells in columns, two spaces apart. The first row is the heading. styles has the
// style of each row. table escapes the cells before it aligns them, since escaped text is longer.
func table(indent string, rows [][]string, styles []screen.Style) []screen.Line {
	var aligned strings.Builder
	w := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = screen.Escape(cell)
		}
		_, _ = fmt.Fprintln(w, indent+strings.Join(row, "\t"))
	}
	_ = w.Flush()
	lines := make([]screen.Line, 0, len(rows))
	for text := range strings.Lines(aligned.String()) {
		style := screen.Plain
		switch i := len(lines); {
		case i == 0:
			style = screen.Faint
		case i < len(styles):
			style = styles[i]
		}
		lines = append(lines, line(style, "%s", strings.TrimSuffix(text, "\n")))
	}
	return lines
}

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
		case len([]rune(at))+1+len([]rune(word)) > columns:
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
