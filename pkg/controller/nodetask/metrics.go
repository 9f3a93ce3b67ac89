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
		legacyregistry.MustRegister(tasksByState, taskResults, syncErrors)
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

// publish sets the gauge of the tasks. It sets every state, so that none keeps an old value.
func publish(tasks []*v1alpha1.NodeTask) {
	counts := map[v1alpha1.NodeTaskState]int{}
	for _, task := range tasks {
		counts[holds.StateOf(task)]++
	}
	for _, state := range states {
		tasksByState.WithLabelValues(string(state)).Set(float64(counts[state]))
	}
}
