// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package rollout is the controller of NodeMaintenanceRollouts: it takes the nodes of a rollout out
// of service and back, unit by unit. It creates a NodeMaintenance for each unit. The controllers of
// maintenances, nodes and tasks do everything else; they do not know of rollouts.
//
// The key of the queue is a rollout, and there is one worker, so that the units of all rollouts
// start one after the other. A sync gathers the facts (gather.go), follows the units that are in
// status.current (units.go), lets package next decide which ones start, and reads the nodes of
// these from the API. Then it acts (act.go). A unit starts in two steps: one write of the status
// announces it, with the resourceVersion of the decision, and then its maintenance is created.
// Announced nodes count as out for all rollouts, before any cache shows that the nodes are
// cordoned. If a leader dies between the two steps, the next one reads the name of the maintenance
// from the API. If it does not exist, the unit is decided about as if it were new, and gets the
// same name; no other unit gets its places within the next minute, since the request may still be
// carried out.
//
// All state that a new leader needs is in the API: what runs in status.current, and what was tried,
// and how it ended, in the maintenances of the rollout, which exist as long as the rollout. The
// state in memory may be lost at any time. Each entry has the state, and the consequence of its
// loss:
//
//   - rollouts, created: own writes that are not in the caches yet. The next write may conflict.
//   - current: the first start of a leader compares the rollouts in the cache and in the API.
//   - nodes: the nodes that syncs share. They are read from the cache again.
//   - goals: the values of doneWhen for the nodes. They are evaluated again.
//   - failedStarts: which units did not start, so that others are tried first, and which the API
//     has refused. They are tried first, and keep their places for a minute.
//   - problems: the failures and since when. One appears in the status a minute later.
//   - written: when each status was written, to delay counters. The next write is not delayed.
//   - costs: how long each sync took, to delay the next ones. The next syncs are not delayed.
package rollout
