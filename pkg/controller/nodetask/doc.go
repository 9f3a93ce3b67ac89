// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodetask is the controller of NodeTasks: it offers the nodes of maintenances with a task
// to workers, grants their claims, verifies what they report, and withdraws or fails the rest.
//
// The key is a node, since a NodeTask has the name of its node. A sync gathers what the caches have
// about the node, decides the next step (decide, a pure function), and makes at most one write of
// the NodeTask or of its maintenance. Two decisions rest on more than the caches: a claim is
// granted only after the node, its pods and its maintenance were read live, and each write names
// the resourceVersion of the decision, so that of a claim, a withdrawal and a grant only one wins.
//
// The controller never changes a node or the status of a maintenance. While a NodeTask is in the
// hands of a worker, the nodemaintenance controller asks no pod of the node to leave, and the node
// controller does not release the node; both read the NodeTask (package nodestate). The
// nodemaintenance controller copies the state of the NodeTask into the status of the maintenance,
// and this controller deletes the NodeTask of finished work when it sees the copy.
//
// All deadlines count from times in the NodeTask. Kept in memory are only the time since which this
// leader serves, and when it saw each NodeTask change: a new leader gives workers some time to
// repeat reports that no server received.
package nodetask
