// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package oracle tells whether drains kept their promises, from nothing but what the API shows of
// them: the events of pods, nodes, NodeMaintenances, Evacuations and Events, and kube-apiserver's
// audit log. It shares no code with the server that it judges.
//
// A Recorder follows the API. Three sets of rules read what it has seen: the History reports
// whether drains kept their order, the Books whether budgets held, and a Witness whether
// Evacuations followed their protocol.
//
// Two servers with histories of their own have to be put into one order. Events of the host cluster
// are placed by their resource versions, which count the writes to its etcd: that is exact.
// Whatever Haulout's server shows is placed by a version of the host cluster that was read after it
// was seen. So it is placed too late by the time that it took to get here and for that read to
// answer. A pod that ends in that time is taken in favour of the accused; the deletions of the pods
// that were asked to leave, which follow, are placed exactly. One that comes in that time is not:
// a test that lets pods come late has to wait until the Recorder has seen what they are too late
// for.
package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// moment is a place in the host cluster's history: a resource version of it.
type moment uint64

// never is later than everything that was recorded.
const never = ^moment(0)

// stamp is when something was seen: the place in the history, and the time by the clock of who
// watched. What Haulout's server showed has a version of that server, too.
type stamp struct {
	at      moment
	seen    time.Time
	version uint64
}

// before compares by the versions of Haulout's server where both have one: many of its events may
// have the same place.
func (s stamp) before(other stamp) bool {
	if s.version > 0 && other.version > 0 {
		return s.version < other.version
	}
	return s.at < other.at
}

// History is what was seen. What is there before the recording begins has the place 0.
type History struct {
	pods         map[types.UID]*podRecord
	nodes        map[types.UID]*nodeRecord
	maintenances map[types.UID]*maintenanceRecord
	evacuations  map[types.UID]*evacuationRecord
	// overridden are the maintenances that an event says were overridden.
	overridden map[types.UID]bool
	// byPod are the Evacuations by the UIDs of their pods.
	byPod map[types.UID][]*evacuationRecord
	// foreign are the stamps of Haulout's server, for straighten.
	foreign []*stamp
	// asked counts the pods that were told to end since the beginning.
	asked int
}

// podRecord is the life of a pod.
type podRecord struct {
	*corev1.Pod
	// bound is when it came to its node, asked when it was told to end, gone when it had ended. A
	// pod that is still there is gone never.
	bound, asked, gone stamp
}

// nodeRecord is the life of a node.
type nodeRecord struct {
	// last is the node as it was seen last.
	last   *corev1.Node
	states []nodeState
	gone   stamp
}

// nodeState is a node from a place in the history on.
type nodeState struct {
	stamp

	labels        map[string]string
	unschedulable bool
}

// maintenanceRecord is the life of a NodeMaintenance.
type maintenanceRecord struct {
	last   *v1alpha1.NodeMaintenance
	states []*maintenanceState
	gone   *stamp
	// moved says that the selector or the plan was changed, after which nothing here holds.
	moved bool
}

// maintenanceState is a maintenance from a place in the history on.
type maintenanceState struct {
	stamp

	draining bool
	// targets are those of the nodes that it names, by UID.
	targets map[types.UID][]v1alpha1.DrainPlanEntry
}

// evacuationRecord is the life of an Evacuation.
type evacuationRecord struct {
	*v1alpha1.Evacuation

	// made is when a maintenance was first seen to ask for it; nil if none did.
	made *stamp
	gone bool
}

// NewHistory returns an empty history.
func NewHistory() *History {
	return &History{
		pods: map[types.UID]*podRecord{}, nodes: map[types.UID]*nodeRecord{},
		maintenances: map[types.UID]*maintenanceRecord{}, evacuations: map[types.UID]*evacuationRecord{},
		byPod: map[types.UID][]*evacuationRecord{}, overridden: map[types.UID]bool{},
	}
}

// Begin takes what was entered so far for the state before anything has happened.
func (h *History) Begin() {
	for _, p := range h.pods {
		p.bound = stamp{}
	}
	for _, n := range h.nodes {
		n.states = n.states[len(n.states)-1:]
		n.states[0].stamp = stamp{}
	}
	h.asked = 0
}

// HostEvent enters an event of a pod, a node or an Event. Those of a kind have to come in the order
// in which they happened.
func (h *History) HostEvent(event watch.Event, seen time.Time) error {
	switch object := event.Object.(type) {
	case *corev1.Pod:
		at, err := momentOf(object)
		if err != nil {
			return err
		}
		h.pod(event.Type, object, stamp{at: at, seen: seen})
	case *corev1.Node:
		at, err := momentOf(object)
		if err != nil {
			return err
		}
		h.node(event.Type, object, stamp{at: at, seen: seen})
	default:
		return fmt.Errorf("%T is no matter of the host cluster", object)
	}
	return nil
}

func momentOf(object metav1.Object) (moment, error) {
	version, err := parseMoment(object.GetResourceVersion())
	if err != nil {
		return 0, fmt.Errorf("%s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	return version, nil
}

// parseMoment reads a resource version as a place in a history.
func parseMoment(version string) (moment, error) {
	at, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resource version %q: %w", version, err)
	}
	return moment(at), nil
}

func (h *History) pod(kind watch.EventType, pod *corev1.Pod, now stamp) {
	known := h.pods[pod.UID]
	if known == nil {
		known = &podRecord{bound: stamp{at: never}, asked: stamp{at: never}, gone: stamp{at: never}}
		h.pods[pod.UID] = known
	}
	known.Pod = pod
	if known.bound.at == never && pod.Spec.NodeName != "" {
		known.bound = now
	}
	deleted := kind == watch.Deleted
	if known.asked.at == never && (deleted || pod.DeletionTimestamp != nil) {
		known.asked = now
		h.asked++
	}
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if known.gone.at == never && (deleted || finished) {
		known.gone = now
	}
}

func (h *History) node(kind watch.EventType, node *corev1.Node, now stamp) {
	known := h.nodes[node.UID]
	if known == nil {
		known = &nodeRecord{gone: stamp{at: never}}
		h.nodes[node.UID] = known
	}
	known.last = node
	if kind == watch.Deleted {
		known.gone = now
		return
	}
	if last := len(known.states) - 1; last < 0 || known.states[last].unschedulable != node.Spec.Unschedulable ||
		!maps.Equal(known.states[last].labels, node.Labels) {
		known.states = append(known.states, nodeState{now, node.Labels, node.Spec.Unschedulable})
	}
}

// HauloutEvent enters an event of a NodeMaintenance or an Evacuation. now is a version of the host
// cluster that was read after it was seen.
func (h *History) HauloutEvent(event watch.Event, now moment, seen time.Time) error {
	switch object := event.Object.(type) {
	case *v1alpha1.NodeMaintenance:
		version, err := momentOf(object)
		if err != nil {
			return err
		}
		h.maintenance(event.Type, object, stamp{now, seen, uint64(version)})
	case *v1alpha1.Evacuation:
		version, err := momentOf(object)
		if err != nil {
			return err
		}
		h.evacuation(event.Type, object, stamp{now, seen, uint64(version)})
	default:
		return fmt.Errorf("%T is no matter of Haulout", object)
	}
	return nil
}

func (h *History) maintenance(kind watch.EventType, nm *v1alpha1.NodeMaintenance, now stamp) {
	known := h.maintenances[nm.UID]
	if known == nil {
		known = &maintenanceRecord{}
		h.maintenances[nm.UID] = known
	}
	if known.last != nil && !sameOrder(known.last, nm) {
		known.moved = true
	}
	known.last = nm
	if kind == watch.Deleted {
		// A deletion that was found by listing has an older version.
		known.gone = &stamp{at: now.at, seen: now.seen}
		return
	}
	state := &maintenanceState{
		stamp: now, targets: map[types.UID][]v1alpha1.DrainPlanEntry{},
		draining: nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain && nm.DeletionTimestamp == nil,
	}
	for i := range nm.Status.NodeStatuses {
		entry := &nm.Status.NodeStatuses[i]
		state.targets[entry.NodeRef.UID] = entry.DrainTargets
	}
	known.states = append(known.states, state)
	h.foreign = append(h.foreign, &state.stamp)
}

func (h *History) evacuation(kind watch.EventType, e *v1alpha1.Evacuation, now stamp) {
	known := h.evacuations[e.UID]
	if known == nil {
		known = &evacuationRecord{}
		h.evacuations[e.UID] = known
		h.byPod[e.Spec.PodRef.UID] = append(h.byPod[e.Spec.PodRef.UID], known)
	}
	if known.made == nil && slices.Contains(e.Finalizers, v1alpha1.FinalizerInstigatorNodeMaintenance) {
		known.made = &now
		h.foreign = append(h.foreign, known.made)
	}
	known.Evacuation = e
	if kind == watch.Deleted {
		known.gone = true
	}
}

// Overridden enters that an event says of a maintenance that the order of another one was followed.
func (h *History) Overridden(maintenance types.UID) {
	h.overridden[maintenance] = true
}

// scaledDown reports whether a pod left in a scale-down that was to take it: it has ended and kept
// the lowest deletion cost, which a pod has only after it was asked to leave, and loses if it
// stays.
func (p *podRecord) scaledDown() bool {
	_, lowered := p.Annotations[v1alpha1.AnnotationOriginalPodDeletionCost]
	return lowered && p.asked.at != never
}

// sentAway returns the pods that a drain made leave: they were evicted, or their Deployment had
// been scaled up for them and was scaled down by them.
func (h *History) sentAway(calls []Call) map[types.UID]bool {
	sent := map[types.UID]bool{}
	for i := range calls {
		if calls[i].Evicted() {
			sent[calls[i].UID] = true
		}
	}
	for uid, p := range h.pods {
		if p.scaledDown() {
			sent[uid] = true
		}
	}
	return sent
}

// precede moves the Evacuations of pods that were sent away and that were seen later than the end
// of their pods: they were there before, and with them all that Haulout's server had shown until
// then.
func (h *History) precede(sent map[types.UID]bool) {
	for uid, p := range h.pods {
		if !sent[uid] || p.asked.at == never {
			continue
		}
		var first *stamp
		for _, e := range h.byPod[uid] {
			if e.made != nil && (first == nil || e.made.version < first.version) {
				first = e.made
			}
		}
		if first != nil && first.at >= p.asked.at {
			first.at, first.seen = p.asked.at-1, p.asked.seen
		}
	}
}

// straighten moves what Haulout's server showed to the earliest place that is possible: nothing
// happened after what followed it there.
func (h *History) straighten() {
	slices.SortFunc(h.foreign, func(a, b *stamp) int { return cmp.Compare(b.version, a.version) })
	earliest := stamp{at: never}
	for _, s := range h.foreign {
		if s.at < earliest.at {
			earliest = *s
		}
		s.at, s.seen = earliest.at, earliest.seen
	}
}

// sameOrder reports whether two states of a maintenance have the same nodes and plan.
func sameOrder(a, b *v1alpha1.NodeMaintenance) bool {
	return equality.Semantic.DeepEqual(a.Spec.NodeSelector, b.Spec.NodeSelector) &&
		equality.Semantic.DeepEqual(a.Spec.DrainPlan, b.Spec.DrainPlan)
}
