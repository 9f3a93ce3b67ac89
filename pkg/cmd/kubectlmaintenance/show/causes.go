// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// load is the set of pods of a workload that stay for the same reason.
type load struct {
	workload
	first *Blocker
	pods  int
	nodes map[string]bool
	// stopsAt is the end of the last grace period of pods that are stopping.
	stopsAt time.Time
}

// title names the workload, or its pod if there is only one.
func (l *load) title() (kind, name string) {
	if l.pods == 1 {
		return "Pod", l.first.Pod
	}
	return l.kind, l.name
}

// where names the node, or the number of nodes.
func (l *load) where() string {
	if len(l.nodes) == 1 {
		return l.first.Node
	}
	return wording.Count(len(l.nodes), "node")
}

// cause is a set of workloads whose pods stay for the same reason.
type cause struct {
	first *Blocker
	loads []*load
	pods  int
}

// causesOf groups pods: first the pods of a workload with the same reason and actor, whose messages
// may differ, since some have the name or the times of one pod; then workloads with the same
// message. The order is that of the first pods.
func causesOf(blockers []Blocker) []*cause {
	type loadKey struct {
		workload
		reason, who string
	}
	type causeKey struct{ reason, who, message string }
	loads, causes := map[loadKey]*load{}, map[causeKey]*cause{}
	byLoad := map[*load]*cause{}
	var out []*cause
	for i := range blockers {
		b := &blockers[i]
		who := b.Who()
		key := loadKey{b.workload, b.Reason, who}
		l := loads[key]
		if l == nil {
			l = &load{workload: b.workload, first: b, nodes: map[string]bool{}}
			loads[key] = l
			of := causeKey{b.Reason, who, b.Message}
			if !b.stopsAt.IsZero() {
				// The messages differ only in their times.
				of.message = ""
			}
			c := causes[of]
			if c == nil {
				c = &cause{first: b}
				causes[of] = c
				out = append(out, c)
			}
			c.loads, byLoad[l] = append(c.loads, l), c
		}
		l.pods++
		l.nodes[b.Node] = true
		if b.stopsAt.After(l.stopsAt) {
			l.stopsAt = b.stopsAt
		}
		byLoad[l].pods++
	}
	return out
}

// message returns the message of the first pod or, if the pods stop at different times, one about
// the last of them.
func (c *cause) message() string {
	last := c.loads[0].stopsAt
	for _, l := range c.loads {
		if l.stopsAt.After(last) {
			last = l.stopsAt
		}
	}
	if c.pods == 1 || last.IsZero() {
		return c.first.Message
	}
	return fmt.Sprintf("The pods are stopping within their grace periods, the last of which ends at %s.", timeOf(last))
}

// subject names the workloads of a cause in one line.
func (c *cause) subject() string {
	const few = 2
	var names []string
	for _, l := range c.loads[:min(len(c.loads), few)] {
		kind, name := l.title()
		text := l.namespace + "/" + name
		if kind != "Pod" {
			text = fmt.Sprintf("%s %s (%s)", kind, text, wording.Count(l.pods, "pod"))
		}
		names = append(names, text)
	}
	text := strings.Join(names, ", ")
	if rest := len(c.loads) - few; rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	} else if len(c.loads) == 1 {
		text += " on " + c.loads[0].where()
	}
	return text
}

// causeBlock has the lines of a cause in Status.
type causeBlock struct {
	// title has the lines with the workloads and the reason, who those with the actor.
	title, message, who []screen.Line
}

const causeIndent = "           "

// block returns the lines of a cause.
func (c *cause) block(now time.Time, o Options) causeBlock {
	style, what := screen.Warning, c.first.Reason
	switch what {
	case waitsForEvacuator:
		style, what = screen.Plain, c.first.evacuator
	case v1alpha1.ReasonPodWaits, v1alpha1.ReasonPodStopping, v1alpha1.ReasonPaused:
		style = screen.Plain
	}
	return newBlock(ago(now, c.first.Since), c.subject()+": "+what, style, c.message(), c.first.WhoUntil(), o)
}

// newBlock returns the lines of a cause, with its age in front of the title.
func newBlock(age, title string, style screen.Style, message, who string, o Options) causeBlock {
	indent := causeIndent
	if o.Columns > 0 && o.Columns < narrow {
		indent = "    "
	}
	title = cmp.Or(strings.TrimSpace(title), "-")
	b := causeBlock{
		title:   wrap(indent, title, o.columns(), style),
		message: o.Fit(wrap(indent, message, o.columns(), screen.Plain)...),
	}
	if len(indent) < len(causeIndent) {
		b.title = wrap(indent, age+" "+title, o.columns(), style)
		b.title[0].Text = b.title[0].Text[len("  "):]
	} else {
		b.title[0].Text = fmt.Sprintf("  %-8s %s", age, strings.TrimLeft(b.title[0].Text, " "))
	}
	b.title = o.Fit(b.title...)
	if who != "" {
		b.who = o.Fit(wrap(indent, "who: "+who, o.columns(), screen.Plain)...)
	}
	return b
}

// The detail of a cause grows from its title to the actor and then, line by line, to the message.
const (
	titleOnly = iota
	withActor
)

// complete is the detail at which nothing of a cause is missing.
func (b *causeBlock) complete() int { return withActor + len(b.message) }

// lines returns the lines of a cause with a limited detail.
func (b *causeBlock) lines(detail int, o Options) []screen.Line {
	lines := b.title
	if detail >= withActor {
		message := o.shorten(b.message, detail-withActor)
		lines = append(append(lines[:len(lines):len(lines)], message...), b.who...)
	}
	return lines
}

// obstacleBlock returns the lines of an obstacle in Status.
func obstacleBlock(b *Obstacle, now time.Time, o Options) causeBlock {
	since, title := "", b.Reason
	if !b.Since.IsZero() {
		since = ago(now, b.Since)
	}
	if len(b.Nodes) > 0 {
		const few = 3
		title += ": " + strings.Join(b.Nodes[:min(len(b.Nodes), few)], ", ")
		if rest := len(b.Nodes) - few; rest > 0 {
			title += fmt.Sprintf(" and %d more", rest)
		}
	}
	return newBlock(since, title, screen.Warning, b.Message, b.Who(), o)
}

// causeList is the part of Status with the causes: obstacles, blocked pods and waiting pods.
type causeList struct {
	blocks []causeBlock
	// headings are the lines above a block, by the index of the block.
	headings map[int]screen.Line
}

// causes returns the causes why a maintenance makes no or little progress, and the waits of its
// pods.
func (f *Facts) causes(blockers, waiting []Blocker, o Options) causeList {
	l := causeList{headings: map[int]screen.Line{}}
	for _, b := range f.obstacles(blockers) {
		l.blocks = append(l.blocks, obstacleBlock(&b, f.Now, o))
	}
	add := func(heading screen.Line, pods []Blocker) {
		if len(pods) == 0 {
			return
		}
		l.headings[len(l.blocks)] = heading
		for _, c := range causesOf(pods) {
			l.blocks = append(l.blocks, c.block(f.Now, o))
		}
	}
	add(line(screen.Bad, "  BLOCKED  %s", wording.Count(len(blockers), "pod")), blockers)
	for _, kind := range waits {
		pods := waitingFor(waiting, kind.reason)
		add(line(screen.Heading, "  %-8s %s %s", kind.heading, wording.Count(len(pods), "pod"), kind.what), pods)
	}
	return l
}

// lines returns the first causes: the first one with the given detail, the others with detail rest.
func (l *causeList) lines(count, detail, rest int, f *Facts, o Options) []screen.Line {
	var lines []screen.Line
	cut := false
	for i := range l.blocks[:min(count, len(l.blocks))] {
		if heading, ok := l.headings[i]; ok {
			lines = append(lines, o.Fit(heading)...)
		}
		if i > 0 {
			detail = rest
		}
		lines = append(lines, l.blocks[i].lines(detail, o)...)
		cut = cut || detail < l.blocks[i].complete()
	}
	missing := len(l.blocks) - count
	if missing <= 0 && !cut {
		return lines
	}
	short := "blockers " + f.Maintenance.Name
	text, command := "  "+o.ellipsis()+" ", "kubectl maintenance "+short
	alone := text
	if missing > 0 {
		text += wording.Count(missing, "more cause") + ": "
	}
	switch {
	case o.Scrolls:
		text += "press b"
	case o.Columns <= 0 || screen.Width(text+command) <= o.Columns:
		text += command
	case screen.Width(alone+command) <= o.Columns:
		text = alone + command
	default:
		text = alone + short
	}
	return append(lines, line(screen.Faint, "%s", screen.Fit(o.escape(text), o.Columns)))
}
