/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package audit keeps the books of a drain from nothing but the events of the pods, in their order:
// it knows none of what the server under test says or stores, so it can tell whether that kept its
// promises.
package audit

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
)

// Budget is what a PodDisruptionBudget demands and what came of it.
type Budget struct {
	// Name is the namespace and the name.
	Name string
	// Expected is the number of its pods when the books were opened, Floor how many of them must be
	// healthy at any time.
	Expected, Floor int
	// Healthy is how many are healthy now, Lowest how few ever were.
	Healthy, Lowest int
	// Below counts the moments in which a healthy pod was lost that left fewer of them than Floor.
	Below int
	// Disrupted counts the pods that were asked to leave.
	Disrupted int

	namespace string
	selector  labels.Selector
}

// Wave is the pods on the watched nodes that one entry of the drain plan is the first to cover.
type Wave struct {
	// Entry is the entry of the plan.
	Entry v1alpha1.DrainPlanEntry
	// Pods counts the pods that were ever there, Asked those that were asked to leave, Gone those
	// that have left.
	Pods, Asked, Gone int
}

// Left is the number of pods of the wave that are still there.
func (w Wave) Left() int { return w.Pods - w.Gone }

// NodeCount counts the pods on a node that have to leave it: those that were ever there, and those
// that are.
type NodeCount struct {
	Pods, Left int
}

// pod is what is remembered of a pod.
type pod struct {
	name, node, workload string
	healthy, asked       bool
	// replaced says that a Deployment owns the pod, which starts another one before it leaves.
	replaced bool
	// wave is an index of Ledger.waves, or noWave.
	wave    int
	budgets []*Budget
}

const noWave = -1

// Ledger is the books.
type Ledger struct {
	mu      sync.Mutex
	nodes   sets.Set[string]
	open    bool
	events  int
	pods    map[types.UID]*pod
	budgets []*Budget
	waves   []Wave
	// perNode counts the pods of waves on each node.
	perNode map[string]NodeCount
	// healthy counts the healthy pods of each workload, before those it had when the books were
	// opened.
	healthy, before map[string]int
	// lowest is the fewest healthy pods that each Deployment has had since the books were opened.
	lowest map[string]int
	// overtaken describes the first pods that were asked to leave before their turn.
	overtaken []string
	// daemonPods are the names of the pods of DaemonSets on the watched nodes, lostDaemonPods of
	// those that were asked to leave.
	daemonPods, lostDaemonPods []string
}

// New returns empty books about drains of the given nodes.
func New(nodes ...string) *Ledger {
	return &Ledger{
		nodes:   sets.New(nodes...),
		pods:    map[types.UID]*pod{},
		perNode: map[string]NodeCount{},
		healthy: map[string]int{},
		lowest:  map[string]int{},
	}
}

// Open takes what was seen so far for the state before the drain: budgets are worked out against
// the pods that there are, and pods are assigned to the waves of the plan.
func (l *Ledger) Open(budgets []policyv1.PodDisruptionBudget, pods []corev1.Pod, plan []v1alpha1.DrainPlanEntry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, entry := range plan {
		l.waves = append(l.waves, Wave{Entry: entry})
	}
	for i := range budgets {
		b, err := newBudget(&budgets[i], pods)
		if err != nil {
			return err
		}
		l.budgets = append(l.budgets, b)
	}
	for i := range pods {
		l.observe(watch.Added, &pods[i])
	}
	for _, b := range l.budgets {
		b.Lowest = b.Healthy
		if b.Healthy < b.Floor {
			return fmt.Errorf("budget %s is broken before anything has begun: %d healthy pods, at least %d are needed",
				b.Name, b.Healthy, b.Floor)
		}
	}
	l.before = map[string]int{}
	for workload, count := range l.healthy {
		l.before[workload] = count
		if _, ok := l.lowest[workload]; ok {
			l.lowest[workload] = count
		}
	}
	l.open, l.events = true, 0
	return nil
}

func newBudget(pdb *policyv1.PodDisruptionBudget, pods []corev1.Pod) (*Budget, error) {
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("budget %s/%s: %w", pdb.Namespace, pdb.Name, err)
	}
	b := &Budget{Name: pdb.Namespace + "/" + pdb.Name, namespace: pdb.Namespace, selector: selector}
	for i := range pods {
		if b.covers(&pods[i]) {
			b.Expected++
		}
	}
	b.Floor, err = floor(&pdb.Spec, b.Expected)
	if err != nil {
		return nil, fmt.Errorf("budget %s: %w", b.Name, err)
	}
	return b, nil
}

func (b *Budget) covers(p *corev1.Pod) bool {
	return p.Namespace == b.namespace && b.selector.Matches(labels.Set(p.Labels))
}

// floor is how many of the expected pods have to be healthy. Percentages are rounded up, as the
// disruption controller does.
func floor(spec *policyv1.PodDisruptionBudgetSpec, expected int) (int, error) {
	if spec.MaxUnavailable != nil {
		away, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, expected, true)
		return max(expected-away, 0), err
	}
	if spec.MinAvailable == nil {
		return 0, nil
	}
	return intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, expected, true)
}

// Observe enters an event of a pod. Events have to come in the order in which they happened.
func (l *Ledger) Observe(event watch.EventType, p *corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observe(event, p)
}

func (l *Ledger) observe(event watch.EventType, p *corev1.Pod) {
	l.events++
	known, ok := l.pods[p.UID]
	if !ok {
		known = &pod{name: p.Namespace + "/" + p.Name, workload: workloadOf(p), wave: noWave}
		if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "ReplicaSet" {
			known.replaced = true
		}
		for _, b := range l.budgets {
			if b.covers(p) {
				known.budgets = append(known.budgets, b)
			}
		}
		l.pods[p.UID] = known
	}
	if known.node == "" && p.Spec.NodeName != "" {
		known.node = p.Spec.NodeName
		l.assign(known, p)
	}
	finished := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	gone := event == watch.Deleted || finished
	if (p.DeletionTimestamp != nil || event == watch.Deleted) && !known.asked {
		known.asked = true
		l.ask(known)
	}
	l.setHealthy(known, ready(p) && !gone && !known.asked)
	if gone {
		if known.wave != noWave {
			l.waves[known.wave].Gone++
			l.countOnNode(known.node, 0, -1)
			known.wave = noWave
		}
	}
	if event == watch.Deleted {
		delete(l.pods, p.UID)
	}
}

// assign finds the wave of a pod that has come to a node.
func (l *Ledger) assign(known *pod, p *corev1.Pod) {
	if !l.nodes.Has(known.node) {
		return
	}
	if TypeOf(p) == v1alpha1.PodTypeDaemonSet {
		l.daemonPods = append(l.daemonPods, known.name)
		return
	}
	known.wave = slices.IndexFunc(l.waves, func(w Wave) bool { return Covers(w.Entry, p) })
	if known.wave != noWave {
		l.waves[known.wave].Pods++
		l.countOnNode(known.node, 1, 1)
	}
}

func (l *Ledger) countOnNode(node string, pods, left int) {
	count := l.perNode[node]
	l.perNode[node] = NodeCount{count.Pods + pods, count.Left + left}
}

// ask notes that a pod was asked to leave.
func (l *Ledger) ask(known *pod) {
	for _, b := range known.budgets {
		b.Disrupted++
	}
	if slices.Contains(l.daemonPods, known.name) {
		l.lostDaemonPods = append(l.lostDaemonPods, known.name)
	}
	if known.wave == noWave {
		return
	}
	l.waves[known.wave].Asked++
	for i, earlier := range l.waves[:known.wave] {
		if earlier.Left() > 0 {
			l.overtaken = append(
				l.overtaken,
				fmt.Sprintf("pod %s of wave %q was asked to leave while %d pods of wave %q were there",
					known.name, show.Entry(l.waves[known.wave].Entry), earlier.Left(), show.Entry(l.waves[i].Entry)),
			)
			return
		}
	}
}

func (l *Ledger) setHealthy(known *pod, healthy bool) {
	if known.healthy == healthy {
		return
	}
	known.healthy = healthy
	change := 1
	if !healthy {
		change = -1
	}
	if known.workload != "" {
		l.healthy[known.workload] += change
		if known.replaced {
			l.lowest[known.workload] = min(l.lowest[known.workload], l.healthy[known.workload])
		}
	}
	for _, b := range known.budgets {
		b.Healthy += change
		if l.open {
			b.Lowest = min(b.Lowest, b.Healthy)
			if !healthy && b.Healthy < b.Floor {
				b.Below++
			}
		}
	}
}

// Covers reports whether an entry of a plan covers a pod.
func Covers(e v1alpha1.DrainPlanEntry, p *corev1.Pod) bool {
	var priority int32
	if p.Spec.Priority != nil {
		priority = *p.Spec.Priority
	}
	if e.PodType != TypeOf(p) || priority > e.PodPriority {
		return false
	}
	if e.PodSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(e.PodSelector)
	return err == nil && selector.Matches(labels.Set(p.Labels))
}

// TypeOf returns the type of a pod, as its controller tells it.
func TypeOf(p *corev1.Pod) v1alpha1.PodType {
	switch owner := metav1.GetControllerOf(p); {
	case owner == nil:
		return v1alpha1.PodTypeDefault
	case owner.Kind == "DaemonSet":
		return v1alpha1.PodTypeDaemonSet
	case owner.Kind == "Node":
		return v1alpha1.PodTypeStatic
	}
	return v1alpha1.PodTypeDefault
}

// workloadOf names what replaces a pod that goes; empty if nothing does. Pods of the demo carry the
// name of their workload as a label, which spares the way through their ReplicaSet.
func workloadOf(p *corev1.Pod) string {
	if metav1.GetControllerOf(p) == nil || TypeOf(p) == v1alpha1.PodTypeDaemonSet {
		return ""
	}
	return p.Namespace + "/" + p.Labels["app"]
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// unique returns the last parts of names without the random end that their owner gave them.
func unique(names []string) string {
	seen := sets.New[string]()
	for _, name := range names {
		if cut := strings.LastIndex(name, "-"); cut > 0 {
			name = name[:cut]
		}
		seen.Insert(name)
	}
	return strings.Join(sets.List(seen), ", ")
}
