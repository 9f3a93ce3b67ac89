// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import "time"

// DefaultLongGrace is the default of --long-grace: how long a pod may be stopping within its grace
// period before it is reported as blocked and no longer counts as progress.
const DefaultLongGrace = 2 * time.Hour

const (
	// MaxHolders is how many NodeMaintenances may hold a node at the same time. The node's own
	// shutdown has a place of its own beside them.
	MaxHolders = 50
	// MaxShutdowns is how many NodeMaintenances of shutdowns of a node may be stored, completed
	// ones included.
	MaxShutdowns = 32
)
