// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	cordonsRestored = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "cordons_restored_total",
		Help:           "Nodes that were made schedulable in the middle of a maintenance, and then unschedulable again.",
		StabilityLevel: metrics.ALPHA,
	})
	cordonFights = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "cordon_fights_total",
		Help:           "Cordons that were undone and restored as in cordons_restored_total, of nodes that are made schedulable repeatedly.",
		StabilityLevel: metrics.ALPHA,
	})
	conditionWrites = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "node_condition_writes_total",
		Help:           "Writes of the conditions of nodes.",
		StabilityLevel: metrics.ALPHA,
	})
	nodeErrors = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "node_errors_total",
		Help:           "Attempts to keep the cordon, the taints or the conditions of a node that failed and are tried again. Conflicts do not count.",
		StabilityLevel: metrics.ALPHA,
	})
	nodesWithForeignMarks = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "nodes_with_foreign_marks",
		Help:           "Nodes that a server with another storage has left in maintenance. They stay as they are until --adopt-storage names that storage.",
		StabilityLevel: metrics.ALPHA,
	})
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(cordonsRestored, cordonFights, conditionWrites, nodeErrors, nodesWithForeignMarks)
	})
)
