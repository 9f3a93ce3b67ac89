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

package drainplan

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// MaxMessageBytes is the room that the status has for a drain message.
const MaxMessageBytes = 128

const (
	// MessageEvacuating says that pods of the node are leaving.
	MessageEvacuating = "Evacuating"
	// MessageDrained says that the maintenance is done with the node.
	MessageDrained = "Drained"
)

// NotAuthorizedMessage is the message for a node that the requester of the maintenance may not delete.
func NotAuthorizedMessage(username string) string {
	const around = len(`Not drained: user "" may not delete this node.`)
	for limit := MaxMessageBytes - around; ; limit-- {
		// A name that has to be escaped grows when it is quoted.
		if message := fmt.Sprintf("Not drained: user %q may not delete this node.", fit(username, limit)); len(message) <= MaxMessageBytes {
			return message
		}
	}
}

// describe fills in the messages, and who was fast-forwarded.
func (p *planner) describe(result *Result) {
	result.Messages = make(map[string]map[string]string, len(p.maintenances))
	result.FastForwarded = map[string]map[string]string{}
	for _, m := range p.maintenances {
		m.waits = p.waitsOf(m)
	}
	for _, m := range p.maintenances {
		messages := make(map[string]string, len(m.Nodes))
		waiting := MessageDrained
		if !m.finished() || m.held() {
			waiting = p.waiting(m)
		}
		for _, name := range m.Nodes {
			n := p.byName[name]
			if !n.moving {
				messages[name] = waiting
				continue
			}
			if by := n.fastForwardedBy(m); by != "" {
				messages[name] = withName("Evacuating (fast-forwarded by older ", by, ")")
				if result.FastForwarded[m.Name] == nil {
					result.FastForwarded[m.Name] = map[string]string{}
				}
				result.FastForwarded[m.Name][name] = by
				continue
			}
			messages[name] = MessageEvacuating
			if by := n.limiterOf(m); by != nil {
				messages[name] = withName("Evacuating (limited by ", by.Name, ")")
			}
		}
		result.Messages[m.Name] = messages
	}
}

// waitsOf returns the nodes that hold the maintenance up by themselves.
func (p *planner) waitsOf(m *progress) []string {
	waits := slices.Clone(m.Uncordoned)
	for _, name := range m.Nodes {
		if n := p.byName[name]; n.moving && m.first[name] <= m.frontier && !m.finished() && n.movesFor(m) {
			waits = append(waits, name)
		}
	}
	slices.Sort(waits)
	return slices.Compact(waits)
}

// movesFor says whether a pod of the node that the maintenance's frontier waits for is asked to leave.
func (n *nodeState) movesFor(m *progress) bool {
	return slices.ContainsFunc(n.Pods, func(pod Pod) bool { return m.index(pod) <= m.frontier && n.targets.Cover(pod) })
}

// waiting is the message of the nodes of m on which nothing is asked to leave: they wait for other nodes of m or, where another maintenance
// limits these, for the nodes that that one waits for.
func (p *planner) waiting(m *progress) string {
	seen := map[*progress]bool{}
	for at := m; at != nil && !seen[at]; at = p.limiter(at) {
		seen[at] = true
		if len(at.waits) == 0 {
			continue
		}
		if at == m {
			return waitMessage(at.waits, "")
		}
		return waitMessage(at.waits, at.Name)
	}
	return waitMessage(p.stuckOn(m), "")
}

// limiter returns the maintenance that keeps the pods that m waits for from being asked to leave.
func (p *planner) limiter(m *progress) *progress {
	for _, name := range p.stuckOn(m) {
		if by := p.byName[name].limiterOf(m); by != nil {
			return by
		}
	}
	return nil
}

// stuckOn returns the nodes with live pods at the frontier, sorted by name.
func (p *planner) stuckOn(m *progress) []string {
	var out []string
	for _, name := range m.Nodes {
		if m.first[name] == m.frontier {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// limiterOf returns the maintenance that has come least far on the node, if the node's targets are lower than m's own because of it.
func (n *nodeState) limiterOf(m *progress) *progress {
	for _, k := range n.keysInOrder(m.own) {
		want := m.own[k]
		if got, ok := n.reached[k]; ok && got >= want {
			continue
		}
		var limiter *progress
		lowest, lowestReached := want, true
		for _, other := range n.maintenances {
			priority, reached := other.at(k)
			if other.held() {
				reached = false
			}
			if other != m && lowestReached && (!reached || priority < lowest) {
				limiter, lowest, lowestReached = other, priority, reached
			}
		}
		if limiter != nil {
			return limiter
		}
	}
	return nil
}

// fastForwardedBy returns the older maintenance that had taken the node further than m's own plan, or "". Of several it is the one that has
// come least far: the one whose progress the node shows.
func (n *nodeState) fastForwardedBy(m *progress) string {
	for _, k := range n.keysInOrder(n.reached) {
		got := n.reached[k]
		if want, ok := m.at(k); ok && want >= got {
			continue
		}
		var by *progress
		lowest := int32(0)
		for _, other := range n.maintenances {
			if other == m {
				break
			}
			priority, ok := other.at(k)
			if own, has := m.at(k); !ok || has && priority <= own {
				continue
			}
			if by == nil || priority < lowest {
				by, lowest = other, priority
			}
		}
		if by != nil {
			return by.Name
		}
	}
	return ""
}

// keysInOrder returns the keys of r in the order of the status.
func (n *nodeState) keysInOrder(r reach) []key {
	keys := make([]key, 0, len(r))
	for k := range r {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, n.words.compare)
	return keys
}

// waitMessage names at most two of the nodes, and fewer if their names are long.
func waitMessage(nodes []string, of string) string {
	suffix := "."
	if of != "" {
		suffix = " (" + of + ")."
	}
	var message string
	switch len(nodes) {
	case 0:
		return MessageEvacuating
	case 1:
		message = "Waiting for node " + nodes[0]
	case 2:
		message = "Waiting for nodes " + nodes[0] + " and " + nodes[1]
	default:
		message = fmt.Sprintf("Waiting for nodes %s, %s and %d more", nodes[0], nodes[1], len(nodes)-2)
	}
	if len(message)+len(suffix) <= MaxMessageBytes {
		return message + suffix
	}
	message = fmt.Sprintf("Waiting for %d nodes", len(nodes))
	if len(nodes) == 1 {
		message = "Waiting for node " + nodes[0]
	}
	return fit(message, MaxMessageBytes-1) + "."
}

func withName(start, name, end string) string {
	return start + fit(name, MaxMessageBytes-len(start)-len(end)) + end
}

// fit shortens s to at most limit bytes without cutting a character in two.
func fit(s string, limit int) string {
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
