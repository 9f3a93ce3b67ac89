// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// inTask sets the state of the work on the node that a maintenance records.
func inTask(state v1alpha1.NodeTaskState) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.NodeStatuses[1].Task = &v1alpha1.NodeMaintenanceNodeTask{State: state}
	}
}

func withTask(stage v1alpha1.NodeTaskStage) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Task = &v1alpha1.NodeMaintenanceTask{Stage: stage} }
}

// shutdownName is the name of a maintenance of a shutdown of the node.
var shutdownName = protocol.ShutdownName(node, "boot-1")

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

// TestPodsComeBackWithinTheShortestDeadline has a worker report at different times: the node may
// have a minute to become Ready, and the Keeper reads other maintenances once a minute.
func TestPodsComeBackWithinTheShortestDeadline(t *testing.T) {
	for _, after := range []time.Duration{0, 20 * time.Second, 40 * time.Second} {
		bubble.Run(t, after.String(), func(t *testing.T) {
			w := drained(t)
			w.editNode(markedBy)
			w.editMaintenance("update", withTask(v1alpha1.NodeTaskStageDrain))
			w.editMaintenance("update", inTask(v1alpha1.NodeTaskClaimed))
			w.pass(3*time.Minute + after)
			w.editMaintenance("update", inTask(v1alpha1.NodeTaskVerifying))
			w.pass(40 * time.Second)
			is.True(t, w.kubelet.uid("web") != "", "the pod does not run after 40 seconds, of which the kubelet may take 20")
		})
	}
}

// TestPodsComeBackAfterTheMaintenanceEnded has a second maintenance target the pod of a node whose
// maintenance is complete before its worker.
func TestPodsComeBackAfterTheMaintenanceEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := drained(t)
		w.editNode(markedBy)
		w.add(drain("second", v1alpha1.MaxPodPriority))
		w.editMaintenance("update", inTask(v1alpha1.NodeTaskClaimed))
		w.editMaintenance("update", inStage(complete))
		w.wantHappened("run web", "TERM web", "stop web")
		w.editMaintenance("update", inTask(v1alpha1.NodeTaskVerifying))
		w.wantHappened("run web", "TERM web", "stop web", "run web")
	})
}

// TestTargetingOfANodeInHands covers the maintenances that target a pod of a node on which a worker
// has ended its work.
func TestTargetingOfANodeInHands(t *testing.T) {
	for name, tc := range map[string]struct {
		stage v1alpha1.NodeTaskStage
		state v1alpha1.NodeTaskState
		want  []string
	}{
		"drained for the worker, which works":        {v1alpha1.NodeTaskStageDrain, v1alpha1.NodeTaskClaimed, []string{"worker", "second", shutdownName}},
		"drained for the worker, which has failed":   {v1alpha1.NodeTaskStageDrain, v1alpha1.NodeTaskFailed, nil},
		"offered with its pods, the work has failed": {v1alpha1.NodeTaskStageCordon, v1alpha1.NodeTaskFailed, []string{shutdownName}},
	} {
		t.Run(name, func(t *testing.T) {
			list := []v1alpha1.NodeMaintenance{
				*drain("worker", v1alpha1.MaxPodPriority, withTask(tc.stage), inTask(tc.state)), *drain("second", v1alpha1.MaxPodPriority),
				*drain(shutdownName, v1alpha1.MaxPodPriority, func(nm *v1alpha1.NodeMaintenance) {
					nm.Annotations = map[string]string{v1alpha1.AnnotationBootID: "boot-1"}
					nm.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
						{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
					}}}}
				}),
			}
			found := must.Get(targeting(list, v1alpha1.NodeReference{Name: node}, 0, nil))(t)
			var got []string
			for _, m := range found {
				got = append(got, m.Name)
			}
			is.True(t, slices.Equal(got, tc.want), "got %v, want %v", got, tc.want)
		})
	}
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
