// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package node is the controller that writes to nodes: the cordon, the taints, the annotations that
// record which of them are ours, and the conditions (KEP-4212, section "NodeMaintenance").
//
// The key is a node. A sync gathers which maintenances hold the node, decides the desired state
// (decide, decideConditions: pure functions), and writes the difference, with at most one write of
// the node and one of its status. If the node has changed since, the API server refuses the write,
// and the sync decides again.
//
// The controller releases a node when no maintenance holds it and all Evacuations of its pods that
// maintenances requested are withdrawn. The nodemaintenance controller withdraws them. The two
// controllers never call each other. They share which maintenance selects which node (package
// selection), the state of the pods of a node (package nodestate) and which user may maintain which
// node (package rights).
//
// The controller also confirms, by a live list, for which maintenances a node is drained. The
// nodemaintenance controller waits for that confirmation.
//
// Two things are kept in memory and may be lost at any time: which maintenances were read live a
// moment ago (holding; they are read again), and which other storages the annotations of nodes name
// (foreign; their event is sent again).
package node
