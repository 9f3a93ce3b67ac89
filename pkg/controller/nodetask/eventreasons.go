// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

// Reasons of the events of this controller. They are about the node.
const (
	// EventOffered: the node is out of service, and a worker may claim it.
	EventOffered = "NodeTaskOffered"
	// EventClaimed: the server has granted the node to a worker.
	EventClaimed = "NodeTaskClaimed"
	// EventWithdrawn: the node is no longer offered to workers, or the claim of a worker was
	// refused.
	EventWithdrawn = "NodeTaskWithdrawn"
	// EventVerified: the work on the node is done, and the node is verified.
	EventVerified = "NodeTaskVerified"
	// EventFailed: the work on the node or its verification has failed, or no worker has claimed
	// the node.
	EventFailed = "NodeTaskFailed"
	// EventNodeGone: the node was deleted while a worker had claimed it, and was not registered
	// again before the deadline.
	EventNodeGone = "NodeGone"
)
