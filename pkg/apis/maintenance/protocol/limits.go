// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import "time"

// DefaultLongGrace is the default of --long-grace: the time after which a pod that is still within
// its grace period is reported as blocked and no longer counts as progress.
const DefaultLongGrace = 2 * time.Hour

// DefaultSurgeTimeout is the default of --surge-timeout: the time without progress after which a
// surge is given up.
const DefaultSurgeTimeout = 5 * time.Minute

// DefaultBudgetPatience is the default of --daemonset-budget-patience: the time after which a
// DaemonSet pod is kept on its node if its budget allows no disruption.
const DefaultBudgetPatience = 5 * time.Minute

// DefaultRawEvictionTTL is the default of --raw-eviction-ttl: the time after which an Evacuation
// that was made for an eviction is cancelled if no client tries to evict the pod again.
const DefaultRawEvictionTTL = 15 * time.Minute

// MaxMessage is the maximum length of the messages of an Evacuation and of a NodeTask, in bytes.
const MaxMessage = 1024

const (
	// MaxHolders is the maximum number of NodeMaintenances that may hold a node at the same time,
	// not counting the node's own shutdown.
	MaxHolders = 50
	// MaxShutdowns is the maximum number of stored NodeMaintenances of shutdowns of a node,
	// including completed ones.
	MaxShutdowns = 32
)
