// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/drain/forecast/preflight"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// tracked are the finalizers that Kubernetes itself removes when a pod has stopped.
var tracked = sets.New("batch.kubernetes.io/job-tracking")

// Pod has the fields of a pod that a preview needs.
type Pod struct {
	preflight.Pod
	// finalizers keep the pod after it has stopped.
	finalizers []string
}

// Pods collects the pods of some nodes. It is safe for concurrent use by several goroutines that
// add pods. Since there can be very many, it only keeps the needed fields, and shares equal parts.
type Pods struct {
	nodes      map[string]*corev1.Node
	evacuators sets.Set[string]
	nodeOf     func(*corev1.Pod) string

	mu     sync.Mutex
	all    []Pod
	labels map[string]labels.Set
	owners map[types.UID]*metav1.OwnerReference
	texts  map[string]string
	// byNode has the slice of all with the pods of each node, after all is sorted.
	byNode map[string][]Pod
}

// NewPods returns a collection for pods of the nodes, given the enabled built-in evacuators and a
// function that returns the node of a pod.
func NewPods(nodes []*corev1.Node, builtIn sets.Set[string], nodeOf func(*corev1.Pod) string) *Pods {
	p := &Pods{
		nodes: make(map[string]*corev1.Node, len(nodes)), evacuators: builtIn, nodeOf: nodeOf,
		labels: map[string]labels.Set{}, owners: map[types.UID]*metav1.OwnerReference{}, texts: map[string]string{},
	}
	for _, n := range nodes {
		p.nodes[n.Name] = n
	}
	return p
}

// Add adds the pods that belong to the nodes and have not finished. A pod may be added twice.
func (p *Pods) Add(list []corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range list {
		pod := &list[i]
		n := p.nodes[p.nodeOf(pod)]
		if n == nil {
			continue
		}
		seen, counts := preflight.PodOf(pod, n, p.evacuators)
		if !counts {
			continue
		}
		seen.Labels, seen.Namespace, seen.Owner = p.shareLabels(seen.Labels), p.shareText(seen.Namespace), p.shareOwner(seen.Owner)
		p.all = append(p.all, Pod{Pod: seen, finalizers: finalizersOf(pod)})
	}
	p.byNode = nil
}

func finalizersOf(pod *corev1.Pod) []string {
	return slices.DeleteFunc(slices.Clone(pod.Finalizers), tracked.Has)
}

// shareLabels returns a shared copy of equal labels.
func (p *Pods) shareLabels(set labels.Set) labels.Set {
	if len(set) == 0 {
		return nil
	}
	key := set.String()
	if known, ok := p.labels[key]; ok {
		return known
	}
	p.labels[key] = set
	return set
}

func (p *Pods) shareText(text string) string {
	if known, ok := p.texts[text]; ok {
		return known
	}
	p.texts[text] = text
	return text
}

func (p *Pods) shareOwner(owner *metav1.OwnerReference) *metav1.OwnerReference {
	if owner == nil {
		return nil
	}
	if known, ok := p.owners[owner.UID]; ok && known.Name == owner.Name && known.Kind == owner.Kind && known.APIVersion == owner.APIVersion {
		return known
	}
	shared := *owner
	p.owners[owner.UID] = &shared
	return &shared
}

// Len returns how many pods there are.
func (p *Pods) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}

// Namespaces returns the namespaces of the pods.
func (p *Pods) Namespaces() sets.Set[string] {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := sets.New[string]()
	for i := range p.all {
		found.Insert(p.all[i].Namespace)
	}
	return found
}

// Owners calls visit for each pod that a controller owns.
func (p *Pods) Owners(visit func(namespace string, owner *metav1.OwnerReference)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.all {
		if owner := p.all[i].Owner; owner != nil {
			visit(p.all[i].Namespace, owner)
		}
	}
}

// on returns the pods of a node, by namespace and name.
func (p *Pods) on(name string) []Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byNode == nil {
		p.sort()
	}
	return p.byNode[name]
}

func (p *Pods) sort() {
	place := func(a, b Pod) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	}
	slices.SortFunc(p.all, place)
	p.all = slices.CompactFunc(p.all, func(a, b Pod) bool { return place(a, b) == 0 })
	p.byNode = map[string][]Pod{}
	for from := 0; from < len(p.all); {
		to := from + 1
		for to < len(p.all) && p.all[to].Node == p.all[from].Node {
			to++
		}
		p.byNode[p.all[from].Node] = p.all[from:to]
		from = to
	}
}

// Claims returns the volume claims of all pods.
func (p *Pods) Claims() sets.Set[types.NamespacedName] {
	p.mu.Lock()
	defer p.mu.Unlock()
	claims := sets.New[types.NamespacedName]()
	for i := range p.all {
		for _, name := range p.all[i].Claims {
			claims.Insert(types.NamespacedName{Namespace: p.all[i].Namespace, Name: name})
		}
	}
	return claims
}

// planned returns the pods of a node for the planner: all pods that are not kept running.
func (p *Pods) planned(name string) []drainplan.Pod {
	pods := p.on(name)
	out := make([]drainplan.Pod, 0, len(pods))
	for i := range pods {
		if pods[i].Left == "" {
			out = append(out, pods[i].planned())
		}
	}
	return out
}

func (p *Pod) planned() drainplan.Pod {
	return drainplan.Pod{Type: p.Type, Priority: p.Priority, Labels: p.Labels}
}
