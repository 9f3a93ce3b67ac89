// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"strconv"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"haulout.dev/haulout/pkg/agent/buckets"
)

var (
	lockHeld = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "lock_held",
		Help:           "1 while the node agent delays shutdowns of the machine, else 0.",
		StabilityLevel: metrics.ALPHA,
	})
	delaySeconds = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "shutdown_delay_seconds",
		Help:           "How long the machine waits for the node agent at most before it shuts down.",
		StabilityLevel: metrics.ALPHA,
	})
	phaseActive = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "shutdown_phase",
		Help:           "1 for the phase of the shutdown in which the node agent is, else 0. Armed means that no shutdown is pending.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"phase"})
	secondsLeft = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "shutdown_seconds_left",
		Help:           "Seconds until the machine goes down whatever the node agent does; 0 if no shutdown is pending.",
		StabilityLevel: metrics.ALPHA,
	})
	podsLeft = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "pods",
		Help:           "Pods on the node, by the lowest priority of their bucket in the configured table.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"bucket"})
	problemCount = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "problems",
		Help:           "Problems that the node agent reports in the node condition NodeAgentReady.",
		StabilityLevel: metrics.ALPHA,
	})
	startTime = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "graceful_shutdown_start_time_seconds",
		Help:           "When the last shutdown of the machine began that was not cancelled, also before the boot, in Unix time; 0 if there was none.",
		StabilityLevel: metrics.ALPHA,
	})
	endTime = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "graceful_shutdown_end_time_seconds",
		Help:           "When the node agent let that shutdown continue, in Unix time; 0 if it has not: then the machine went down on its own.",
		StabilityLevel: metrics.ALPHA,
	})
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(lockHeld, delaySeconds, phaseActive, secondsLeft, podsLeft, problemCount, startTime, endTime)
	})
)

// recordMetrics sets the metrics to a status.
func recordMetrics(status *Status, table buckets.Table, priorities []int32) {
	lockHeld.Set(oneIf(status.LockHeld))
	delaySeconds.Set(status.Delay.Seconds())
	secondsLeft.Set(status.TimeLeft.Seconds())
	problemCount.Set(float64(len(status.Problems)))
	startTime.Set(unixOf(status.State.Last.Start))
	endTime.Set(unixOf(status.State.Last.End))
	for _, phase := range phases {
		phaseActive.WithLabelValues(string(phase)).Set(oneIf(phase == status.State.Phase))
	}
	counts := make([]int, len(table))
	for _, p := range priorities {
		counts[table.Index(p)]++
	}
	for i, b := range table {
		podsLeft.WithLabelValues(strconv.FormatInt(int64(b.Priority), 10)).Set(float64(counts[i]))
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// unixOf returns the Unix time, 0 for the zero time.
func unixOf(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
