// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// isForPeople reports whether a decision has a message or an event for the owner of the pod. Only
// then the maintenance is looked up, which iterates over the nodes of all draining maintenances.
func (d *decision) isForPeople() bool {
	return d.handedOver || len(d.events) > 0
}

// mention adds the maintenance that the pod leaves for to the message of a hand-over and to the
// events, except to those about a cancellation: no maintenance asks for the pod then.
func (d *decision) mention(nm *maintenancev1alpha1.NodeMaintenance) {
	if nm == nil {
		return
	}
	suffix := protocol.LeavesFor(protocol.Mention(nm))
	if d.handedOver {
		d.status.Message = wording.Cut(d.status.Message, maxMessage-len(suffix)) + suffix
	}
	for i := range d.events {
		if d.events[i].reason != EventCancelled {
			d.events[i].note = wording.Cut(d.events[i].note, maxMessage-len(suffix)) + suffix
		}
	}
}
