// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package size

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func withTask() *v1alpha1.NodeMaintenance {
	nm := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{
		Task:      &v1alpha1.NodeMaintenanceTask{Worker: "reboot.example.com"},
		DrainPlan: []v1alpha1.DrainPlanEntry{{PodPriority: 5, Behavior: ptr.To(v1alpha1.DrainBehaviorWaitCompleted), WaitSeconds: ptr.To[int32](2592000)}},
	}}
	v1alpha1.SetObjectDefaults_NodeMaintenance(nm)
	return nm
}

// TestTaskBytes compares the estimate with a status in which every node has the longest state of
// its work and waiting pods.
func TestTaskBytes(t *testing.T) {
	nm := withTask()
	stored := &v1alpha1.NodeMaintenanceStatus{}
	at := &metav1.Time{Time: time.Unix(1<<40, 999_999_999)}
	for i := range 1000 {
		n := v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef:               v1alpha1.NodeReference{Name: fmt.Sprintf("%063d", i), UID: types.UID(fmt.Sprintf("%036d", i))},
			PodsPendingEvacuation: 250, PodsEvacuating: 250, PodsBlocked: 250, PodsKept: 20, PodsPeak: 500, PodsGonePeak: 450, PodsWaiting: ptr.To[int32](250),
			Reason: v1alpha1.NodeStatusNodeTaskInProgress,
			Task: &v1alpha1.NodeMaintenanceNodeTask{
				State: v1alpha1.NodeTaskVerifying, Reason: v1alpha1.NodeTaskWorkerFailed, Holder: strings.Repeat("w", 128), StartTime: at, EndTime: at,
			},
		}
		for _, podType := range []v1alpha1.PodType{v1alpha1.PodTypeDefault, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic} {
			n.DrainTargets = append(n.DrainTargets, v1alpha1.DrainPlanEntry{PodType: podType, PodPriority: v1alpha1.MaxPodPriority})
		}
		stored.NodeStatuses = append(stored.NodeStatuses, n)
	}
	got, want := StatusBytes(nm.Spec.DrainPlan, 1000)+TaskBytes(nm.Spec.Task, 1000), stored.Size()
	is.True(t, got >= want && got <= want*5/4, "got %d bytes, stored are %d", got, want)
	is.Equal(t, TaskBytes(nil, 1000), 0, "without a task")
}

func TestMaxNodes(t *testing.T) {
	nm := withTask()
	nodes := MaxNodes(nm)
	is.True(t, nodes > 2600 && nodes < 2800, "a default plan with a task has room for %d nodes", nodes)
	bytes := func(nodes int) int { return StatusBytes(nm.Spec.DrainPlan, nodes) + TaskBytes(nm.Spec.Task, nodes) }
	is.True(t, bytes(nodes) <= MaxStatusBytes && bytes(nodes+1) > MaxStatusBytes, "%d nodes take %d bytes, one more %d", nodes, bytes(nodes), bytes(nodes+1))
}
