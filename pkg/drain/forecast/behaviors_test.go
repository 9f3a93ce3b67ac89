// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

// forApp sets the plan to one entry for all pods of an app, with a behavior.
func forApp(
	app string, behavior v1alpha1.DrainBehavior, waitSeconds int32,
) func(*v1alpha1.NodeMaintenance) {
	e := entry(ordinary, v1alpha1.MaxPodPriority, app)
	e.Behavior, e.WaitSeconds = &behavior, &waitSeconds
	return planned(e)
}

func draining(since time.Duration) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.Stage = drain
		nm.Status.StageStatuses = []v1alpha1.StageStatus{{Name: drain, StartTimestamp: &metav1.Time{Time: now.Add(-since)}}}
	}
}

func TestBehaviors(t *testing.T) {
	const wait, skip = v1alpha1.DrainBehaviorWaitCompleted, v1alpha1.DrainBehaviorSkip
	beside := func(modifiers ...func(*v1alpha1.NodeMaintenance)) []Member {
		return []Member{{NodeMaintenance: maintenance("other", modifiers...), Nodes: []*corev1.Node{node("n1", cordoned)}}}
	}
	job, always := pod("job", "job", "n1"), pod("always", "job", "n1", serving)
	for name, test := range map[string]struct {
		scene scene
		// waves, blockers and kept are as in outline and troubles, message is that of node n1.
		waves, blockers, kept []string
		message               string
		waiting               int32
	}{
		"a pod that may complete is not asked": {
			scene:    scene{subject: maintenance("subject", forApp("job", wait, 3600)), pods: podList{job, pod("a", "web", "n1")}},
			waves:    list{"0: Default<=1000000000: 2 pods on 1 nodes, 1 asked", "  n1(2) shop/a,job"},
			blockers: list{"Delayed WaitingForCompletion: 1"}, message: "Evacuating", waiting: 1,
		},
		"a node waits only for a pod to complete": {
			scene:    scene{subject: maintenance("subject", forApp("job", wait, 3600)), pods: podList{job}},
			waves:    list{"0: Default<=1000000000: 1 pods on 1 nodes, 0 asked", "  n1(1) shop/job"},
			blockers: list{"Delayed WaitingForCompletion: 1"}, waiting: 1,
			message: "Waiting for 1 pod to complete (until 2026-11-21T09:00:00Z), such as shop/job",
		},
		"a pod that restarts never completes": {
			scene:    scene{subject: maintenance("subject", forApp("job", wait, 0)), pods: podList{always}},
			waves:    list{"0: Default<=1000000000: 1 pods on 1 nodes, 0 asked", "  n1(1) shop/always"},
			blockers: list{"Never WaitingForCompletion: 1"}, message: "Waiting for 1 pod to complete, such as shop/always", waiting: 1,
		},
		"a wait is over": {
			scene: scene{
				subject: maintenance("subject", forApp("job", wait, 3600), draining(time.Hour)), pods: podList{job},
				nodes: []*corev1.Node{node("n1", cordoned)},
			},
			waves: list{"0: Default<=1000000000: 1 pods on 1 nodes, 1 asked", "  n1(1) shop/job"}, message: "Evacuating",
		},
		"a skipped pod is kept, and no wave waits for it": {
			scene: scene{
				subject: maintenance("subject", forApp("job", skip, 0)),
				pods:    podList{job, pod("critical", "web", "n1", withPriority(2000000000))},
			},
			waves: list{"1: Default<=2000000000: 1 pods on 1 nodes, 1 asked", "  n1(1) shop/critical"},
			kept:  list{"pod that the drain plan skips: 1"}, message: "Evacuating",
		},
		"another maintenance drains the pod": {
			scene: scene{subject: maintenance("subject", forApp("job", skip, 0)), pods: podList{job}, draining: beside(draining(0))},
			waves: list{"0: Default<=1000000000: 1 pods on 1 nodes, 1 asked", "  n1(1) shop/job"}, message: "Evacuating",
		},
		"a budget of a pod that may complete is not in the way": {
			scene: scene{
				subject: maintenance("subject", forApp("web", wait, 0)), pods: webs(1),
				budgets: []policyv1.PodDisruptionBudget{web(0, closed)},
			},
			waves:    list{"0: Default<=1000000000: 1 pods on 1 nodes, 0 asked", "  n1(1) shop/web-1"},
			blockers: list{"Delayed WaitingForCompletion: 1"}, message: "Waiting for 1 pod to complete, such as shop/web-1", waiting: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := test.scene.preview(t)
			is.Slices(t, outline(out), test.waves)
			is.Slices(t, troubles(out), test.blockers)
			var kept []string
			for _, k := range out.PodsKept {
				kept = append(kept, fmt.Sprintf("%s: %d", k.Reason, k.PodCount))
			}
			is.Slices(t, kept, test.kept)
			is.Equal(t, out.Nodes[0].Message, test.message)
			is.True(t, out.PodsWaitingCount == test.waiting && out.Nodes[0].PodsWaiting == test.waiting && out.Waves[0].PodsWaiting == test.waiting,
				"got %d, %d and %d waiting pods, want %d", out.PodsWaitingCount, out.Nodes[0].PodsWaiting, out.Waves[0].PodsWaiting, test.waiting)
		})
	}
}

// TestMessagesAboutCompletion checks that the message names the remedy or the time.
func TestMessagesAboutCompletion(t *testing.T) {
	const wait = v1alpha1.DrainBehaviorWaitCompleted
	for name, test := range map[string]struct {
		subject *v1alpha1.NodeMaintenance
		pod     *corev1.Pod
		want    string
	}{
		"never":         {maintenance("subject", forApp("job", wait, 0)), pod("a", "job", "n1", serving), "Set waitSeconds in the entry of the plan"},
		"with a limit":  {maintenance("subject", forApp("job", wait, 60)), pod("a", "job", "n1", serving), "asks those that are left to leave from 2026-11-21T08:01:00Z on"},
		"without limit": {maintenance("subject", forApp("job", wait, 0)), pod("a", "job", "n1"), ", without a limit."},
	} {
		t.Run(name, func(t *testing.T) {
			got := scene{subject: test.subject, pods: podList{test.pod}}.preview(t).Blockers[0].Message
			is.True(t, strings.Contains(got, test.want), "got %q", got)
		})
	}
}

// TestNoWaveWaitsForSkippedPods: the plan skips the pods of a node for which its waves wait.
func TestNoWaveWaitsForSkippedPods(t *testing.T) {
	for behavior, want := range map[v1alpha1.DrainBehavior]string{
		v1alpha1.DrainBehaviorSkip: "Evacuating", v1alpha1.DrainBehaviorDrain: "Waiting for node n2.",
	} {
		first := entry(ordinary, 1000, "web")
		first.Behavior = &behavior
		waiting := maintenance("subject", planned(first, entry(ordinary, v1alpha1.MaxPodPriority, "")), func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.OnExcludedNode = v1alpha1.ExcludedNodeWait
		})
		all := append(pods(1, "critical", "n1", withPriority(2000000000)), pods(1, "web", "n2")...)
		out := scene{subject: waiting, refused: list{"n2"}, pods: all}.preview(t)
		is.Equal(t, out.Nodes[0].Message, want, "message with "+string(behavior))
	}
}
