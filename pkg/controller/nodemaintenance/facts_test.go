// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/podcache"
)

// noon is the time of the first decision in these tests.
var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// world has the inputs of decisions, without caches, clock and clients.
type world struct {
	t     *testing.T
	facts *facts
	// evacuators are the enabled built-in evacuators.
	evacuators sets.Set[string]
	nodes      []*corev1.Node
	pods       map[string]nodestate.Pod
}

// newWorld returns a world in which nodes have been cordoned for an hour.
func newWorld(t *testing.T, nm *v1alpha1.NodeMaintenance, nodes ...*corev1.Node) *world {
	t.Helper()
	w := &world{t: t, nodes: nodes, pods: map[string]nodestate.Pod{}, evacuators: sets.New[string](), facts: &facts{
		now: noon, subject: &member{NodeMaintenance: nm}, refusals: map[types.UID]refusal{}, troubles: map[string]loop.Failure{},
		stallTimeout: DefaultStallTimeout, longGrace: protocol.DefaultLongGrace,
	}}
	for _, node := range nodes {
		cordoned(node)
		w.facts.subject.nodes = append(w.facts.subject.nodes, memberNode{Node: node})
		w.facts.subject.inside = append(w.facts.subject.inside, node)
	}
	if v1alpha1.IsDraining(nm) {
		w.facts.draining = []*member{w.facts.subject}
	}
	return w
}

// run adds a running pod without an Evacuation to its node.
func (w *world) run(pod *corev1.Pod, modify ...func(*nodestate.Pod)) {
	node := w.node(podcache.NodeOf(pod))
	p := nodestate.NewPod(pod, node, w.evacuators)
	for _, m := range modify {
		m(&p)
	}
	w.pods[pod.Name] = p
}

// change changes a pod of the world.
func (w *world) change(name string, modify func(*nodestate.Pod)) {
	p := w.pods[name]
	modify(&p)
	w.pods[name] = p
}

// evacuated adds an Evacuation of ours to a pod.
func evacuated(modify ...func(*v1alpha1.Evacuation)) func(*nodestate.Pod) {
	return func(p *nodestate.Pod) {
		p.Evacuation = ourEvacuation(p.Name, p.Node, modify...)
		p.Ours = nodestate.IsOurs(p.Evacuation)
	}
}

// gone removes pods.
func (w *world) gone(names ...string) {
	for _, name := range names {
		delete(w.pods, name)
	}
}

func (w *world) node(name string) *corev1.Node {
	for _, node := range w.nodes {
		if node.Name == name {
			return node
		}
	}
	w.t.Fatalf("no node %s", name)
	return nil
}

// outside excludes a node from the waves.
func (w *world) outside(name string, why exclusion) {
	m := w.facts.subject
	for i := range m.nodes {
		if m.nodes[i].Name == name {
			m.nodes[i].outside = &why
		}
	}
	m.inside = slices.DeleteFunc(m.inside, func(node *corev1.Node) bool { return node.Name == name })
}

// decide makes a decision, stores the status, and adds Evacuations to the pods that are asked to
// leave. It returns the decision and the names of these pods.
func (w *world) decide() (*decision, []string) {
	w.t.Helper()
	w.facts.views = map[string]*nodestate.View{}
	for _, node := range w.nodes {
		view := &nodestate.View{Plan: &drainplan.Node{Name: node.Name, UID: node.UID}}
		for _, pod := range w.pods {
			if pod.Node != node.Name {
				continue
			}
			view.Pods = append(view.Pods, pod)
			if pod.Kept == "" {
				view.Plan.Pods = append(view.Plan.Pods, pod.Plan)
			}
		}
		slices.SortFunc(view.Pods, func(a, b nodestate.Pod) int { return strings.Compare(a.Name, b.Name) })
		w.facts.views[node.Name] = view
	}
	d, err := decide(w.facts)
	if err != nil {
		w.t.Fatal(err)
	}
	stored := w.facts.subject.DeepCopy()
	stored.Status = d.status
	w.facts.subject.NodeMaintenance = stored
	asked := []string{}
	if !v1alpha1.IsEnding(stored) {
		work, _ := due(w.facts, d)
		for _, pod := range work {
			asked = append(asked, pod.Name)
			w.change(pod.Name, evacuated())
		}
	}
	slices.Sort(asked)
	return d, asked
}

// after advances the time and makes a decision.
func (w *world) after(wait time.Duration) *decision {
	w.t.Helper()
	w.facts.now = w.facts.now.Add(wait)
	d, _ := w.decide()
	return d
}

// wantAsked makes a decision and checks which pods are asked to leave for the first time.
func (w *world) wantAsked(want ...string) *decision {
	w.t.Helper()
	d, asked := w.decide()
	if !slices.Equal(asked, append([]string{}, want...)) {
		w.t.Errorf("asked %q to leave, want %q", asked, want)
	}
	return d
}

func (d *decision) condition(conditionType string) (reason, message string) {
	c := conditionOf(&v1alpha1.NodeMaintenance{Status: d.status}, conditionType)
	return c.Reason, c.Message
}

// wantReasons checks the reasons of the conditions Drained and Progressing.
func (w *world) wantReasons(d *decision, drained, progressing string) {
	w.t.Helper()
	if got, message := d.condition(v1alpha1.ConditionDrained); got != drained {
		w.t.Errorf("Drained has the reason %s (%s), want %s", got, message, drained)
	}
	if got, message := d.condition(v1alpha1.ConditionProgressing); got != progressing {
		w.t.Errorf("Progressing has the reason %s (%s), want %s", got, message, progressing)
	}
}

// entry returns the entry of a node in the status.
func (w *world) entry(d *decision, node string) v1alpha1.NodeMaintenanceNodeStatus {
	w.t.Helper()
	for _, entry := range d.status.NodeStatuses {
		if entry.NodeRef.Name == node {
			return entry
		}
	}
	w.t.Fatalf("the status has no node %s", node)
	return v1alpha1.NodeMaintenanceNodeStatus{}
}

func wantPart(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("got %q, want it to have %q", text, part)
	}
}
