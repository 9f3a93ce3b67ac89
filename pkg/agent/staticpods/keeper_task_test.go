// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// inTask sets the state of the work on the node that a maintenance records.
func inTask(state v1alpha1.NodeTaskState) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.NodeStatuses[1].Task = &v1alpha1.NodeMaintenanceNodeTask{State: state}
	}
}

// markedBy has the Node name the maintenances update and second.
func markedBy(n *corev1.Node) {
	n.Annotations = map[string]string{
		v1alpha1.AnnotationCordonedBy: `{"storage":"s","maintenances":{"update":"uid-update","second":"uid-second"}}`,
	}
}

// TestAWorkerFindsThePodsStopped completes the maintenance of a worker that works on the node: the
// pod stays stopped until the worker reports.
func TestAWorkerFindsThePodsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.editNode(markedBy)
		w.editMaintenance("update", inTask(v1alpha1.NodeTaskOffered))
		w.wantHappened("run web", "TERM web", "stop web")
		w.editMaintenance("update", inTask(v1alpha1.NodeTaskClaimed))
		w.editMaintenance("update", inStage(complete))
		w.wantHappened("run web", "TERM web", "stop web")
		w.editMaintenance("update", inTask(v1alpha1.NodeTaskVerifying))
		w.wantHappened("run web", "TERM web", "stop web", "run web")
	})
}

// TestPodsComeBackBeforeTheRelease has a second maintenance target the pod, too: nobody drains the
// node before the first one has released it.
func TestPodsComeBackBeforeTheRelease(t *testing.T) {
	for _, state := range []v1alpha1.NodeTaskState{v1alpha1.NodeTaskVerifying, v1alpha1.NodeTaskFailed, v1alpha1.NodeTaskDone} {
		t.Run(string(state), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := drained(t)
				w.editNode(markedBy)
				w.add(drain("second", v1alpha1.MaxPodPriority))
				w.editMaintenance("update", inTask(v1alpha1.NodeTaskClaimed))
				w.wantHappened("run web", "TERM web", "stop web")
				w.editMaintenance("update", inTask(state))
				w.wantHappened("run web", "TERM web", "stop web", "run web")
			})
		})
	}
}
