// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
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
