// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

// Reasons of the events of this controller.
const (
	// EventOffered: the node is out of service, and a worker may claim it. About the node.
	EventOffered = "NodeTaskOffered"
	// EventClaimed: the server has granted the node to a worker. About the node.
	EventClaimed = "NodeTaskClaimed"
	// EventWithdrawn: the node is no longer offered to workers, the claim of a worker was refused,
	// or the failure of the work is forgotten, since the maintenance does not select the node any
	// more. About the node.
	EventWithdrawn = "NodeTaskWithdrawn"
	// EventVerified: the work on the node is done, and the node is verified. About the node.
	EventVerified = "NodeTaskVerified"
	// EventFailed: the work on the node or its verification has failed, or no worker has claimed
	// the node. About the node.
	EventFailed = "NodeTaskFailed"
	// EventNodeGone: the node was deleted while a worker had claimed it, and was not registered
	// again before the deadline. About the node.
	EventNodeGone = "NodeGone"
)
