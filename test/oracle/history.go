// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// history is a log in one order, by object.
type history struct {
	pods         map[types.UID]*podRecord
	nodes        map[types.UID]*nodeRecord
	maintenances map[types.UID]*maintenanceRecord
	evacuations  map[types.UID]*evacuationRecord
	// overridden are the maintenances whose order was overridden, according to an event.
	overridden map[types.UID]bool
	// byPod are the Evacuations by the UIDs of their pods.
	byPod map[types.UID][]*evacuationRecord
	// sent are the pods that a drain made leave: they were evicted, or their Deployment was scaled
	// up for them and scaled down again.
	sent map[types.UID]bool
	// foreign are the stamps of Haulout's server, for straighten.
	foreign []*stamp
}

// podRecord is the life of a pod.
type podRecord struct {
	*corev1.Pod
	// bound is when it came to its node, asked when it was told to end, gone when it had ended.
	// Each is never if it did not happen.
	bound, asked, gone stamp
}

// nodeRecord is the life of a node.
type nodeRecord struct {
	// last is the last state of the node.
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
	// moved means that the selector or the plan was changed. Then its order cannot be judged.
	moved bool
}

// maintenanceState is a maintenance from a place in the history on.
type maintenanceState struct {
	stamp

	draining bool
	// targets are those of the nodes in its status, by UID.
	targets map[types.UID][]v1alpha1.DrainPlanEntry
}

// evacuationRecord is the life of an Evacuation.
type evacuationRecord struct {
	*v1alpha1.Evacuation

	// made is when a maintenance was first seen to ask for it; nil if none did.
	made *stamp
	gone bool
}

func historyOf(log Log) *history {
	h := &history{
		pods: map[types.UID]*podRecord{}, nodes: map[types.UID]*nodeRecord{},
		maintenances: map[types.UID]*maintenanceRecord{}, evacuations: map[types.UID]*evacuationRecord{},
		byPod: map[types.UID][]*evacuationRecord{}, overridden: map[types.UID]bool{}, sent: map[types.UID]bool{},
	}
	for i := range log.Observations {
		o := &log.Observations[i]
		switch object := o.Object.(type) {
		case *corev1.Pod:
			h.pod(o, object)
		case *corev1.Node:
			h.node(o, object)
		case *v1alpha1.NodeMaintenance:
			h.maintenance(o, object)
		case *v1alpha1.Evacuation:
			h.evacuation(o, object)
		case *eventsv1.Event:
			h.overridden[object.Regarding.UID] = true
		}
	}
	for i := range log.Calls {
		if log.Calls[i].Evicted() {
			h.sent[log.Calls[i].UID] = true
		}
	}
	for uid, p := range h.pods {
		if p.scaledDown() {
			h.sent[uid] = true
		}
	}
	h.precede()
	h.straighten()
	return h
}

func (h *history) pod(o *Observation, pod *corev1.Pod) {
	known := h.pods[pod.UID]
	if known == nil {
		known = &podRecord{bound: stamp{at: never}, asked: stamp{at: never}, gone: stamp{at: never}}
		h.pods[pod.UID] = known
	}
	known.Pod = pod
	if known.bound.at == never && pod.Spec.NodeName != "" {
		known.bound = o.stamp()
	}
	// The end of a pod has its real place, also if it began before the recording.
	now, deleted := stamp{at: o.at, seen: o.Seen}, o.Type == watch.Deleted
	if known.asked.at == never && (deleted || pod.DeletionTimestamp != nil) {
		known.asked = now
	}
	if known.gone.at == never && (deleted || isFinished(pod)) {
		known.gone = now
	}
}

func (h *history) node(o *Observation, node *corev1.Node) {
	known := h.nodes[node.UID]
	if known == nil {
		known = &nodeRecord{gone: stamp{at: never}}
		h.nodes[node.UID] = known
	}
	known.last = node
	if o.Type == watch.Deleted {
		known.gone = o.stamp()
		return
	}
	if o.Initial {
		known.states = nil
	}
	if last := len(known.states) - 1; last < 0 || known.states[last].unschedulable != node.Spec.Unschedulable ||
		!maps.Equal(known.states[last].labels, node.Labels) {
		known.states = append(known.states, nodeState{o.stamp(), node.Labels, node.Spec.Unschedulable})
	}
}

func (h *history) maintenance(o *Observation, nm *v1alpha1.NodeMaintenance) {
	known := h.maintenances[nm.UID]
	if known == nil {
		known = &maintenanceRecord{}
		h.maintenances[nm.UID] = known
	}
	known.moved = known.moved || known.last != nil && !sameOrder(known.last, nm)
	known.last = nm
	if o.Type == watch.Deleted {
		// A deletion that was found by listing has an older version.
		known.gone = &stamp{at: o.at, seen: o.Seen}
		return
	}
	state := &maintenanceState{
		stamp: o.stamp(), targets: map[types.UID][]v1alpha1.DrainPlanEntry{},
		draining: nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain && nm.DeletionTimestamp == nil,
	}
	for i := range nm.Status.NodeStatuses {
		entry := &nm.Status.NodeStatuses[i]
		state.targets[entry.NodeRef.UID] = entry.DrainTargets
	}
	known.states = append(known.states, state)
	h.foreign = append(h.foreign, &state.stamp)
}

func (h *history) evacuation(o *Observation, e *v1alpha1.Evacuation) {
	known := h.evacuations[e.UID]
	if known == nil {
		known = &evacuationRecord{}
		h.evacuations[e.UID] = known
		h.byPod[e.Spec.PodRef.UID] = append(h.byPod[e.Spec.PodRef.UID], known)
	}
	if known.made == nil && slices.Contains(e.Finalizers, v1alpha1.FinalizerInstigatorNodeMaintenance) {
		now := o.stamp()
		known.made = &now
		h.foreign = append(h.foreign, known.made)
	}
	known.Evacuation = e
	known.gone = o.Type == watch.Deleted
}

// scaledDown reports whether a pod left in a scale-down that chose it: it has ended and kept the
// lowest deletion cost. A pod gets that cost only after it was asked to leave, and loses it if it
// stays.
func (p *podRecord) scaledDown() bool {
	_, lowered := p.Annotations[v1alpha1.AnnotationOriginalPodDeletionCost]
	return lowered && p.asked.at != never
}

// precede moves Evacuations of pods that were sent away before the end of their pods if they were
// seen later. With them moves all that Haulout's server had shown until then.
func (h *history) precede() {
	for uid, p := range h.pods {
		if !h.sent[uid] || p.asked.at == never {
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

// straighten moves the events of Haulout's server to the earliest possible place: none happened
// after an event that followed it on that server.
func (h *history) straighten() {
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

// Evacuated returns the UIDs of the pods that a maintenance asked for and that were told to end: by
// an eviction, or because their Deployment was scaled back.
func Evacuated(log Log) []types.UID {
	h := historyOf(log)
	var pods []types.UID
	for uid, evacuations := range h.byPod {
		if p := h.pods[uid]; p != nil && p.asked.at != never &&
			slices.ContainsFunc(evacuations, func(e *evacuationRecord) bool { return e.made != nil }) {
			pods = append(pods, uid)
		}
	}
	return pods
}
