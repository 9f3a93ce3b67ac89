// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// tape writes a log. Each event increases the version of its server and is one second after the
// event before it.
type tape struct {
	t     *testing.T
	log   Log
	host  int
	ours  int
	nodes map[string]*corev1.Node
	pods  map[string]*corev1.Pod
	nms   map[string]*v1alpha1.NodeMaintenance
	evacs map[string]*v1alpha1.Evacuation
}

func newTape(t *testing.T) *tape {
	t.Helper()
	return &tape{
		t: t, host: 100, ours: 7, nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{},
		nms: map[string]*v1alpha1.NodeMaintenance{}, evacs: map[string]*v1alpha1.Evacuation{},
	}
}

func (p *tape) now() time.Time { return time.Unix(int64(p.host), 0) }

func (p *tape) onHost(kind watch.EventType, object interface {
	metav1.Object
	runtime.Object
}) {
	p.t.Helper()
	p.host++
	object.SetResourceVersion(strconv.Itoa(p.host))
	must.Do(p.t, p.log.addHost(watch.Event{Type: kind, Object: object.DeepCopyObject()}, p.now()))
}

func (p *tape) onOurs(kind watch.EventType, object interface {
	metav1.Object
	runtime.Object
}) {
	p.t.Helper()
	p.host++
	p.ours++
	object.SetResourceVersion(strconv.Itoa(p.ours))
	event := watch.Event{Type: kind, Object: object.DeepCopyObject()}
	must.Do(p.t, p.log.addHaulout(event, p.now(), false, moment(p.host)))
}

// node creates or changes a node in a pool.
func (p *tape) node(name, pool string, modify ...func(*corev1.Node)) {
	p.t.Helper()
	node := p.nodes[name]
	if node == nil {
		node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		p.nodes[name] = node
	}
	node.Labels = map[string]string{"pool": pool}
	for _, m := range modify {
		m(node)
	}
	p.onHost(watch.Modified, node)
}

func closed(n *corev1.Node) { n.Spec.Unschedulable = true }
func open(n *corev1.Node)   { n.Spec.Unschedulable = false }

// pod makes a pod.
func (p *tape) pod(name, node string, priority int32, modify ...func(*corev1.Pod)) {
	p.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{NodeName: node, Priority: &priority},
	}
	for _, m := range modify {
		m(pod)
	}
	p.pods[name] = pod
	p.onHost(watch.Added, pod)
}

func ofDaemonSet(p *corev1.Pod) {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Controller: &yes}}
}

// ask creates an Evacuation for each of the pods, and evicts them.
func (p *tape) ask(names ...string) {
	p.t.Helper()
	for _, name := range names {
		p.evacuation(name, v1alpha1.FinalizerInstigatorNodeMaintenance)
		p.evict(name)
	}
}

func (p *tape) evacuation(name string, finalizers ...string) {
	p.t.Helper()
	e := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID("evacuation-" + name), Finalizers: finalizers,
		},
		Spec: v1alpha1.EvacuationSpec{PodRef: v1alpha1.PodReference{Name: name, UID: types.UID(name)}},
	}
	p.evacs[name] = e
	p.onOurs(watch.Added, e)
}

func (p *tape) evict(name string) {
	p.t.Helper()
	p.log.Calls = append(p.log.Calls, Call{
		Verb: "create", Subresource: "eviction", Namespace: "shop", Name: name, UID: types.UID(name), User: "haulout",
		Code: 201, Received: p.now(), Answered: p.now(),
	})
	pod := p.pods[name]
	pod.DeletionTimestamp = &metav1.Time{Time: p.now()}
	p.onHost(watch.Modified, pod)
}

// scaleDown lowers the deletion cost of a pod, which then ends because its Deployment was scaled
// down.
func (p *tape) scaleDown(name string) {
	p.t.Helper()
	pod := p.pods[name]
	pod.Annotations = map[string]string{
		corev1.PodDeletionCost: "-2147483647", v1alpha1.AnnotationOriginalPodDeletionCost: "",
	}
	p.onHost(watch.Modified, pod)
	pod.DeletionTimestamp = &metav1.Time{Time: p.now()}
	p.onHost(watch.Modified, pod)
}

// end ends pods and their Evacuations.
func (p *tape) end(names ...string) {
	p.t.Helper()
	for _, name := range names {
		p.onHost(watch.Deleted, p.pods[name])
		if e := p.evacs[name]; e != nil {
			p.onOurs(watch.Deleted, e)
		}
	}
}

// firstWave asks the pods of the first wave to leave, and lets them end.
func (p *tape) firstWave() {
	p.t.Helper()
	p.ask("low-1", "low-2")
	p.end("low-1", "low-2")
}

// plan returns a drain plan with a wave for each of the priorities.
func plan(priorities ...int32) []v1alpha1.DrainPlanEntry {
	var out []v1alpha1.DrainPlanEntry
	for _, priority := range priorities {
		out = append(out, v1alpha1.DrainPlanEntry{PodPriority: priority, PodType: v1alpha1.PodTypeDefault})
	}
	return out
}

// drain creates a maintenance of a pool with two waves, up to the priorities 1000 and 2000.
func (p *tape) drain(name, pool string, modify ...func(*v1alpha1.NodeMaintenance)) {
	p.t.Helper()
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageDrain, DrainPlan: plan(1000, 2000),
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: strings.Split(pool, ",")},
				},
			}}},
		},
	}
	for _, m := range modify {
		m(nm)
	}
	p.nms[name] = nm
	p.onOurs(watch.Added, nm)
}

// reach writes the targets of nodes into the status of a maintenance. Without nodes, the
// maintenance releases all nodes.
func (p *tape) reach(name string, priority int32, nodes ...string) {
	p.t.Helper()
	p.say(name, plan(priority), nodes...)
}

// silent adds nodes without targets to the status of a maintenance.
func (p *tape) silent(name string, nodes ...string) {
	p.t.Helper()
	p.say(name, nil, nodes...)
}

func (p *tape) say(name string, targets []v1alpha1.DrainPlanEntry, nodes ...string) {
	p.t.Helper()
	nm := p.nms[name]
	nm.Status.NodeStatuses = nil
	for _, node := range nodes {
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: v1alpha1.NodeReference{Name: node, UID: types.UID(node)}, DrainTargets: targets,
		})
	}
	p.onOurs(watch.Modified, nm)
}

func (p *tape) complete(name string) {
	p.t.Helper()
	p.nms[name].Spec.Stage = v1alpha1.NodeMaintenanceStageComplete
	p.onOurs(watch.Modified, p.nms[name])
}

// pause sets or clears spec.paused of a maintenance.
func (p *tape) pause(name string, paused bool) {
	p.t.Helper()
	p.nms[name].Spec.Paused = paused
	p.onOurs(watch.Modified, p.nms[name])
}

// shareNodeOne replaces maintenance a by one of all nodes and one of the nodes one and green. The
// pods of the first wave have left the shared nodes.
func (p *tape) shareNodeOne() {
	p.t.Helper()
	p.complete("a")
	p.node("one", "green")
	p.drain("both", "blue,green")
	p.drain("b", "green")
	p.ask("low-1", "other")
	p.end("low-1", "other")
}

// expect compares the findings with parts of the expected texts.
func expect(t *testing.T, found []string, want ...string) {
	t.Helper()
	must.True(t, len(found) == len(want), "got %q, want %d findings", found, len(want))
	for _, part := range want {
		if !slices.ContainsFunc(found, func(text string) bool { return strings.Contains(text, part) }) {
			t.Errorf("%q is not in %q", part, found)
		}
	}
}

// begin creates two nodes of one pool, a pod of the first wave on each, and a pod of the second
// wave.
func begin(p *tape) {
	p.node("one", "blue")
	p.node("two", "blue")
	p.node("green", "green")
	p.pod("low-1", "one", 0)
	p.pod("low-2", "two", 1000)
	p.pod("high-1", "one", 1001)
	p.pod("other", "green", 0)
	p.log.begin()
}

func TestOutOfOrder(t *testing.T) {
	for name, test := range map[string]struct {
		play func(p *tape)
		want []string
	}{
		"waves one after another are right": {play: func(p *tape) {
			p.reach("a", 1000, "one", "two")
			p.firstWave()
			p.reach("a", 2000, "one", "two")
			p.ask("high-1")
		}},
		"an evacuation before the wave before it has left another node": {
			want: []string{"shop/high-1 on node one, in wave 2 of a, was asked to leave while shop/low-2 on node two"},
			play: func(p *tape) {
				p.ask("low-1", "low-2")
				p.end("low-1")
				p.evacuation("high-1", v1alpha1.FinalizerInstigatorNodeMaintenance)
				p.end("low-2")
				p.evict("high-1")
			},
		},
		"a maintenance waits for the pods of another one": {want: []string{"in wave 2 of both, was asked to leave while shop/low-2"}, play: func(p *tape) {
			p.shareNodeOne()
			p.ask("high-1")
		}},
		"a maintenance does not wait for the pods of a paused one": {play: func(p *tape) {
			p.shareNodeOne()
			p.pause("both", true)
			p.ask("high-1")
		}},
		"an eviction without an evacuation, before its turn": {want: []string{"shop/high-1"}, play: func(p *tape) { p.evict("high-1") }},
		"pods that are asked although the status opened their wave too early": {
			want: []string{"shop/high-1"},
			play: func(p *tape) {
				p.reach("a", 2000, "one", "two")
				p.firstWave()
				p.ask("high-1")
			},
		},
		"everything seen together, but in the wrong order": {want: []string{"shop/high-1"}, play: func(p *tape) {
			p.reach("a", 2000, "one", "two")
			p.evacuation("high-1", v1alpha1.FinalizerInstigatorNodeMaintenance)
		}},
		"what Haulout's server shows late came before what followed from it": {play: func(p *tape) {
			p.evict("high-1")
			p.complete("a")
			p.evacuation("high-1", v1alpha1.FinalizerInstigatorNodeMaintenance)
		}},
		"and is wrong in the wrong order": {want: []string{"shop/high-1"}, play: func(p *tape) {
			p.evict("high-1")
			p.evacuation("high-1", v1alpha1.FinalizerInstigatorNodeMaintenance)
			p.complete("a")
		}},
		"waves of pods that leave when their Deployment is scaled back are right": {play: func(p *tape) {
			p.reach("a", 1000, "one", "two")
			for _, name := range []string{"low-1", "low-2"} {
				p.evacuation(name, v1alpha1.FinalizerInstigatorNodeMaintenance)
				p.scaleDown(name)
				p.end(name)
			}
			p.reach("a", 2000, "one", "two")
			p.evacuation("high-1", v1alpha1.FinalizerInstigatorNodeMaintenance)
			p.scaleDown("high-1")
		}},
		"a surge for a pod whose turn has not come is wrong, also when it ends in time": {
			want: []string{"shop/high-1"},
			play: func(p *tape) {
				p.evacuation("high-1", v1alpha1.FinalizerInstigatorNodeMaintenance)
				p.firstWave()
				p.scaleDown("high-1")
			},
		},
		"a scale-down by a pod that was not asked, before its turn": {
			want: []string{"shop/high-1"},
			play: func(p *tape) { p.scaleDown("high-1") },
		},
		"what Haulout's server shows later than a scale-down came before it": {play: func(p *tape) {
			p.scaleDown("high-1")
			p.complete("a")
			p.evacuation("high-1", v1alpha1.FinalizerInstigatorNodeMaintenance)
		}},
		"a pod that was not asked but ended by itself is no fault": {play: func(p *tape) { p.end("high-1") }},
		"a pod that another client asked to leave is no fault": {play: func(p *tape) {
			p.evacuation("high-1", "evacuation.coordination.k8s.io/instigator_example.com")
			p.evict("high-1")
		}},
		"a pod that comes after the next wave was opened is late": {play: func(p *tape) {
			p.firstWave()
			p.reach("a", 2000, "one", "two")
			p.pod("late", "two", 0)
			p.ask("high-1")
		}},
		"a pod that comes before the next wave is opened is waited for": {
			want: []string{"while shop/late on node two"},
			play: func(p *tape) {
				p.ask("low-1", "low-2")
				p.pod("late", "two", 0)
				p.end("low-1", "low-2")
				p.reach("a", 2000, "one", "two")
				p.ask("high-1")
			},
		},
		"a pod that the scheduler puts behind a cordon at the very last moment cannot be known": {play: func(p *tape) {
			p.node("two", "blue", closed)
			p.firstWave()
			p.pod("late", "two", 0)
			p.reach("a", 2000, "one", "two")
			p.ask("high-1")
		}},
		"one that has been there for long can": {want: []string{"while shop/late on node two"}, play: func(p *tape) {
			p.node("two", "blue", closed)
			p.ask("low-1", "low-2")
			p.pod("late", "two", 0)
			p.host += 20 // seconds, too
			p.end("low-1", "low-2")
			p.reach("a", 2000, "one", "two")
			p.ask("high-1")
		}},
		"a node that joins late does not hold back what was opened before": {play: func(p *tape) {
			p.firstWave()
			p.reach("a", 2000, "one", "two")
			p.node("green", "blue")
			p.ask("high-1")
		}},
		"but its own pods leave in order": {want: []string{"shop/vip on node green"}, play: func(p *tape) {
			p.pod("vip", "green", 2000)
			p.firstWave()
			p.reach("a", 2000, "one", "two")
			p.node("green", "blue")
			p.ask("vip")
		}},
		"a node that was released does not count": {play: func(p *tape) {
			p.ask("low-1")
			p.end("low-1")
			p.node("two", "grey")
			p.ask("high-1")
		}},
		"a maintenance that joins late is fast-forwarded": {play: func(p *tape) {
			p.firstWave()
			p.reach("a", 2000, "one", "two")
			p.drain("b", "blue,green")
			p.ask("high-1")
		}},
		"a maintenance that joins in time has its say": {want: []string{"in wave 2 of b"}, play: func(p *tape) {
			p.firstWave()
			p.drain("b", "blue,green")
			p.reach("a", 2000, "one", "two")
			p.ask("high-1")
		}},
		"a maintenance whose order was overridden, as an event says, has none": {play: func(p *tape) {
			p.onHost(watch.Added, &eventsv1.Event{Regarding: corev1.ObjectReference{UID: "a"}})
			p.ask("high-1")
		}},
		"a maintenance that is complete waits for nothing": {play: func(p *tape) {
			p.complete("a")
			p.evict("high-1")
		}},
		"a pod that is left running holds nothing up": {play: func(p *tape) {
			p.pod("logs", "one", 0, ofDaemonSet)
			p.firstWave()
			p.ask("high-1")
		}},
		"a pod that should have been left running was asked": {
			want: []string{"shop/logs was asked to leave, although"},
			play: func(p *tape) {
				p.pod("logs", "one", 0, ofDaemonSet)
				p.ask("logs")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTape(t)
			begin(p)
			p.drain("a", "blue")
			test.play(p)
			expect(t, outOfOrder(p.log, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic), test.want...)
		})
	}
}

func TestEvacuatedCountsPods(t *testing.T) {
	for name, leave := range map[string]func(*tape, string){
		"that leave by eviction": func(p *tape, name string) { p.ask(name) },
		"that leave by scale-down": func(p *tape, name string) {
			p.evacuation(name, v1alpha1.FinalizerInstigatorNodeMaintenance)
			p.scaleDown(name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTape(t)
			begin(p)
			p.drain("a", "blue")
			p.reach("a", 1000, "one", "two")
			for _, name := range []string{"low-1", "low-2"} {
				leave(p, name)
				p.end(name)
			}
			p.reach("a", 2000, "one", "two")
			leave(p, "high-1")
			is.Equal(t, len(Evacuated(p.log)), 3, "pods were evacuated")
		})
	}
}

func TestOutOfOrderRefusesAPlanThatMoved(t *testing.T) {
	p := newTape(t)
	begin(p)
	p.drain("a", "blue")
	p.nms["a"].Spec.DrainPlan = plan(5)
	p.onOurs(watch.Modified, p.nms["a"])
	expect(t, outOfOrder(p.log), "cannot be judged")

	t.Run("on nodes that were not recorded", func(t *testing.T) {
		p := newTape(t)
		begin(p)
		p.drain("a", "red")
		p.nms["a"].Spec.DrainPlan = plan(5)
		p.onOurs(watch.Modified, p.nms["a"])
		expect(t, outOfOrder(p.log))
	})
}
