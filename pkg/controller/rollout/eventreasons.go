// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

// Reasons of the events of this controller. They are about the NodeMaintenanceRollout.
const (
	// EventUnitStarted: a unit of the rollout starts; the event names its nodes. About the rollout.
	EventUnitStarted = "UnitStarted"
	// EventUnitDone: all nodes of a unit are done, and have returned to service. About the rollout.
	EventUnitDone = "UnitDone"
	// EventUnitBlocked: a unit was not ready for a worker before its deadline, or its nodes left
	// the rollout. The unit is released, and starts again later. About the rollout.
	EventUnitBlocked = "UnitBlocked"
	// EventUnitFailed: the work on a node of a unit has failed. About the rollout.
	EventUnitFailed = "UnitFailed"
	// EventUnitReleasedByUser: a user has completed the maintenance of a unit before its work was
	// done. The rollout skips the unit until a user retries it. About the rollout.
	EventUnitReleasedByUser = "UnitReleasedByUser"
	// EventRolloutHalted: more units have failed than spec.maxFailed allows, so no further unit
	// starts; or only failed units are left. About the rollout.
	EventRolloutHalted = "RolloutHalted"
	// EventRolloutHeld: a hold keeps further units from starting. About the rollout.
	EventRolloutHeld = "RolloutHeld"
	// EventRolloutComplete: every matching node is done. About the rollout.
	EventRolloutComplete = "RolloutComplete"
)
