// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// BenchmarkLook gathers and decides, without writes, for one maintenance of many nodes.
func BenchmarkLook(b *testing.B) {
	for _, size := range []struct{ nodes, podsPerNode int }{{20, 30}, {375, 15}, {5000, 30}} {
		b.Run(fmt.Sprintf("nodes=%d/pods=%d", size.nodes, size.nodes*size.podsPerNode), func(b *testing.B) {
			benchmarkLook(b, size.nodes, size.podsPerNode)
		})
	}
}

func benchmarkLook(b *testing.B, nodes, podsPerNode int) {
	b.Helper()
	c, nm := largeCluster(b, nodes, podsPerNode)
	look := func() {
		f, err := c.gather(b.Context(), nm)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := decide(f); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			for n := range nodes {
				c.state.DropView(fmt.Sprintf("node-%04d", n))
			}
			look()
		}
	})
	b.Run("after a pod event", func(b *testing.B) {
		look()
		for i := 0; b.Loop(); i++ {
			c.state.DropView(fmt.Sprintf("node-%04d", i%nodes))
			look()
		}
	})
}

func TestDecisionsAboutALargeMaintenancePause(t *testing.T) {
	for name, tc := range map[string]struct{ took, want time.Duration }{
		"a short decision":                    {500 * time.Microsecond, debounce},
		"a decision about hundreds of nodes":  {3 * time.Millisecond, 300 * time.Millisecond},
		"the pause is bounded":                {time.Second, maxDebounce},
		"a short decision after a longer one": {0, debounce},
	} {
		t.Run(name, func(t *testing.T) {
			var c Controller
			c.noteDecision("m", time.Minute)
			c.noteDecision("m", tc.took)
			is.Equal(t, c.debounce("m"), tc.want, "a pause of")
		})
	}
}

// TestStatusOf5000NodesFits checks that the largest status of 5,000 nodes can be stored with all
// messages.
func TestStatusOf5000NodesFits(t *testing.T) {
	c, nm := largeCluster(t, 5000, 1)
	f, err := c.gather(t.Context(), nm)
	if err != nil {
		t.Fatal(err)
	}
	d, err := decide(f)
	if err != nil {
		t.Fatal(err)
	}
	status := d.status
	// Use the longest targets that a drain plan without user-defined entries can have.
	for i := range status.NodeStatuses {
		status.NodeStatuses[i].DrainTargets = []v1alpha1.DrainPlanEntry{
			{PodType: v1alpha1.PodTypeDefault, PodPriority: v1alpha1.MaxPodPriority},
			{PodType: v1alpha1.PodTypeDaemonSet, PodPriority: v1alpha1.MaxPodPriority},
			{PodType: v1alpha1.PodTypeStatic, PodPriority: v1alpha1.MaxPodPriority},
		}
		status.NodeStatuses[i].DrainMessage = "Waiting for nodes node-0001, node-0002 and 1234 more."
	}
	full := nm.DeepCopy()
	full.Status = status
	c.keepSmall(full)
	if got := len(full.Status.NodeStatuses); got != 5000 {
		t.Fatalf("got %d node statuses, want 5000", got)
	}
	if slices.ContainsFunc(full.Status.Conditions,
		func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionNodeMessagesOmitted }) {
		t.Errorf("a status of %d bytes did not fit", full.Size())
	}
}

// TestAMaintenanceAsksSoManyPodsAtATime has one pod less than the maximum asked beside those of the
// cluster.
func TestAMaintenanceAsksSoManyPodsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newMaintenance("m"), newPod("first", "one", 0))
		f.step("m")
		f.create(newPod("second", "one", 0))
		f.create(newPod("third", "one", 0))
		f.cached()
		facts, err := f.gather(f.ctx, f.nm("m"))
		must.Do(t, err)
		d, err := decide(facts)
		must.Do(t, err)
		d.counts[0].targeted += maxAsked - 2
		must.Do(t, f.evacuate(f.ctx, facts, d))
		if got := f.evacuating(); len(got) != 2 || got[0] != "first" {
			t.Errorf("got Evacuations of %v, want the first pod and one other", got)
		}
	})
}

func TestPodsThatAreAskedLater(t *testing.T) {
	blocked := []*v1alpha1.Evacuation{ourEvacuation("a", "one")}
	full := remainder{covered: maxAsked + 7, targeted: maxAsked + 7, unasked: 7, leaving: 7, later: 7, evacuating: maxAsked, stuck: maxAsked, blocked: blocked}
	is.True(t, full.isBlocked(), "nothing that is asked moves, and the drain does not count as blocked")
	is.Equal(t, full.progress(), "20007 pods left, 20000 of them evacuating, 20000 blocked; "+
		"7 pods are asked when others have left, since a maintenance asks at most 20000 at the same time")
	one := full
	one.leaving, one.later = 7, 6 // a pod of the server itself is not asked yet, and not leaving
	is.True(t, !one.isBlocked(), "a pod that is asked moves, and the drain counts as blocked")
	free := remainder{covered: 9, targeted: 9, unasked: 7, leaving: 7, later: 7, evacuating: 2, stuck: 2, blocked: blocked}
	is.True(t, !free.isBlocked(), "pods are about to be asked, and the drain counts as blocked")
	is.Equal(t, free.progress(), "9 pods left, 2 of them evacuating, 2 blocked")
}

// largeCluster fills the caches directly: the measured code does not need the informers.
func largeCluster(tb testing.TB, nodes, podsPerNode int) (*Controller, *v1alpha1.NodeMaintenance) {
	tb.Helper()
	f, pods, evacuations := newController(tb)
	nm := newMaintenance("m")
	add := func(err error) {
		if err != nil {
			tb.Fatal(err)
		}
	}
	for n := range nodes {
		node := newNode(fmt.Sprintf("node-%04d", n), cordoned, ownedBy(`{"m":"uid-m"}`), func(node *corev1.Node) {
			node.UID = types.UID(fmt.Sprintf("7c1f4f0e-3a52-4b7d-9e51-%012d", n))
		})
		add(f.nodeIndexer.Add(node))
		f.selection.SetNode(node)
		for p := range podsPerNode {
			pod := newPod(fmt.Sprintf("pod-%04d-%d", n, p), node.Name, int32(p*100))
			add(pods.Add(pod))
			if p%2 == 0 {
				e := ourEvacuation(pod.Name, node.Name)
				add(evacuations.Add(runtime.Object(e)))
			}
		}
	}
	add(f.selection.SetMaintenance(nm))
	return f, nm
}
