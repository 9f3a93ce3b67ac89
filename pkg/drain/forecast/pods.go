// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/pdb"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// tracked are the finalizers that Kubernetes removes when a pod has stopped.
var tracked = sets.New("batch.kubernetes.io/job-tracking")

// Pod has the fields of a pod that a preview needs. It is small, so that the pods of many nodes fit
// into memory.
type Pod struct {
	Namespace, Name, Node string
	Labels                labels.Set
	// Type and Priority determine the wave of the pod.
	Type     v1alpha1.PodType
	Priority int32
	// Kept is the reason why the drain keeps the pod running; it is empty for a pod that is asked
	// to leave.
	Kept drainplan.KeptReason
	// Owner is the controller of the pod; nil if it has none.
	Owner *metav1.OwnerReference
	// Annotations are the annotations that determine the evacuators, and the mirror annotation.
	Annotations map[string]string
	// Held is set if the Eviction API checks budgets for the pod. It is false for pods that an
	// evacuator removes without an eviction.
	Held bool
	// Restarts is set if the pod's restart policy is Always, which means that the pod is a service
	// and does not run to completion.
	Restarts bool
	// Claims are the names of the volume claims of the pod.
	Claims []string
	// Tied is set if the node selector of the pod names the node, so that the pod cannot start on
	// another node.
	Tied bool
	// Nominated is set if the scheduler has nominated the node for the pod, but not bound the pod
	// to it. A drain does not evict such a pod, and waits until the scheduler drops the nomination
	// or binds the pod to another node.
	Nominated bool
	// Ready is set if the pod counts as healthy for budgets.
	Ready bool
	// GoneBy is the time at which a terminating pod should be gone; zero for other pods.
	GoneBy time.Time
	// finalizers keep the pod object after the pod has stopped.
	finalizers []string
	// responders are the eviction responders that the drain does not ask.
	responders []string
}

// Terminating reports whether the pod is terminating.
func (p *Pod) Terminating() bool { return !p.GoneBy.IsZero() }

// podOf returns the relevant fields of a pod on the node, given the enabled built-in evacuators. It
// returns false for a finished pod.
func podOf(pod *corev1.Pod, node *corev1.Node, builtIn sets.Set[string]) (Pod, bool) {
	if !drainplan.IsLive(pod) {
		return Pod{}, false
	}
	planned := drainplan.PodOf(pod, node.UID)
	p := Pod{
		Namespace: pod.Namespace, Name: pod.Name, Node: node.Name, Labels: pod.Labels,
		Type: planned.Type, Priority: planned.Priority,
		Kept:        drainplan.Kept(pod, planned.Type, node, builtIn),
		Owner:       metav1.GetControllerOfNoCopy(pod),
		Annotations: annotationsOf(pod),
		Held:        planned.Type == v1alpha1.PodTypeDefault && pdb.Holds(pod),
		Restarts:    pod.Spec.RestartPolicy == corev1.RestartPolicyAlways,
		Claims:      claimsOf(pod),
		Tied:        isTied(pod, node),
		Nominated:   pod.Spec.NodeName == "",
		Ready:       pdb.IsReady(pod),
		finalizers:  finalizersOf(pod),
		responders:  protocol.UnaskedResponders(pod),
	}
	if pod.DeletionTimestamp != nil {
		p.GoneBy = pod.DeletionTimestamp.Time
	}
	return p, true
}

func isTied(pod *corev1.Pod, node *corev1.Node) bool {
	host := pod.Spec.NodeSelector[corev1.LabelHostname]
	return host != "" && host == node.Labels[corev1.LabelHostname]
}

func claimsOf(pod *corev1.Pod) []string {
	var claims []string
	for i := range pod.Spec.Volumes {
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			claims = append(claims, claim.ClaimName)
		}
	}
	return claims
}

func annotationsOf(pod *corev1.Pod) map[string]string {
	var kept map[string]string
	for key, value := range pod.Annotations {
		if key == corev1.MirrorPodAnnotationKey || protocol.IsAnnotation(key) {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = value
		}
	}
	return kept
}

// Pods collects the pods of some nodes. It is safe for concurrent use. There can be very many pods,
// so it stores only the fields that a preview needs, and shares equal values.
type Pods struct {
	nodes      map[string]*corev1.Node
	evacuators sets.Set[string]
	nodeOf     func(*corev1.Pod) string

	mu     sync.Mutex
	all    []Pod
	labels map[string]labels.Set
	owners map[types.UID]*metav1.OwnerReference
	texts  map[string]string
	// byNode has, for each node, the part of all that has the node's pods; it is nil while all is
	// not sorted.
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
		seen, counts := podOf(pod, n, p.evacuators)
		if !counts {
			continue
		}
		seen.Labels, seen.Namespace, seen.Owner = p.shareLabels(seen.Labels), p.shareText(seen.Namespace), p.shareOwner(seen.Owner)
		p.all = append(p.all, seen)
	}
	p.byNode = nil
}

func finalizersOf(pod *corev1.Pod) []string {
	return slices.DeleteFunc(slices.Clone(pod.Finalizers), tracked.Has)
}

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

// Len returns the number of pods.
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

// on returns the pods of a node, sorted by namespace and name.
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

// planned returns the pods of a node for the planner: all pods except those that are kept running.
func (p *Pods) planned(name string) []drainplan.Pod {
	pods := p.on(name)
	out := make([]drainplan.Pod, 0, len(pods))
	for i := range pods {
		if pods[i].Kept == "" {
			out = append(out, pods[i].planned())
		}
	}
	return out
}

func (p *Pod) planned() drainplan.Pod {
	return drainplan.Pod{Type: p.Type, Priority: p.Priority, Labels: p.Labels}
}
