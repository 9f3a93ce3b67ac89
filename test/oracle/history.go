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

// history has the events of a log in one order, grouped by object.
type history struct {
	pods         map[types.UID]*podRecord
	nodes        map[types.UID]*nodeRecord
	maintenances map[types.UID]*maintenanceRecord
	evacuations  map[types.UID]*evacuationRecord
	// overridden has the maintenances whose order was overridden, according to an event.
	overridden map[types.UID]bool
	// byPod has the Evacuations by the UIDs of their pods.
	byPod map[types.UID][]*evacuationRecord
	// sent has the pods that a drain has removed: each was evicted, or its Deployment was scaled up
	// for it and scaled down again.
	sent map[types.UID]bool
	// foreign has the stamps of Haulout's server, for straighten.
	foreign []*stamp
}

// podRecord is the life of a pod.
type podRecord struct {
	*corev1.Pod
	// bound is the time at which the pod was bound to its node, asked the time of its deletion, and
	// gone the time at which it had ended. Each has the value never if it did not happen.
	bound, asked, gone stamp
}

// nodeRecord is the life of a node.
type nodeRecord struct {
	// last is the latest state of the node.
	last   *corev1.Node
	states []nodeState
	gone   stamp
}

// nodeState is the state of a node since a place in the history.
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
	// moved is set if the selector or the plan was changed. The order of the maintenance cannot be
	// judged then.
	moved bool
}

// maintenanceState is the state of a maintenance since a place in the history.
type maintenanceState struct {
	stamp

	draining bool
	// paused is set if the maintenance drains and spec.paused stops it.
	paused bool
	// targets has the drain targets in the status of the maintenance, by the UID of the node.
	targets map[types.UID][]v1alpha1.DrainPlanEntry
}

// evacuationRecord is the life of an Evacuation.
type evacuationRecord struct {
	*v1alpha1.Evacuation

	// made is the first time at which a maintenance was an instigator; nil if none was.
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
	// The end of a pod has its exact place, even if the pod existed before the recording.
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
		draining: nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain && nm.DeletionTimestamp == nil, paused: nm.Spec.Paused,
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

// precede moves an Evacuation before the end of its pod if a drain removed the pod and the Recorder
// received the Evacuation later. It also moves all earlier events of Haulout's server.
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

// straighten moves the events of Haulout's server to the earliest possible place: an event happened
// no later than the next event of the same server.
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

// Evacuated returns the UIDs of the pods that left for a maintenance: by an eviction, or because
// their Deployment was scaled down again.
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
