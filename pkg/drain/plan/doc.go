// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package plan decides which pods of which nodes are asked to leave next. It uses neither a client
// nor a clock, and logs nothing.
//
// Plan takes the World (maintenances in stage Drain, their nodes, the live pods, the statuses) and
// returns the targets of each node, and the message for each maintenance and node. A maintenance
// starts an entry of its plan on all of its nodes at the same time, when the pods of the earlier
// entries have left all of these nodes. Targets belong to the node: if maintenances overlap, the
// one at the earliest entry limits the node, and a node keeps its targets while a maintenance holds
// it.
//
// Plan keeps no state between calls: its result depends only on the World. After a restart the
// statuses are sufficient.
package plan
