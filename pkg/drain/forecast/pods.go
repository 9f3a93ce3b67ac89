// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"maps"
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
	*traits
	Name, Node string
	// GoneBy is the time at which a terminating pod should be gone; zero for other pods.
	GoneBy time.Time
	// Held is set if the Eviction API checks budgets for the pod. It is false for pods that an
	// evacuator removes without an eviction.
	Held bool
	// Tied is set if the node selector of the pod names the node, so that the pod cannot start on
	// another node.
	Tied bool
	// Nominated is set if the scheduler has nominated the node for the pod, but not bound the pod
	// to it. A drain does not evict such a pod, and waits until the scheduler drops the nomination
	// or binds the pod to another node.
	Nominated bool
	// Ready is set if the pod counts as healthy for budgets.
	Ready bool
}

// traits are the fields that most pods of a controller have in common. Such pods share one traits.
type traits struct {
	Namespace string
	Labels    labels.Set
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
	// Restarts is set if the pod's restart policy is Always, which means that the pod is a service
	// and does not run to completion.
	Restarts bool
	// Claims are the names of the volume claims of the pod.
	Claims []string
	// finalizers keep the pod object after the pod has stopped.
	finalizers []string
	// responders are the eviction responders that the drain does not ask.
	responders []string
}

// equal reports whether two traits are equal. Neither has an owner of nil.
func (t *traits) equal(o *traits) bool {
	return t.Namespace == o.Namespace && maps.Equal(t.Labels, o.Labels) && t.Type == o.Type && t.Priority == o.Priority &&
		t.Kept == o.Kept && isSameOwner(t.Owner, o.Owner) && maps.Equal(t.Annotations, o.Annotations) && t.Restarts == o.Restarts &&
		slices.Equal(t.Claims, o.Claims) && slices.Equal(t.finalizers, o.finalizers) && slices.Equal(t.responders, o.responders)
}

func isSameOwner(a, b *metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind && a.APIVersion == b.APIVersion
}

// Terminating reports whether the pod is terminating.
func (p *Pod) Terminating() bool { return !p.GoneBy.IsZero() }

// traitsOf returns the traits of a pod on the node, given the enabled built-in evacuators.
func traitsOf(pod *corev1.Pod, node *corev1.Node, builtIn sets.Set[string]) traits {
	planned := drainplan.PodOf(pod, node.UID)
	return traits{
		Namespace: pod.Namespace, Labels: pod.Labels,
		Type: planned.Type, Priority: planned.Priority,
		Kept:        drainplan.Kept(pod, planned.Type, node, builtIn),
		Owner:       metav1.GetControllerOfNoCopy(pod),
		Annotations: annotationsOf(pod),
		Restarts:    pod.Spec.RestartPolicy == corev1.RestartPolicyAlways,
		Claims:      claimsOf(pod),
		finalizers:  finalizersOf(pod),
		responders:  protocol.UnaskedResponders(pod),
	}
}

// podOf returns the relevant fields of a pod on the node.
func podOf(pod *corev1.Pod, node *corev1.Node, t *traits) Pod {
	p := Pod{
		traits: t, Name: pod.Name, Node: node.Name,
		Held:      t.Type == v1alpha1.PodTypeDefault && pdb.Holds(pod),
		Tied:      isTied(pod, node),
		Nominated: pod.Spec.NodeName == "",
		Ready:     pdb.IsReady(pod),
	}
	if pod.DeletionTimestamp != nil {
		p.GoneBy = pod.DeletionTimestamp.Time
	}
	return p
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
	byNode map[string][]Pod
	sorted bool
	// traits are those of all pods, and latest are those of the latest of all siblings.
	traits []*traits
	latest map[drainplan.Siblings]*traits
}

// NewPods returns a collection for pods of the nodes, given the enabled built-in evacuators and a
// function that returns the node of a pod.
func NewPods(nodes []*corev1.Node, builtIn sets.Set[string], nodeOf func(*corev1.Pod) string) *Pods {
	p := &Pods{
		nodes: make(map[string]*corev1.Node, len(nodes)), evacuators: builtIn, nodeOf: nodeOf,
		byNode: make(map[string][]Pod, len(nodes)), latest: map[drainplan.Siblings]*traits{},
	}
	for _, n := range nodes {
		p.nodes[n.Name] = n
	}
	return p
}

// Add adds a pod if it belongs to one of the nodes and has not finished. A pod may be added twice.
// Add keeps no reference to the pod itself.
func (p *Pods) Add(pod *corev1.Pod) {
	n := p.nodes[p.nodeOf(pod)]
	if n == nil || !drainplan.IsLive(pod) {
		return
	}
	t := traitsOf(pod, n, p.evacuators)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byNode[n.Name] = append(p.byNode[n.Name], podOf(pod, n, p.share(&t)))
	p.sorted = false
}

// share returns the traits of the latest sibling if they are equal, or a copy.
func (p *Pods) share(t *traits) *traits {
	of := drainplan.SiblingsOf(t.Labels, t.Owner)
	if t.Owner != nil {
		if latest := p.latest[of]; latest != nil && latest.equal(t) {
			return latest
		}
	}
	// A copy, so that the traits of most pods need no memory on the heap.
	kept := *t
	if t.Owner != nil {
		p.latest[of] = &kept
	}
	p.traits = append(p.traits, &kept)
	return &kept
}

func finalizersOf(pod *corev1.Pod) []string {
	return slices.DeleteFunc(slices.Clone(pod.Finalizers), tracked.Has)
}

// Namespaces returns the namespaces of the pods.
func (p *Pods) Namespaces() sets.Set[string] {
	found := sets.New[string]()
	p.each(func(t *traits) { found.Insert(t.Namespace) })
	return found
}

// Owners calls visit for the controllers of the pods.
func (p *Pods) Owners(visit func(namespace string, owner *metav1.OwnerReference)) {
	p.each(func(t *traits) {
		if t.Owner != nil {
			visit(t.Namespace, t.Owner)
		}
	})
}

// Claims returns the volume claims of all pods.
func (p *Pods) Claims() sets.Set[types.NamespacedName] {
	claims := sets.New[types.NamespacedName]()
	p.each(func(t *traits) {
		for _, name := range t.Claims {
			claims.Insert(types.NamespacedName{Namespace: t.Namespace, Name: name})
		}
	})
	return claims
}

func (p *Pods) each(visit func(*traits)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.traits {
		visit(t)
	}
}

// on returns the pods of a node, sorted by namespace and name.
func (p *Pods) on(name string) []Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.sorted {
		p.sort()
	}
	return p.byNode[name]
}

func (p *Pods) sort() {
	place := func(a, b Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	}
	for node, pods := range p.byNode {
		slices.SortFunc(pods, place)
		p.byNode[node] = slices.CompactFunc(pods, func(a, b Pod) bool { return place(a, b) == 0 })
	}
	p.sorted = true
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
