// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package forecast computes what the drain of a NodeMaintenance will do: which pods leave in which
// wave, which evacuators remove them, and the blockers. It uses neither a client nor a clock;
// pkg/host/previewer gathers the inputs.
//
// It uses the planner for the first wave, and the rules for evacuators and budgets. In addition it
// considers the whole drain: a budget that allows the eviction of each single pod may not allow all
// of these evictions at the same time.
//
// It is a prediction: it does not include new pods, changes of budgets and failures of evacuators.
package forecast

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// The limits of the lists in a preview. A preview in which all lists are full has a few megabytes
// of JSON. Counts have no limit.
const (
	// MaxPods is the maximum number of listed pods in all waves.
	MaxPods = 5000
	// MaxPodsOfWave is the maximum number of listed pods in each wave.
	MaxPodsOfWave = 1000
	// MaxNodes is the maximum number of listed nodes.
	MaxNodes = 5000
	// MaxBlockers is the maximum number of listed blockers.
	MaxBlockers = 200
	// MaxPodsOfGroup is the maximum number of listed pods of a blocker, or of one reason to keep
	// pods running.
	MaxPodsOfGroup = 50
	// MaxMaintenances is the maximum number of listed other maintenances.
	MaxMaintenances = 100
	// MaxEvacuators is the maximum number of listed evacuators of a wave.
	MaxEvacuators = 50
)

// Member is a maintenance with its nodes.
type Member struct {
	*v1alpha1.NodeMaintenance
	// Nodes are the nodes that the maintenance selects, sorted by name.
	Nodes []*corev1.Node
	// Ignored is the number of nodes that match its selector and are ignored because they are too
	// new.
	Ignored int
	// Refused are the names of nodes that its requester may not maintain. The maintenance does not
	// change these nodes.
	Refused sets.Set[string]
}

// Allowed returns the nodes that the maintenance may change.
func (m *Member) Allowed() []*corev1.Node {
	if m.Refused.Len() == 0 {
		return m.Nodes
	}
	nodes := make([]*corev1.Node, 0, len(m.Nodes))
	for _, node := range m.Nodes {
		if !m.Refused.Has(node.Name) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// Awaited returns the nodes that the maintenance may not change and for whose pods its waves wait.
func (m *Member) Awaited() []*corev1.Node {
	if m.Spec.OnExcludedNode != v1alpha1.ExcludedNodeWait {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(m.Nodes), func(node *corev1.Node) bool { return !m.Refused.Has(node.Name) })
}

// Situation has all inputs of a preview.
type Situation struct {
	// Subject is the previewed maintenance.
	Subject Member
	// Unchecked is the number of the subject's nodes for which no authorization check was made.
	Unchecked int
	// Draining are the other maintenances in stage Drain that are not paused and share nodes with
	// the subject, directly or through further maintenances.
	Draining []Member
	// Sharing are the other maintenances on the subject's nodes that have not ended, in any stage.
	Sharing []Member
	// Pods are the pods on the nodes of Subject and Draining.
	Pods *Pods
	// Budgets has at least the budgets in the pods' namespaces.
	Budgets []policyv1.PodDisruptionBudget
	// TerminatingNamespaces are the namespaces that are being deleted.
	TerminatingNamespaces sets.Set[string]
	// Owners returns the owners of the pods, and the objects that surges depend on.
	Owners Owners
	// Pinned are the volume claims whose volumes can only be used on nodes that this maintenance
	// would hold or that are cordoned.
	Pinned sets.Set[types.NamespacedName]
	// Evacuators are the classes of the enabled built-in evacuators.
	Evacuators sets.Set[string]
	// UnprotectedAllAtOnce is set if pods that no budget protects do not wait for other pods of
	// their owner.
	UnprotectedAllAtOnce bool
	// Now is the time at which the server began to read the cluster.
	Now time.Time
}

// Decide returns the preview. It returns an error if the plan of a maintenance is invalid, if an
// owner cannot be read, or if the context ends.
func Decide(ctx context.Context, s *Situation) (*v1alpha1.NodeMaintenancePreview, error) {
	d := &decision{Situation: s, subject: s.Subject.Name}
	out := &v1alpha1.NodeMaintenancePreview{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.Subject.Name, UID: s.Subject.UID, Generation: s.Subject.Generation, CreationTimestamp: s.Subject.CreationTimestamp,
		},
		Timestamp: metav1.NewTime(s.Now),
		Stage:     s.Subject.Spec.Stage,
		NodeCount: int32(len(s.Subject.Nodes)), NodesRefused: int32(s.Subject.Refused.Len()), NodesUnchecked: int32(s.Unchecked),
	}
	d.nodes = newNodes(s)
	if !v1alpha1.IsEnding(s.Subject.NodeMaintenance) {
		if err := d.findRules(); err != nil {
			return nil, err
		}
		if err := d.plan(); err != nil {
			return nil, err
		}
		if err := d.sortPods(ctx); err != nil {
			return nil, err
		}
		d.describeWaves(out)
		d.describeBlockers(out)
		d.describePodsKept(out)
	}
	d.describeMaintenances(out)
	d.describeNodes(out)
	return out, nil
}

// decision is the state of the computation of a preview.
type decision struct {
	*Situation
	subject string
	// rules are what the subject and the other draining maintenances do with the pods of each node.
	// A node whose pods all leave has no entry.
	rules map[string]drainplan.NodeRules
	// result is the output of the planner.
	result drainplan.Result
	// nodes are the nodes of the subject, by name.
	nodes map[string]*nodeState
	// waves are the entries of the plan, including the entries without pods.
	waves []*wave
	// leaving are the pods in waves, sorted by node, namespace and name.
	leaving []*leavingPod
	// kept are the pods that are kept running, by reason.
	kept map[drainplan.KeptReason][]*Pod
	// blockers are the blockers, the worst first.
	blockers []*blocker
}

type nodeState struct {
	*corev1.Node
	refused     bool
	unreachable bool
	pods, kept  int
	// waiting counts the pods among pods that the plan lets complete. asked counts the pods that
	// are asked to leave now, and completing are those that a wave lets complete now.
	waiting, asked int
	completing     drainplan.Completing
}

func newNodes(s *Situation) map[string]*nodeState {
	nodes := make(map[string]*nodeState, len(s.Subject.Nodes))
	for _, n := range s.Subject.Nodes {
		nodes[n.Name] = &nodeState{Node: n, refused: s.Subject.Refused.Has(n.Name), unreachable: isUnreachable(n)}
	}
	return nodes
}

// isUnreachable reports whether the kubelet of a node does not respond.
func isUnreachable(n *corev1.Node) bool {
	return protocol.NodeCondition(n, corev1.NodeReady).Status == corev1.ConditionUnknown
}

// findRules finds what the maintenances do with the pods of each node. The drain of a subject that
// does not drain yet begins now.
func (d *decision) findRules() error {
	members, found := append([]Member{d.Subject}, d.Draining...), false
	rules := make([]*drainplan.Rules, len(members))
	for i := range members {
		m := members[i].NodeMaintenance
		began := v1alpha1.StageEntered(m, v1alpha1.NodeMaintenanceStageDrain)
		if began.IsZero() {
			began = d.Now
		}
		var err error
		if rules[i], err = drainplan.RulesOf(m.Spec.DrainPlan, began); err != nil {
			return fmt.Errorf("maintenance %s: %w", m.Name, err)
		}
		found = found || rules[i] != nil
	}
	if !found {
		return nil
	}
	inside := map[string]drainplan.NodeRules{}
	d.rules = map[string]drainplan.NodeRules{}
	for i := range members {
		for _, n := range members[i].Allowed() {
			inside[n.Name] = append(inside[n.Name], rules[i])
		}
		for _, n := range members[i].Awaited() {
			d.rules[n.Name] = append(d.rules[n.Name], rules[i])
		}
	}
	maps.Copy(d.rules, inside)
	maps.DeleteFunc(d.rules, func(_ string, of drainplan.NodeRules) bool { return slices.Contains(of, nil) })
	return nil
}

// plan runs the planner to find the pods that are asked to leave now. If the subject does not drain
// yet, plan assumes that it drains and has cordoned its nodes.
func (d *decision) plan() error {
	world := drainplan.World{Subject: d.subject}
	added := sets.New[string]()
	add := func(n *corev1.Node) {
		if !added.Has(n.Name) {
			added.Insert(n.Name)
			planned := &drainplan.Node{Name: n.Name, UID: n.UID, Pods: d.Pods.planned(n.Name)}
			world.Nodes = append(world.Nodes, d.rules[n.Name].Filter(planned, d.Now))
		}
	}
	members := append([]Member{d.Subject}, d.Draining...)
	for i := range members {
		m := &members[i]
		planned := drainplan.Maintenance{
			Name: m.Name, Created: m.CreationTimestamp.Time, Plan: m.Spec.DrainPlan, Before: map[string][]v1alpha1.DrainPlanEntry{},
		}
		before := targetsOf(m.NodeMaintenance)
		for _, n := range m.Awaited() {
			planned.Excluded = append(planned.Excluded, n.Name)
			add(n)
		}
		for _, n := range m.Allowed() {
			planned.Nodes = append(planned.Nodes, n.Name)
			if !n.Spec.Unschedulable && !d.isAsIfCordoned(n.Name) {
				planned.Uncordoned = append(planned.Uncordoned, n.Name)
			}
			if targets, ok := before[v1alpha1.NodeReference{Name: n.Name, UID: n.UID}]; ok {
				planned.Before[n.Name] = targets
			}
			add(n)
		}
		world.Maintenances = append(world.Maintenances, planned)
	}
	var err error
	if d.result, err = drainplan.Plan(world); err != nil {
		return fmt.Errorf("plan the drain: %w", err)
	}
	return nil
}

// isAsIfCordoned reports whether a node is treated as cordoned because the subject would cordon it.
func (d *decision) isAsIfCordoned(name string) bool {
	n := d.nodes[name]
	return !v1alpha1.IsDraining(d.Subject.NodeMaintenance) && n != nil && !n.refused
}

// targetsOf returns the targets in a status, by node.
func targetsOf(nm *v1alpha1.NodeMaintenance) map[v1alpha1.NodeReference][]v1alpha1.DrainPlanEntry {
	targets := make(map[v1alpha1.NodeReference][]v1alpha1.DrainPlanEntry, len(nm.Status.NodeStatuses))
	for i := range nm.Status.NodeStatuses {
		if status := &nm.Status.NodeStatuses[i]; len(status.DrainTargets) > 0 {
			targets[status.NodeRef] = status.DrainTargets
		}
	}
	return targets
}
