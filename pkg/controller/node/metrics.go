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
		Help:           "Cordons that another client removed during a maintenance and that were restored.",
		StabilityLevel: metrics.ALPHA,
	})
	cordonFights = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "cordon_fights_total",
		Help:           "Restored cordons, as in cordons_restored_total, of nodes that another client makes schedulable repeatedly.",
		StabilityLevel: metrics.ALPHA,
	})
	conditionWrites = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "node_condition_writes_total",
		Help:           "Writes of the conditions of nodes.",
		StabilityLevel: metrics.ALPHA,
	})
	nodeErrors = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "node_errors_total",
		Help:           "Failed syncs of the cordon, the taints or the conditions of a node, which are retried. Conflicts do not count.",
		StabilityLevel: metrics.ALPHA,
	})
	nodesWithForeignMarks = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodemaintenance", Name: "nodes_with_foreign_marks",
		Help:           "Nodes with the cordon, taints or annotations of a server with another storage. They stay until --adopt-storage names that storage.",
		StabilityLevel: metrics.ALPHA,
	})
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(cordonsRestored, cordonFights, conditionWrites, nodeErrors, nodesWithForeignMarks)
	})
)
