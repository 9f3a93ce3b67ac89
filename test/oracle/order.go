// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// bindLag is the time that the server may take to learn about a pod that was bound to a node after
// the cordon. It includes the delay of the events of Haulout's server.
const bindLag = 10 * time.Second

// notCovered is the wave of a pod that a plan does not cover.
const notCovered = -1

// docket has the data about a maintenance that outOfOrder needs.
type docket struct {
	*maintenanceRecord

	selector *nodeaffinity.NodeSelector
	// waves has, for each pod, the index of the first entry of the plan that covers the pod.
	waves map[types.UID]int
	// answers has the earlier results of overtaken.
	answers map[question]*podRecord
}

// question has the arguments of overtaken.
type question struct {
	wave   int
	opened stamp
}

// change is a change of a maintenance's status about a node.
type change struct {
	stamp

	maintenance types.UID
	// held is set if the maintenance drains and its status has the node.
	held    bool
	targets []v1alpha1.DrainPlanEntry
}

// outOfOrder describes the pods that were asked to leave while a pod that an earlier entry of the
// plan covers was on any node of the maintenance. It allows this if that pod, its node or the
// maintenance came after the drain targets of the node covered the asked pod: drain targets do not
// fall back for late pods (KEP-4212, "Pod Selection and DrainTargets Example"). It also allows it
// for a maintenance whose order was overridden, according to an event, and for one that was paused
// at that time. No wave waits for a pod that the plans of its node skip. outOfOrder also describes
// pods that no plan asks to leave, because of its behaviors.
//
// Pods of the types in running are kept running on purpose: no wave waits for them, and they must
// not be asked to leave.
func outOfOrder(log Log, running ...v1alpha1.PodType) []string {
	h := historyOf(log)
	dockets, err := h.dockets(running)
	if err != nil {
		return []string{err.Error()}
	}
	changes, nodes := h.changes(), h.nodesByName()
	var found []string
	for _, p := range h.sortedPods() {
		asked, ok := h.askedAt(p)
		if !ok {
			continue
		}
		node := nodes.at(p.Spec.NodeName, asked.at)
		if node == nil {
			continue
		}
		if slices.Contains(running, typeOf(p.Pod)) {
			found = append(found, fmt.Sprintf("pod %s/%s was asked to leave, although pods of type %s are kept running",
				p.Namespace, p.Name, typeOf(p.Pod)))
			continue
		}
		if text := stayed(dockets, p, node, asked); text != "" {
			found = append(found, text)
			continue
		}
		opened := openedAt(p.Pod, changes[node.last.UID], asked)
		for _, d := range dockets {
			wave, covered := d.waves[p.UID]
			if !covered || h.overridden[d.last.UID] || d.drainingSince(opened) == nil || d.pausedAt(opened) ||
				d.joined(node, opened.at) == nil {
				continue
			}
			if other := d.overtaken(h.pods, nodes, wave, opened, dockets); other != nil {
				found = append(found, fmt.Sprintf(
					"pod %s/%s on node %s, in wave %d of %s, was asked to leave while %s/%s on node %s, in "+
						"wave %d, was there",
					p.Namespace, p.Name, p.Spec.NodeName, wave+1, d.last.Name, other.Namespace, other.Name,
					other.Spec.NodeName, d.waves[other.UID]+1,
				))
				break
			}
		}
	}
	return found
}

// dockets prepares the maintenances of the recorded nodes. Tests that run at the same time have
// others.
func (h *history) dockets(running []v1alpha1.PodType) ([]*docket, error) {
	var dockets []*docket
	for _, m := range h.maintenances {
		selector, err := nodeaffinity.NewNodeSelector(m.last.Spec.NodeSelector)
		if err != nil {
			return nil, fmt.Errorf("selector of %s: %w", m.last.Name, err)
		}
		if !h.hasNodeOf(m, selector) {
			continue
		}
		if m.moved {
			return nil, fmt.Errorf("the selector or the plan of %s was changed: its order cannot be judged",
				m.last.Name)
		}
		d := &docket{
			maintenanceRecord: m, selector: selector, waves: map[types.UID]int{}, answers: map[question]*podRecord{},
		}
		for uid, p := range h.pods {
			wave := slices.IndexFunc(m.last.Spec.DrainPlan, func(e v1alpha1.DrainPlanEntry) bool {
				return covers(e, p.Pod)
			})
			if wave != notCovered && !slices.Contains(running, typeOf(p.Pod)) {
				d.waves[uid] = wave
			}
		}
		dockets = append(dockets, d)
	}
	slices.SortFunc(dockets, func(a, b *docket) int { return cmp.Compare(a.last.Name, b.last.Name) })
	return dockets, nil
}

// hasNodeOf reports whether a maintenance selects a recorded node, or has had one in its status.
func (h *history) hasNodeOf(m *maintenanceRecord, selector *nodeaffinity.NodeSelector) bool {
	for uid, node := range h.nodes {
		if slices.ContainsFunc(m.states, func(s *maintenanceState) bool { _, named := s.targets[uid]; return named }) ||
			slices.ContainsFunc(node.states, func(s nodeState) bool { return matchesIn(selector, node, s) }) {
			return true
		}
	}
	return false
}

// matchesIn reports whether a selector matches a node in one of its states.
func matchesIn(selector *nodeaffinity.NodeSelector, node *nodeRecord, state nodeState) bool {
	return selector.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.last.Name, Labels: state.labels}})
}

func (h *history) sortedPods() []*podRecord {
	return slices.SortedFunc(maps.Values(h.pods), func(a, b *podRecord) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.bound.at, b.bound.at))
	})
}

// askedAt returns the time at which a maintenance first asked a pod to leave. ok is false for a pod
// that ended for another reason.
func (h *history) askedAt(p *podRecord) (stamp, bool) {
	asked, evacuated := p.asked, false
	for _, e := range h.byPod[p.UID] {
		if e.made == nil {
			return stamp{}, false // another client asked
		}
		evacuated = true
		if e.made.before(asked) {
			asked = *e.made
		}
	}
	return asked, (evacuated || h.sent[p.UID]) && asked.at != never
}

// nodesByName has the successive nodes of each name.
type nodesByName map[string][]*nodeRecord

func (h *history) nodesByName() nodesByName {
	nodes := nodesByName{}
	for _, n := range h.nodes {
		nodes[n.last.Name] = append(nodes[n.last.Name], n)
	}
	return nodes
}

// at returns the node that had a name at a place in the history, or nil.
func (n nodesByName) at(name string, at moment) *nodeRecord {
	for _, node := range n[name] {
		if node.states[0].at <= at && at < node.gone.at {
			return node
		}
	}
	return nil
}

// changes returns the changes of the statuses about each node, by UID and in order.
func (h *history) changes() map[types.UID][]change {
	out := map[types.UID][]change{}
	for uid, m := range h.maintenances {
		last := map[types.UID]change{}
		for _, state := range m.states {
			nodes := maps.Clone(state.targets)
			for node := range last {
				if _, named := nodes[node]; !named {
					nodes[node] = nil
				}
			}
			for node, targets := range nodes {
				_, named := state.targets[node]
				c := change{stamp: state.stamp, maintenance: uid, held: state.draining && named, targets: targets}
				if before, ok := last[node]; ok && before.held == c.held && sameTargets(before.targets, c.targets) {
					continue
				}
				last[node] = c
				out[node] = append(out[node], c)
			}
		}
		if m.gone != nil {
			for node, c := range last {
				if c.held {
					out[node] = append(out[node], change{stamp: *m.gone, maintenance: uid})
				}
			}
		}
	}
	for _, changes := range out {
		slices.SortStableFunc(changes, func(a, b change) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.version, b.version))
		})
	}
	return out
}

// openedAt returns when the targets of a pod's node began to cover it without interruption, or when
// it was asked to leave if they did not.
func openedAt(p *corev1.Pod, changes []change, asked stamp) stamp {
	covering := map[types.UID]bool{}
	var since stamp
	for _, c := range changes {
		if asked.before(c.stamp) {
			break
		}
		before := len(covering)
		delete(covering, c.maintenance)
		if c.held && slices.ContainsFunc(c.targets, func(e v1alpha1.DrainPlanEntry) bool { return covers(e, p) }) {
			covering[c.maintenance] = true
		}
		if before == 0 && len(covering) > 0 {
			since = c.stamp
		}
	}
	if len(covering) == 0 {
		return asked
	}
	return since
}

// overtaken returns a pod that should have left before a wave was opened, or nil.
func (d *docket) overtaken(
	pods map[types.UID]*podRecord, nodes nodesByName, wave int, opened stamp, dockets []*docket,
) *podRecord {
	q := question{wave, opened}
	if answer, ok := d.answers[q]; ok {
		return answer
	}
	d.answers[q] = nil
	draining := d.drainingSince(opened)
	if draining == nil || !draining.before(opened) {
		return nil
	}
	for uid, w := range d.waves {
		p := pods[uid]
		if w >= wave || p.bound.at >= opened.at || p.gone.at <= opened.at {
			continue
		}
		node := nodes.at(p.Spec.NodeName, opened.at)
		if node == nil {
			continue
		}
		if joined := d.joined(node, opened.at); joined == nil || joined.at >= opened.at {
			continue
		}
		if node.cordonedAt(p.bound.at) && opened.seen.Sub(p.bound.seen) < bindLag {
			continue
		}
		if strictest(dockets, p, node, opened, 0) == v1alpha1.DrainBehaviorSkip {
			continue
		}
		d.answers[q] = p
		return p
	}
	return nil
}

// drainingSince returns when the maintenance began to drain; nil if it did not drain.
func (d *docket) drainingSince(now stamp) *stamp {
	if d.gone != nil && d.gone.at <= now.at {
		return nil
	}
	var since *stamp
	for _, state := range d.states {
		if now.before(state.stamp) {
			break
		}
		switch {
		case !state.draining:
			since = nil
		case since == nil:
			since = &state.stamp
		}
	}
	return since
}

// pausedAt reports whether the maintenance was paused at a place in the history. Other maintenances
// of its nodes do not wait for its pods then.
func (d *docket) pausedAt(now stamp) bool {
	paused := false
	for _, state := range d.states {
		if now.before(state.stamp) {
			break
		}
		paused = state.paused
	}
	return paused
}

// joined returns when the maintenance began to select a node; nil if it did not select the node at
// a place in the history.
func (d *docket) joined(node *nodeRecord, at moment) *stamp {
	if node.gone.at <= at {
		return nil
	}
	var since *stamp
	for i := range node.states {
		state := &node.states[i]
		if state.at > at {
			break
		}
		switch {
		case !matchesIn(d.selector, node, *state):
			since = nil
		case since == nil:
			since = &state.stamp
		}
	}
	return since
}

// cordonedAt reports whether the node was unschedulable at a place in the history.
func (n *nodeRecord) cordonedAt(at moment) bool {
	closed := false
	for _, state := range n.states {
		if state.at > at {
			break
		}
		closed = state.unschedulable
	}
	return closed
}

// covers reports whether an entry of a plan covers a pod.
func covers(e v1alpha1.DrainPlanEntry, p *corev1.Pod) bool {
	var priority int32
	if p.Spec.Priority != nil {
		priority = *p.Spec.Priority
	}
	if e.PodType != typeOf(p) || priority > e.PodPriority {
		return false
	}
	if e.PodSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(e.PodSelector)
	return err == nil && selector.Matches(labels.Set(p.Labels))
}

// typeOf returns the type of a pod by the kind of its controller.
func typeOf(p *corev1.Pod) v1alpha1.PodType {
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
