// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"time"
)

// stopTime is how long a server may take to learn that a maintenance is over. An eviction that it
// has sent may also be on its way.
const stopTime = 3 * time.Second

// Unasked describes the evictions that server was granted of pods on nodes which no maintenance
// drained when kube-apiserver received the call, nor shortly before.
func (h *History) Unasked(calls []Call, server string) ([]string, error) {
	dockets, err := h.dockets(Rules{})
	if err != nil {
		return nil, err
	}
	nodes := h.nodesByName()
	var found []string
	for i := range calls {
		call := &calls[i]
		pod := h.pods[call.UID]
		if !call.Evicted() || call.User != server || pod == nil {
			continue
		}
		asked := false
		for _, d := range dockets {
			asked = asked || d.asksFor(nodes[pod.Spec.NodeName], call.Received)
		}
		if !asked {
			found = append(found, fmt.Sprintf("pod %s/%s on node %s was evicted at %s, and no maintenance drained the node",
				pod.Namespace, pod.Name, pod.Spec.NodeName, call.Received.UTC().Format("15:04:05.000")))
		}
	}
	return found, nil
}

// asksFor reports whether the maintenance drained one of some nodes at a time or shortly before.
func (d *docket) asksFor(nodes []*nodeRecord, at time.Time) bool {
	for i, state := range d.states {
		if !state.draining {
			continue
		}
		over := d.gone
		if i+1 < len(d.states) {
			over = &d.states[i+1].stamp
		}
		// A state may have come some time before it was seen, but not before the object.
		if at.Before(d.last.CreationTimestamp.Time) || over != nil && at.After(over.seen.Add(stopTime)) {
			continue
		}
		for _, node := range nodes {
			if _, named := state.targets[node.last.UID]; named || d.joined(node, state.at) != nil {
				return true
			}
		}
	}
	return false
}
