// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodemaintenance is the controller of NodeMaintenances (KEP-4212): it requests the
// Evacuations of the pods on their nodes wave by wave, and withdraws them when a maintenance ends.
// The node controller (package node) cordons, taints and releases the nodes; the two never call
// each other.
//
// The key is a maintenance. Every sync gathers (gather.go), decides (decide.go and the pure
// functions beside it, pkg/drain/plan) and acts (act.go), in this order: raised targets are stored
// in the status of every maintenance of the node, then Evacuations are created. A wave opens only
// when all nodes are cordoned in the cache; a node that cannot be cordoned for a minute is
// excluded, and the status names it. A maintenance that ends is requeued until no node names it;
// then the controller removes its finalizer. Evacuations that no maintenance wants any more are
// withdrawn by a loop whose key is an Evacuation (withdrawals.go).
//
// A sync has three steps. gather reads all facts about a maintenance from the caches, the
// authorizer and the recorded failures. decide computes the status and the next actions from these
// facts alone. act writes the status, then creates and withdraws Evacuations. If a decision depends
// on a live list, it requests the list and is made again with the result.
//
// All state that a new leader needs is in the API: the status, the annotations on the nodes, the
// finalizer on the Evacuations. The memory may be dropped at any time. A new leader loses:
//
//   - latest: its own writes that are not in the cache yet. A write may conflict.
//   - written: when each status was written, to delay counters. One write comes early.
//   - costs: how long each sync took, to delay the next one. One sync is not delayed.
//   - problems: the failures and since when. The status has a failure a minute later.
//   - The state of nodes that it shares with the node controller: packages selection,
//     nodestate and rights.
//
// The planner has no state: every sync plans from the facts.
//
// Limits: DaemonSet and static pods are kept unless their evacuator is enabled. Only the messages
// and an event of a maintenance report that it was fast-forwarded or overridden.
package nodemaintenance
