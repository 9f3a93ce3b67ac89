// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodemaintenance is the controller of NodeMaintenances (KEP-4212): it requests the
// Evacuations of the pods on their nodes wave by wave, and withdraws them when a maintenance ends.
// The node controller (package node) cordons, taints and releases the nodes. The two controllers
// never call each other.
//
// The key of the queue is a maintenance. When the planner raises the drain targets of a node, the
// controller stores them in the status of every maintenance of the node before it creates
// Evacuations. A wave starts only when all nodes are cordoned in the cache. If the server has
// failed to cordon a node for a minute, the node is excluded, and the status names it. A
// maintenance that ends is requeued until no node names it; then the controller removes its
// finalizer. Evacuations that no maintenance wants any more are withdrawn by another loop, whose
// key is an Evacuation (withdrawals.go).
//
// A sync has three steps. gather (gather.go) reads all facts about a maintenance from the caches,
// the authorizer and the recorded failures. decide (decide.go, and the pure functions of
// pkg/drain/plan) computes the status and the next actions from these facts alone. act (act.go)
// writes the status, then creates and withdraws Evacuations. If a decision depends on a live list,
// the controller makes the list and decides again with the result.
//
// All state that a new leader needs is in the API: in the status, the annotations of the nodes, and
// the finalizers of the Evacuations. The state in memory may be lost at any time. Each entry has
// the state, and the consequence of its loss:
//
//   - latest: its own writes that are not in the cache yet. The next write may conflict.
//   - written: when each status was written, to delay counters. The next write is not delayed.
//   - costs, pauses: how long each sync and each decision took, to delay the next sync. The next
//     sync is not delayed.
//   - problems: the failures and since when. A failure appears in the status a minute later than
//     otherwise.
//   - The state of nodes that it shares with the node controller: packages selection,
//     nodestate and rights.
//
// The planner has no state: every sync plans from the facts.
//
// Limits: DaemonSet and static pods are kept unless their evacuator is enabled. Only messages and
// an event report that a maintenance was fast-forwarded or that another plan overrides its plan.
package nodemaintenance
