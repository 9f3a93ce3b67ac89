// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// This file translates a view into the input of the decisions.

// epoch is step 0.
var epoch = time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)

func at(step int) metav1.Time { return metav1.NewTime(epoch.Add(time.Duration(step) * time.Minute)) }

func maxUnavailable(n int, key string) v1alpha1.RolloutLimit {
	return v1alpha1.RolloutLimit{MaxUnavailable: ptr.To(intstr.FromInt32(int32(n))), TopologyKey: key}
}

func maxDomains(n int, key string) v1alpha1.RolloutLimit {
	return v1alpha1.RolloutLimit{MaxDomains: ptr.To(int32(n)), TopologyKey: key}
}

// object returns a node as an object of the API. It is kept until the node changes.
func (n *simNode) object(off rules) *corev1.Node {
	state := nodeState{status: corev1.ConditionTrue, cordoned: n.foreign || len(n.cordon) > 0, foreign: n.foreign, bare: n.bare, zone: n.zone}
	if !n.isReady() {
		state.status, state.since = corev1.ConditionFalse, max(n.unready, 0)
	}
	if n.stored != nil && n.state == state {
		return n.stored
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.name, UID: types.UID(n.uid), Labels: map[string]string{}, Annotations: map[string]string{},
		},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: state.status, LastTransitionTime: at(state.since)},
		}},
	}
	if !n.bare {
		node.Labels["zone"], node.Labels["rack"] = n.zone, n.rack
	}
	if n.cp && !n.bare && off.on("cp") {
		node.Labels["node-role.kubernetes.io/control-plane"] = ""
	}
	node.Spec.Unschedulable = state.cordoned
	if state.cordoned && !state.foreign || !off.on("skip") {
		node.Annotations[v1alpha1.AnnotationCordonedBy] = `{"maintenances":{"some":"uid"}}`
	}
	n.state, n.stored = state, node
	return node
}

// readNode returns what a decision sees of a node. Holders are read from the caches.
func (w *world) readNode(n *simNode, caches *view) Node {
	var holders []*v1alpha1.NodeMaintenance
	for _, m := range caches.holding(n.name) {
		if m.task || w.rules.on("person") {
			holders = append(holders, m.object())
		}
	}
	return NewNode(n.object(w.rules), holders, at(caches.now).Time)
}

// object returns a maintenance as an object of the API.
func (m *simMaintenance) object() *v1alpha1.NodeMaintenance {
	if m.ended < 0 {
		return m.build()
	}
	if m.stored == nil {
		m.stored = m.build()
	}
	return m.stored
}

func (m *simMaintenance) build() *v1alpha1.NodeMaintenance {
	nm := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: m.name}}
	nm.Spec.Stage, nm.Spec.Paused = v1alpha1.NodeMaintenanceStageDrain, m.paused
	if m.task {
		nm.Spec.Task = &v1alpha1.NodeMaintenanceTask{}
	}
	nm.Annotations = map[string]string{v1alpha1.AnnotationRolloutUnit: m.unit}
	if m.withdrawn != "" {
		nm.Annotations[v1alpha1.AnnotationWithdrawn] = m.withdrawn
	}
	if m.ended < 0 {
		nm.Finalizers = []string{v1alpha1.FinalizerMaintenanceCompletion}
	}
	entered := func(stage v1alpha1.NodeMaintenanceStage, step int) {
		nm.Status.StageStatuses = append(nm.Status.StageStatuses, v1alpha1.StageStatus{Name: stage, StartTimestamp: ptr.To(at(step))})
	}
	entered(v1alpha1.NodeMaintenanceStageDrain, m.created)
	if m.complete >= 0 {
		nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete
		entered(v1alpha1.NodeMaintenanceStageComplete, m.complete)
	}
	for _, name := range m.nodes {
		status := v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: name}}
		if rec, ok := m.records[name]; ok {
			status.NodeRef.UID = types.UID(rec.uid)
			status.Task = &v1alpha1.NodeMaintenanceNodeTask{State: rec.state, EndTime: ptr.To(at(rec.at))}
		}
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, status)
	}
	return nm
}

// draining returns a maintenance with the conditions of its drain.
func (v *view) draining(m *simMaintenance, off rules) *v1alpha1.NodeMaintenance {
	nm := m.object()
	drained, reason := metav1.ConditionFalse, v1alpha1.ReasonProgressDraining
	if v.isDrained(m, off) {
		drained = metav1.ConditionTrue
	}
	if m.wait && slices.ContainsFunc(m.nodes, func(name string) bool { n := v.node(name); return n != nil && n.job > 0 }) {
		reason = v1alpha1.ReasonProgressWaitingForCompletion
	}
	nm.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionDrained, Status: drained},
		{Type: v1alpha1.ConditionProgressing, Status: metav1.ConditionTrue, Reason: reason},
	}
	return nm
}

func (t *simTask) object() *v1alpha1.NodeTask {
	task := &v1alpha1.NodeTask{ObjectMeta: metav1.ObjectMeta{Name: t.name}}
	task.Spec.NodeUID, task.Spec.Maintenance.Name = types.UID(t.uid), t.maintenance
	task.Status = v1alpha1.NodeTaskStatus{State: t.state, StateTime: ptr.To(at(t.since)), Holder: t.holder}
	return task
}

// object returns a rollout as an object of the API. caches tell which of its units soak.
func (r *simRollout) object(caches *view, off rules) *v1alpha1.NodeMaintenanceRollout {
	o := &v1alpha1.NodeMaintenanceRollout{ObjectMeta: metav1.ObjectMeta{Name: r.name}, Spec: r.spec}
	o.Spec.SoakSeconds, o.Spec.MaxFailed = int32(r.soak*60), int32(r.maxFailed)
	o.Spec.ProgressDeadlineSeconds = ptr.To(int32(stallSteps * 60))
	if !off.on("dom") {
		o.Spec.Limits = slices.DeleteFunc(slices.Clone(r.spec.Limits), func(l v1alpha1.RolloutLimit) bool { return l.MaxDomains != nil })
	}
	if !off.on("halt") {
		o.Spec.MaxFailed = 1000
	}
	if r.closed {
		long := metav1.NewTime(epoch.Add(-time.Hour))
		o.Spec.Windows = []v1alpha1.RolloutWindow{{Start: &long, Duration: metav1.Duration{Duration: time.Minute}}}
	}
	for _, name := range slices.Sorted(maps.Keys(r.holds)) {
		o.Spec.Holds = append(o.Spec.Holds, v1alpha1.RolloutHold{Name: name, Stops: r.holds[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(r.current)) {
		unit := v1alpha1.RolloutUnit{Unit: name, Maintenance: r.current[name].maintenance, Nodes: r.current[name].nodes}
		unit.Phase = v1alpha1.RolloutPhaseDraining
		if m := caches.maintenance(unit.Maintenance); m != nil && m.ended >= 0 {
			unit.Phase = v1alpha1.RolloutPhaseSoaking
		}
		if unit.Phase != v1alpha1.RolloutPhaseSoaking || off.on("soak") {
			o.Status.Current = append(o.Status.Current, unit)
		}
	}
	return o
}

// goalOf returns what doneWhen is for a node. Without doneWhen, new nodes are ignored.
func (r *simRollout) goalOf(n *simNode) Goal {
	switch {
	case r.expr && n.goal[r.name]:
		return GoalMet
	case r.expr:
		return GoalUnmet
	case n.created > 0:
		return TooNew
	}
	return NoGoal
}

// input returns the input of a decision for a rollout. r has what the caller knows of it.
func (w *world) input(r *simRollout, caches *view) (*Cluster, *Rollout) {
	facts := Facts{
		Now: at(caches.now).Time, MaxUnavailablePercent: w.percent,
		Exists: func(name string) bool { return caches.maintenance(name) != nil },
		Pods: func(name string) int {
			if n := caches.node(name); n.pods {
				return n.job + 1
			}
			return caches.node(name).job
		},
	}
	if !w.rules.on("cluster") {
		facts.MaxUnavailablePercent = 100
	}
	in := &Rollout{Object: r.object(caches, w.rules)}
	var all []Node
	for _, n := range caches.nodes {
		all = append(all, w.readNode(n, caches))
	}
	facts.Nodes = NewNodes(all)
	for _, t := range caches.tasks {
		n, task := caches.node(t.name), t.object()
		if n != nil && !w.rules.on("renewed") {
			task.Spec.NodeUID = types.UID(n.uid)
		}
		if n != nil || w.rules.on("ghost") {
			facts.Tasks = append(facts.Tasks, task)
		}
	}
	for _, other := range w.rollouts { // what this process has written is known
		if w.rules.on("announce") {
			facts.Rollouts = append(facts.Rollouts, other.object(caches, w.rules))
		}
	}
	for _, m := range caches.maintenances {
		if m.owner == r.name && !m.gone {
			in.Attempts = append(in.Attempts, m.object())
		}
	}
	for i := range 9 {
		if w.rules.on("width") {
			break
		}
		fake := &simMaintenance{name: "fake" + strconv.Itoa(i), nodes: []string{"fake"}, unit: "fake", created: caches.now, complete: caches.now}
		fake.records = map[string]record{"fake": {state: v1alpha1.NodeTaskDone}}
		in.Attempts = append(in.Attempts, fake.object())
	}
	worked := DoneBy(in.Attempts)
	for _, n := range caches.nodes {
		if _, isDone := worked[types.UID(n.uid)]; r.has(n) && !n.bare {
			in.Members = append(in.Members, Member{n.name, r.goalOf(n), isDone})
		}
	}
	return NewCluster(facts), in
}
