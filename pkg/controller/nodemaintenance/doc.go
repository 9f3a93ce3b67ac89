// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodemaintenance runs NodeMaintenances (KEP-4212): it requests the Evacuations of the pods
// on their nodes wave by wave, and withdraws them when a maintenance ends. The controller of nodes
// (package node) cordons, taints and releases the nodes; the two never call each other.
//
// The key is a maintenance. Every sync gathers (gather.go), decides (decide.go and the pure
// functions beside it, pkg/drain/plan) and acts (act.go), in this order: raised targets are stored
// in the status of every maintenance of the node, then Evacuations are created. A wave opens only
// when the cache shows all nodes cordoned; a node that cannot be cordoned for a minute is left out
// and named. A maintenance that ends waits by requeue until no node names it, and then drops its
// finalizer. Evacuations that no maintenance wants any more are withdrawn by a loop whose key is an
// Evacuation (withdrawals.go).
//
// A sync has three steps. gather reads all facts about a maintenance: the caches, the authorizer,
// what has failed. decide computes the status and what follows from it, from these facts alone. act
// writes the status, then creates and withdraws Evacuations. A decision that depends on a live list
// asks for it and is made again with its outcome.
//
// What the controller needs to continue after a crash is in the API: the status, the annotations on
// the nodes, the finalizer on the Evacuations. What it keeps in memory may be dropped at any time.
// A new leader loses:
//
//   - latest: its own writes that the cache does not show yet. A write may conflict.
//   - written: when each status was written, so that counters wait. One is written early.
//   - costs: how long each sync took, for its pause. One sync runs without a pause.
//   - problems: what fails and since when. A failure is shown a minute later.
//   - What is known about nodes and shared with the controller of nodes: packages selection,
//     nodestate and rights.
//
// The planner keeps nothing: every sync plans from what it has gathered.
//
// Limits: DaemonSet and static pods are left running unless their evacuator is enabled. A
// maintenance that was fast-forwarded or overridden is told so by its messages and an event on
// itself only.
package nodemaintenance
