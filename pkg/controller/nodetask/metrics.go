// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/holds"
)

var (
	tasksByState = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodetask", Name: "tasks",
		Help:           "NodeTasks by state.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"state"})
	oldestState = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "nodetask", Name: "oldest_state_timestamp_seconds",
		Help:           "Unix time when the oldest NodeTask in the state entered it, for the states Claimed and Verifying; 0 if none is in the state.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"state"})
	taskResults = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "nodetask", Name: "results_total",
		Help:           "Ends of the work on nodes: Done, Gone, or the reason of a failure: WorkerFailed, Lost, NotVerified or NoWorker.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	syncErrors = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "nodetask", Name: "sync_errors_total",
		Help:           "Failed syncs of NodeTasks, which are retried. Conflicts do not count.",
		StabilityLevel: metrics.ALPHA,
	})
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(tasksByState, oldestState, taskResults, syncErrors)
		for _, result := range results {
			taskResults.WithLabelValues(result).Add(0)
		}
	})
)

var states = []v1alpha1.NodeTaskState{
	v1alpha1.NodeTaskOffered, v1alpha1.NodeTaskClaimed, v1alpha1.NodeTaskVerifying, v1alpha1.NodeTaskDone, v1alpha1.NodeTaskFailed,
}

var results = []string{
	string(v1alpha1.NodeTaskDone), string(v1alpha1.NodeTaskGone), string(v1alpha1.NodeTaskWorkerFailed),
	string(v1alpha1.NodeTaskLost), string(v1alpha1.NodeTaskNotVerified), string(v1alpha1.NodeTaskNoWorker),
}

// publish sets the gauges of the tasks. It sets every state, so that none keeps an old value.
func publish(tasks []*v1alpha1.NodeTask) {
	counts, oldest := map[v1alpha1.NodeTaskState]int{}, map[v1alpha1.NodeTaskState]int64{}
	for _, task := range tasks {
		state := holds.StateOf(task)
		counts[state]++
		if at := task.Status.StateTime; at != nil && (oldest[state] == 0 || at.Unix() < oldest[state]) {
			oldest[state] = at.Unix()
		}
	}
	for _, state := range states {
		tasksByState.WithLabelValues(string(state)).Set(float64(counts[state]))
	}
	for _, state := range []v1alpha1.NodeTaskState{v1alpha1.NodeTaskClaimed, v1alpha1.NodeTaskVerifying} {
		oldestState.WithLabelValues(string(state)).Set(float64(oldest[state]))
	}
}
