// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

// Reasons of the events of this controller. All are about the node.
const (
	// EventOffered: a node is offered to the workers of a class.
	EventOffered = "NodeTaskOffered"
	// EventClaimed: the server has granted the node to a worker, which works on it now.
	EventClaimed = "NodeTaskClaimed"
	// EventWithdrawn: the node is no longer offered, for example because its maintenance has ended,
	// because it has pods again, or because no worker has claimed it in time.
	EventWithdrawn = "NodeTaskWithdrawn"
	// EventVerified: the work on the node is done, and the node is verified.
	EventVerified = "NodeTaskVerified"
	// EventFailed: the work on the node, or its verification, has failed. The node stays out of
	// service until a user acts.
	EventFailed = "NodeTaskFailed"
	// EventNodeGone: a node that a worker had did not return in time. Its maintenance goes on
	// without the node.
	EventNodeGone = "NodeGone"
)

const actionWork = "Work"
