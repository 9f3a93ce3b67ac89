// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// TestPublish publishes tasks and then none: no gauge keeps an old value.
func TestPublish(t *testing.T) {
	registerMetrics()
	t.Cleanup(func() { publish(nil) })
	task := func(state v1alpha1.NodeTaskState, age time.Duration) *v1alpha1.NodeTask {
		return &v1alpha1.NodeTask{Status: v1alpha1.NodeTaskStatus{State: state, StateTime: ago(age)}}
	}
	publish([]*v1alpha1.NodeTask{
		task("", 0), task(v1alpha1.NodeTaskOffered, time.Hour), task(v1alpha1.NodeTaskClaimed, time.Minute), task(v1alpha1.NodeTaskClaimed, time.Hour),
		task(v1alpha1.NodeTaskClaimed, time.Second), task(v1alpha1.NodeTaskFailed, 5*time.Hour),
	})
	expectTasks(t, `
haulout_nodetask_oldest_state_timestamp_seconds{state="Claimed"} 1.7935308e+09
haulout_nodetask_oldest_state_timestamp_seconds{state="Verifying"} 0
`, `
haulout_nodetask_tasks{state="Claimed"} 3
haulout_nodetask_tasks{state="Done"} 0
haulout_nodetask_tasks{state="Failed"} 1
haulout_nodetask_tasks{state="Offered"} 2
haulout_nodetask_tasks{state="Verifying"} 0
`)
	publish(nil)
	expectTasks(t, `
haulout_nodetask_oldest_state_timestamp_seconds{state="Claimed"} 0
haulout_nodetask_oldest_state_timestamp_seconds{state="Verifying"} 0
`, `
haulout_nodetask_tasks{state="Claimed"} 0
haulout_nodetask_tasks{state="Done"} 0
haulout_nodetask_tasks{state="Failed"} 0
haulout_nodetask_tasks{state="Offered"} 0
haulout_nodetask_tasks{state="Verifying"} 0
`)
}

func expectTasks(t *testing.T, oldest, tasks string) {
	t.Helper()
	want := `# HELP haulout_nodetask_oldest_state_timestamp_seconds [ALPHA] Unix time when the oldest NodeTask in the state entered it, for the states Claimed and Verifying; 0 if none is in the state.
# TYPE haulout_nodetask_oldest_state_timestamp_seconds gauge` + oldest + `# HELP haulout_nodetask_tasks [ALPHA] NodeTasks by state.
# TYPE haulout_nodetask_tasks gauge` + tasks
	if err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want),
		"haulout_nodetask_oldest_state_timestamp_seconds", "haulout_nodetask_tasks"); err != nil {
		t.Error(err)
	}
}
