// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	hostfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/selection"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// newIdle returns a controller over 5,000 nodes that does not run, with its cache of nodes.
func newIdle(b testing.TB) (*Controller, cache.Store) {
	b.Helper()
	cluster := must.Get(host.NewCluster(host.Clients{
		Client: hostfake.NewClientset(), Maintenance: maintenancefake.NewClientset(), Recorder: events.NewFakeRecorder(1),
	}, 0))(b)
	now, nodes := clock.RealClock{}, cluster.Nodes.Informer()
	selected := must.Get(selection.New(nodes, cluster.NodeMaintenances.Informer(), now))(b)
	c := must.Get(New(Config{
		Cluster: cluster, Clock: now, Selection: selected, MaxUnavailableNodes: 20,
		Rights: rights.NewCache(rights.CacheConfig{Authorizer: &refusals{}, Clock: now}),
	}))(b)
	for i := range 5000 {
		must.Do(b, nodes.GetStore().Add(newNode(fmt.Sprintf("node-%d", i))))
	}
	return c, nodes.GetStore()
}

// change changes a node in the cache, as an event does.
func change(b testing.TB, c *Controller, nodes cache.Store, modify ...func(*corev1.Node)) {
	b.Helper()
	before, node := newNode("node-0"), newNode("node-0", modify...)
	must.Do(b, nodes.Update(node))
	c.nodeChanged(selection.NodeChange{Old: before, New: node})
}

// BenchmarkSync is what an event of a node costs each rollout: the facts about 5,000 nodes, one of
// which has changed, and the decision. Compare it with the debounce.
func BenchmarkSync(b *testing.B) {
	c, nodes := newIdle(b)
	r := newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.Template.Task.DoneWhen = "node.status.nodeInfo.kernelVersion == '6.12'"
	})
	cordoned := false
	for b.Loop() {
		cordoned = !cordoned
		change(b, c, nodes, func(n *corev1.Node) { n.Spec.Unschedulable = cordoned })
		if d := decide(must.Get(c.gather(b.Context(), r))(b)); d.status.Nodes.Total != 5000 {
			b.Fatalf("got %+v", d.status.Nodes)
		}
	}
}

// BenchmarkRound is a round after an event of a node: each of 20 rollouts selects its share of the
// nodes. Compare it with BenchmarkPlan of pkg/drain/plan.
func BenchmarkRound(b *testing.B) {
	c, nodes := newIdle(b)
	var rollouts []*v1alpha1.NodeMaintenanceRollout
	for i := range 20 {
		rollouts = append(rollouts, newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
			r.Name, r.UID = fmt.Sprint("r", i), types.UID(fmt.Sprint("uid-r", i))
			r.Spec.NodeSelector = build.Labelled("share", fmt.Sprint(i))
		}))
	}
	for i := range 5000 {
		must.Do(b, nodes.Update(newNode(fmt.Sprintf("node-%d", i), func(n *corev1.Node) { n.Labels["share"] = fmt.Sprint(i % 20) })))
	}
	cordoned := false
	for b.Loop() {
		cordoned = !cordoned
		change(b, c, nodes, func(n *corev1.Node) { n.Spec.Unschedulable, n.Labels["share"] = cordoned, "0" })
		for _, r := range rollouts {
			if d := decide(must.Get(c.gather(b.Context(), r))(b)); d.status.Nodes.Total != 250 {
				b.Fatalf("got %+v", d.status.Nodes)
			}
		}
	}
}

// TestPodsThatHaveToLeave counts the pods by which units are ordered.
func TestPodsThatHaveToLeave(t *testing.T) {
	c, _ := newIdle(t)
	node := newNode("node-0")
	owned := func(apiVersion, kind string, uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "owner", UID: uid, Controller: ptr.To(true)}}
	}
	for name, pod := range map[string]corev1.Pod{
		"runs":      {Status: corev1.PodStatus{Phase: corev1.PodRunning}},
		"starts":    {ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("apps/v1", "ReplicaSet", "web")}},
		"completed": {Status: corev1.PodStatus{Phase: corev1.PodSucceeded}},
		"failed":    {Status: corev1.PodStatus{Phase: corev1.PodFailed}},
		"of a set":  {ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("apps/v1", "DaemonSet", "log")}},
		"static":    {ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("v1", "Node", node.UID), Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x"}}},
		"elsewhere": {Spec: corev1.PodSpec{NodeName: "node-1"}},
	} {
		pod.Namespace, pod.Name, pod.Spec.NodeName = "shop", name, cmp.Or(pod.Spec.NodeName, node.Name)
		must.Do(t, c.Cluster.Pods.Store().Add(&pod))
	}
	is.Equal(t, c.podsOn(node), 2)
}

// TestNodesAreShared: syncs that follow each other share the nodes, until one of these, or a
// maintenance that holds one, has changed, or they are too old.
func TestNodesAreShared(t *testing.T) {
	c, store := newIdle(t)
	now := c.Clock.Now()
	same := func(what string, at time.Time, want bool) {
		t.Helper()
		before := c.nodes
		is.Equal(t, c.nodesAt(at) == before, want, what)
	}
	same("at first", now, false)
	same("a moment later", now.Add(maxNodesAge/2), true)
	same("later", now.Add(maxNodesAge), false)
	now = now.Add(maxNodesAge)
	change(t, c, store)
	same("after a heartbeat", now, true)
	change(t, c, store, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	same("after a cordon", now, false)
	is.Equal(t, c.nodes.byName["node-0"].Spec.Unschedulable, true)
	nm := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.NodeMaintenanceStageDrain}}
	c.maintenanceChanged(nil, nm)
	same("after the start of a maintenance", now, false)
	counted := nm.DeepCopy()
	counted.Status.PodsGone = 1
	c.maintenanceChanged(nm, counted)
	same("after a count", now, true)
	refused := nm.DeepCopy()
	refused.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{Reason: v1alpha1.NodeStatusTooManyMaintenances}}
	c.maintenanceChanged(nm, refused)
	same("after it is refused a node", now, false)
	ended := nm.DeepCopy()
	ended.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete
	c.maintenanceChanged(nm, ended)
	same("after the end of a maintenance", now, false)
}
