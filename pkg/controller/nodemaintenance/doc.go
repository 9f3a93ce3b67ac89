// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodemaintenance is the controller of NodeMaintenances (KEP-4212): it requests the
// Evacuations of the pods on their nodes wave by wave, and withdraws them when a maintenance ends.
// The node controller (package node) cordons, taints and releases the nodes. The two controllers
// never call each other.
//
// The key is a maintenance. Raised targets are stored in the status of every maintenance of the
// node before Evacuations are created. A wave starts only when all nodes are cordoned in the cache.
// A node that cannot be cordoned for a minute is excluded, and the status names it. A maintenance
// that ends is requeued until no node names it; then the controller removes its finalizer.
// Evacuations that no maintenance wants any more are withdrawn by another loop, whose key is an
// Evacuation (withdrawals.go).
//
// A sync has three steps. gather (gather.go) reads all facts about a maintenance from the caches,
// the authorizer and the recorded failures. decide (decide.go, and the pure functions of
// pkg/drain/plan) computes the status and the next actions from these facts alone. act (act.go)
// writes the status, then creates and withdraws Evacuations. If a decision depends on a live list,
// the controller makes the list and decides again with the result.
//
// All state that a new leader needs is in the API: in the status, the annotations of the nodes, and
// the finalizers of the Evacuations. What is kept in memory may be lost at any time:
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
// Limits: DaemonSet and static pods are kept unless their evacuator is enabled. Only messages and
// an event report that a maintenance was fast-forwarded or that another plan overrides its plan.
package nodemaintenance
