// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"unicode/utf8"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// MaxMessageBytes is the maximum length of a drain message in the status.
const MaxMessageBytes = 128

const (
	// MessageEvacuating means that pods of the node are leaving.
	MessageEvacuating = "Evacuating"
	// NotDrained is the beginning of the message of a node that is outside the waves.
	NotDrained = "Not drained: "
	// MessageDrained means that the maintenance has drained the node.
	MessageDrained = "Drained"
)

// NotAuthorizedMessage returns the message for a node that the requester of the maintenance may not
// maintain.
func NotAuthorizedMessage(username string) string {
	const format = NotDrained + "user %q may not maintain this node."
	for limit := MaxMessageBytes - len(format); ; limit-- {
		// Quoting makes a name longer if the name has characters that must be escaped.
		if message := fmt.Sprintf(format, Fit(username, limit)); len(message) <= MaxMessageBytes {
			return message
		}
	}
}

// remark is the message to a maintenance, the member, about a node on which pods have to leave.
type remark struct {
	message string
	// limiter is the maintenance at the earliest entry on the node, if that maintenance keeps the
	// node's targets below the targets of the member.
	limiter *progress
	// fastForwardedBy is the older maintenance that has advanced the node beyond the member's own
	// plan, or "".
	fastForwardedBy string
}

// describe adds the messages and fast-forwards of the subject to the result. An empty subject means
// all maintenances.
func (c *component) describe(result *Result, subject string) {
	for _, m := range c.maintenances {
		if subject != "" && m.name != subject {
			continue
		}
		waiting := MessageDrained
		if !m.finished() || m.held() {
			waiting = m.waiting()
		}
		messages := make(map[string]string, len(m.holds))
		result.Messages[m.name] = messages
		for _, h := range m.holds {
			message, ahead := waiting, h.joinedBehind()
			if h.node.moving {
				r := h.remark()
				message = r.message
				ahead = cmp.Or(r.fastForwardedBy, ahead)
			}
			messages[h.name] = message
			if ahead != "" {
				result.fastForward(m.name, h.name, ahead)
			}
		}
	}
}

// joinedBehind returns the oldest maintenance that has drained the node further than the plan of a
// maintenance that has just joined and does not have the node in its status yet, or "". It ignores
// whether the node has pods now, since new pods will not leave in the order of the plan.
func (h *hold) joinedBehind() string {
	if len(h.before) > 0 {
		return ""
	}
	n := h.node
	for k, reached := range n.before {
		if reached <= n.group.members[h.index].at(k) {
			continue
		}
		for _, other := range n.holds {
			if slices.ContainsFunc(other.before, func(e v1alpha1.DrainPlanEntry) bool {
				return int64(e.PodPriority) == reached && n.group.find(&e, k-1) == k
			}) {
				return other.by.name
			}
		}
	}
	return ""
}

// fastForward records which maintenance has drained a node further than the plan of another
// maintenance allows. by is its name.
func (r *Result) fastForward(maintenance, node, by string) {
	if r.FastForwarded[maintenance] == nil {
		r.FastForwarded[maintenance] = map[string]string{}
	}
	r.FastForwarded[maintenance][node] = by
}

// takeStock computes, once, the nodes and the maintenance for which m waits.
func (m *progress) takeStock() {
	if m.stocked {
		return
	}
	m.stocked = true
	for _, name := range m.behind {
		m.waits.add(name)
	}
	for _, h := range m.holds {
		moves := h.node.moving && h.first <= m.frontier && !m.finished() && h.node.movesFor(h)
		if moves || h.uncordoned {
			m.waits.add(h.name)
		}
		if h.first == m.frontier {
			m.stuck.add(h.name)
			if m.limiter == nil {
				m.limiter = h.remark().limiter
			}
		}
	}
}

// waiting returns the message for the nodes of m on which no pod is asked to leave. They wait for
// other nodes of m or, if another maintenance limits those nodes, for the nodes for which that
// maintenance waits.
func (m *progress) waiting() string {
	seen := map[*progress]bool{}
	for at := m; at != nil && !seen[at]; at = at.limiter {
		seen[at] = true
		at.takeStock()
		if at.waits.count == 0 {
			continue
		}
		if at == m {
			return at.waits.message("")
		}
		return at.waits.message(at.name)
	}
	return m.stuck.message("")
}

// remark returns the message about the node. All nodes with the same answer have the same message.
func (h *hold) remark() *remark {
	g, a := h.node.group, h.node.answer
	if a.remarks == nil {
		a.remarks = make([]*remark, len(g.members))
	}
	if a.remarks[h.index] == nil {
		a.remarks[h.index] = g.remark(h.index, a.reached)
	}
	return a.remarks[h.index]
}

// remark returns the message to a member about nodes that have reached the given targets.
func (g *group) remark(member int, reached reach) *remark {
	r := &remark{message: MessageEvacuating, limiter: g.limiterOf(member, reached), fastForwardedBy: g.fastForwardedBy(member, reached)}
	switch {
	case r.fastForwardedBy != "":
		r.message = withName("Evacuating (fast-forwarded by older ", r.fastForwardedBy, ")")
	case r.limiter != nil:
		r.message = withName("Evacuating (limited by ", r.limiter.name, ")")
	}
	return r
}

// limiterOf returns the maintenance at the earliest entry, if that maintenance keeps the reached
// targets below the targets of the member.
func (g *group) limiterOf(member int, reached reach) *progress {
	for k := range g.keys {
		want := g.members[member].own(k)
		if reached[k] >= want {
			continue
		}
		var limiter *progress
		lowest := want
		for i := range g.members {
			at := g.members[i].at(k)
			isHeld := g.members[i].of.held()
			if isHeld {
				at = unreached
			}
			if i != member && (isHeld || g.limits(i)) && at < lowest {
				limiter, lowest = g.members[i].of, at
			}
		}
		if limiter != nil {
			return limiter
		}
	}
	return nil
}

// fastForwardedBy returns the older maintenance that has drained a node further than the member's
// own plan, or "". If there are several, it returns the one at the earliest entry, which determines
// the targets of the node.
func (g *group) fastForwardedBy(member int, reached reach) string {
	for k := range g.keys {
		want := g.members[member].at(k)
		if want >= reached[k] {
			continue
		}
		var by *progress
		var lowest int64
		for i := range g.members[:member] {
			if at := g.members[i].at(k); at > want && (by == nil || at < lowest) {
				by, lowest = g.members[i].of, at
			}
		}
		if by != nil {
			return by.name
		}
	}
	return ""
}

// nodeList is the part of a list of nodes that fits into a message.
type nodeList struct {
	first [2]string
	count int
}

func (l *nodeList) add(name string) {
	if l.count < len(l.first) {
		l.first[l.count] = name
	}
	l.count++
}

// message returns a message with at most two of the nodes, and fewer if their names are long.
func (l *nodeList) message(of string) string {
	suffix := "."
	if of != "" {
		suffix = " (" + of + ")."
	}
	var message string
	switch l.count {
	case 0:
		return MessageEvacuating
	case 1:
		message = "Waiting for node " + l.first[0]
	case 2:
		message = "Waiting for nodes " + l.first[0] + " and " + l.first[1]
	default:
		message = fmt.Sprintf("Waiting for nodes %s, %s and %d more", l.first[0], l.first[1], l.count-2)
	}
	if len(message)+len(suffix) <= MaxMessageBytes {
		return message + suffix
	}
	message = fmt.Sprintf("Waiting for %d nodes", l.count)
	if l.count == 1 {
		message = "Waiting for node " + l.first[0]
	}
	return Fit(message, MaxMessageBytes-1) + "."
}

func withName(start, name, end string) string {
	return start + Fit(name, MaxMessageBytes-len(start)-len(end)) + end
}

// Fit truncates s to at most limit bytes, at a character boundary.
func Fit(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	const dots = "…"
	cut := max(limit-len(dots), 0)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + dots
}
