// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package node keeps what the server writes to nodes: the cordon, the taints, the annotations that
// record whose they are, and the conditions (KEP-4212, section "NodeMaintenance").
//
// The key is a node. A sync gathers which maintenances hold the node, decides what it should look
// like (decide, decideConditions: pure functions), and writes the difference, at most one write of
// the node and one of its status. If the node has changed since, the API refuses the write, and the
// node is decided again.
//
// A node is released when no maintenance holds it and no Evacuation of ours is left on it; the
// controller of maintenances withdraws these. The two controllers never call each other. They share
// which maintenance selects which node (package selection), what is known about the pods of a node
// (package nodestate) and who may delete which node (package rights).
//
// It also confirms, by a live list, for which maintenances a node is drained; the controller of
// maintenances waits for that.
//
// Kept in memory, and droppable at any time: which maintenances were read a moment ago (holding;
// read again), and which storages have left marks on nodes (foreign; one more event for each).
package node
