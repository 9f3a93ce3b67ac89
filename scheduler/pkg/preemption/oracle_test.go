// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/utils/ptr"
)

// model is a cluster in plain values, with a second, independent implementation of the rules of the
// Eviction API. The tests compare the plugin with it.
type model struct {
	// priority is the priority of the pending pod, cpus is its CPU request.
	priority int32
	cpus     int
	pods     []modelPod
	budgets  []modelBudget
}

type modelPod struct {
	name, node, app string
	class           string
	priority        int32
	started         int
	// ready is true if the pod is healthy, ended if it is being deleted.
	ready, ended bool
	// granted is true if the budget of the pod's app granted its eviction a second ago, leftover if
	// the budget granted the eviction of an earlier pod of the same name.
	granted, leftover bool
}

// modelBudget is the budget of an app, or of all pods if app is "".
type modelBudget struct {
	app     string
	allowed int
	// stale is true if the status is from an earlier spec.
	stale bool
	// lenient is true if the budget always allows evictions of pods that are not ready.
	lenient bool
}

var modelThresholds = map[string]int32{"guarded": 1000, "higher": 2000}

func (m *model) selecting(pod modelPod) []modelBudget {
	return slices.DeleteFunc(slices.Clone(m.budgets), func(b modelBudget) bool { return b.app != "" && b.app != pod.app })
}

// costs reports whether the eviction of the pod uses one of the allowed disruptions.
func (b modelBudget) costs(pod modelPod) bool {
	if pod.ended || pod.granted && b.app == pod.app {
		return false
	}
	return pod.ready || !b.lenient
}

// protects reports whether the pending pod must not break the budgets of the pod.
func (m *model) protects(pod modelPod) bool {
	return modelThresholds[pod.class] > m.priority && slices.ContainsFunc(m.selecting(pod), func(b modelBudget) bool { return b.costs(pod) })
}

// forbids returns why the pods must not all be preempted, or "".
func (m *model) forbids(pods []modelPod) string {
	for _, pod := range pods {
		if !m.protects(pod) {
			continue
		}
		if len(m.selecting(pod)) > 1 {
			return pod.name + " has several budgets"
		}
		for _, b := range m.selecting(pod) {
			cost := 0
			for _, each := range pods {
				if (b.app == "" || b.app == each.app) && b.costs(each) {
					cost++
				}
			}
			if b.stale || cost > b.allowed {
				return fmt.Sprintf("pod %s: %d pods of app %q would be removed, which budget %+v forbids", pod.name, cost, b.app, b)
			}
		}
	}
	return ""
}

// named returns the pods with these names.
func (m *model) named(names ...string) []modelPod {
	return slices.DeleteFunc(slices.Clone(m.pods), func(pod modelPod) bool { return !slices.Contains(names, pod.name) })
}

func (pod modelPod) object() *corev1.Pod {
	p := runningPod(pod.name, pod.priority, onNode(pod.node), ofApp(pod.app), ofClass(pod.class), startedAfter(pod.started))
	p.CreationTimestamp = metav1.NewTime(clockTime.Add(-time.Minute))
	if !pod.ready {
		notReady(p)
	}
	if pod.ended {
		terminating(p)
	}
	return p
}

func (m *model) budgetObjects() []*policyv1.PodDisruptionBudget {
	var objects []*policyv1.PodDisruptionBudget
	for _, b := range m.budgets {
		object := budgetOf(b.app, int32(b.allowed), healthyPods(0, 1))
		object.Status.DisruptedPods = map[string]metav1.Time{}
		if b.app == "" {
			object.Name, object.Spec.Selector = "all", &metav1.LabelSelector{}
		}
		if b.stale {
			stale(object)
		}
		if b.lenient {
			object.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
		}
		for _, pod := range m.pods {
			if b.app == pod.app && pod.granted {
				object.Status.DisruptedPods[pod.name] = metav1.NewTime(clockTime.Add(-time.Second))
			}
			if b.app == pod.app && pod.leftover {
				object.Status.DisruptedPods[pod.name] = metav1.NewTime(clockTime.Add(-90 * time.Second))
			}
		}
		objects = append(objects, object)
	}
	return objects
}

// randomModel creates nodes full of pods. In a simple model, the pods of a budget are either all
// guarded or all unguarded, and no pod has several budgets.
func randomModel(random *rand.Rand, nodes int, simple bool) *model {
	m := &model{priority: []int32{50, 1000, 1500, 2000}[random.IntN(4)], cpus: 1 + random.IntN(3)}
	if simple {
		m.priority = 100
	}
	apps, classes := []string{"web", "db", "cache"}, []string{"", "plain", "guarded", "higher"}
	for i, app := range append(apps, "") {
		if random.IntN(4) == 0 || app == "" && (simple || random.IntN(8) > 0) {
			continue
		}
		m.budgets = append(m.budgets, modelBudget{app: app, allowed: random.IntN(4), stale: random.IntN(8) == 0, lenient: i%2 == 0})
	}
	for n := range nodes {
		for i := range 1 + random.IntN(7) {
			app := random.IntN(3)
			pod := modelPod{
				name: fmt.Sprintf("p%d-%d", n, i), node: fmt.Sprintf("n%d", n), app: apps[app], class: classes[random.IntN(4)],
				priority: random.Int32N(60), started: random.IntN(5),
				ready: random.IntN(4) > 0, ended: random.IntN(8) == 0, granted: random.IntN(8) == 0, leftover: random.IntN(8) == 0,
			}
			if pod.leftover {
				pod.granted = false
			}
			if simple {
				pod.class, pod.ended = []string{"guarded", "plain", "higher"}[app], false
			}
			m.pods = append(m.pods, pod)
		}
	}
	return m
}

// TestOfferBreaksNoBudget preempts all offered victims at the same time, the maximum that a search
// can choose. A victim may only be held back if the offered victims and it together would exceed a
// budget.
func TestOfferBreaksNoBudget(t *testing.T) {
	for seed := range uint64(5000) {
		random := rand.New(rand.NewPCG(seed, 0))
		m := randomModel(random, 1, false)
		var victims []upstream.Victim
		for rest := m.pods; len(rest) > 0; {
			n := min(len(rest), 1+random.IntN(4)/3*2)
			var pods []*corev1.Pod
			for _, pod := range rest[:n] {
				pods = append(pods, pod.object())
			}
			victims, rest = append(victims, victim(t, pods...)), rest[n:]
		}
		offered, held := offer(rulesFor(m.priority, m.budgetObjects()), victims)
		possible := slices.DeleteFunc(slices.Clone(offered), func(v upstream.Victim) bool { return v.Priority() >= m.priority })
		going := strings.Fields(namesOf(possible))
		if why := m.forbids(m.named(going...)); why != "" {
			t.Errorf("seed %d: %q are offered, although %s", seed, going, why)
		}
		for _, v := range held {
			with := append(slices.Clone(going), strings.Fields(namesOf([]upstream.Victim{v}))...)
			if m.forbids(m.named(with...)) == "" {
				t.Errorf("seed %d: %s is held back, although it may leave together with %q", seed, namesOf([]upstream.Victim{v}), going)
			}
		}
	}
}

// search runs upstream's search with our plugin. It returns the victims on each node, and the
// statuses of the nodes without victims.
func (m *model) search(t *testing.T) (victims map[string][]string, statuses map[string]string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := cluster{budgets: m.budgetObjects(), classes: []*schedulingv1.PriorityClass{class("guarded", "1000"), class("higher", "2000"), class("plain", "")}}
	full := map[string]int{}
	for _, pod := range m.pods {
		c.pods = append(c.pods, pod.object())
		full[pod.node]++
	}
	for name, pods := range full {
		c.nodes = append(c.nodes, node(name, pods))
	}
	pending := runningPod("pending", m.priority, onNode(""))
	pending.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *quantity(m.cpus)
	p := c.plugin(t, ctx)
	r := rulesFor(m.priority, c.budgets)
	texts, statuses := dryRun(t, context.WithValue(ctx, attemptKey{}, &attempt{rules: r}), p.Evaluator, pending, c)
	victims = map[string][]string{}
	for name, text := range texts {
		list, _, _ := strings.Cut(text, "]")
		victims[name] = strings.Fields(strings.TrimPrefix(list, "["))
	}
	return victims, statuses
}

// fits reports whether the pending pod fits on the node without the named pods.
func (m *model) fits(node string, gone []modelPod) bool {
	free := 0
	for _, pod := range gone {
		if pod.node == node {
			free++
		}
	}
	return free >= m.cpus
}

// best tries all sets of pods of a node. It reports whether the pod fits after the removal of any
// set of possible victims (any), and of a set that no budget forbids (allowed).
func (m *model) best(node string) (any, allowed bool) {
	pods := slices.DeleteFunc(slices.Clone(m.pods), func(pod modelPod) bool { return pod.node != node || pod.priority >= m.priority })
	for set := range 1 << len(pods) {
		var gone []modelPod
		for i, pod := range pods {
			if set&(1<<i) != 0 {
				gone = append(gone, pod)
			}
		}
		any = any || m.fits(node, gone)
		allowed = allowed || m.fits(node, gone) && m.forbids(gone) == ""
	}
	return any, allowed
}

// TestChosenVictimsBreakNoBudget compares upstream's choice from the offered victims with all
// possible sets.
func TestChosenVictimsBreakNoBudget(t *testing.T) {
	refused, chosen := 0, 0
	for seed := range uint64(200) {
		simple := seed%2 == 0
		m := randomModel(rand.New(rand.NewPCG(seed, 2)), 3, simple)
		victims, statuses := m.search(t)
		for name, names := range victims {
			chosen++
			gone := m.named(names...)
			if why := m.forbids(gone); why != "" || !m.fits(name, gone) {
				t.Errorf("seed %d, node %s: the victims %q are forbidden: %s", seed, name, names, why)
			}
		}
		for name, message := range statuses {
			any, allowed := m.best(name)
			if protected := strings.Contains(message, "PodDisruptionBudgets protect"); protected {
				refused++
				if !any {
					t.Errorf("seed %d, node %s: refused because of budgets, but no victims would help", seed, name)
				}
			} else if any {
				t.Errorf("seed %d, node %s: %q, but victims would help", seed, name, message)
			}
			// If unguarded pods use the same budget, offer may return fewer pods than possible.
			if simple && allowed {
				t.Errorf("seed %d, node %s: refused, although a set of victims exceeds no budget", seed, name)
			}
		}
	}
	if refused == 0 || chosen == 0 {
		t.Errorf("%d nodes were refused and %d had victims: the random models cover too few cases", refused, chosen)
	}
}
