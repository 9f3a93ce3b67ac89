// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Facts are the known facts about a maintenance at one time.
type Facts struct {
	// Maintenance is the object as it was last read.
	Maintenance *v1alpha1.NodeMaintenance
	// Evacuations are all Evacuations that were read; Evacuations on other nodes are ignored.
	Evacuations []v1alpha1.Evacuation
	// Departures are the pods that left the nodes according to the Evacuations that the plugin has
	// read; nil if Evacuations could not be read.
	Departures *Departures
	// Notes describe reads that failed.
	Notes []string
	// Now is the time of the facts.
	Now time.Time

	// living has, for each node, the number of Evacuations whose pods have not left. It is computed
	// on first use.
	living map[string]int
}

// waves returns the waves that have or had pods; none if the server does not report waves. It
// corrects the numbers of the present wave with the Evacuations, which are newer: pods that have
// left since the status was written belong to that wave.
func (f *Facts) waves() []v1alpha1.NodeMaintenanceWave {
	waves := slices.Clone(f.Maintenance.Status.Waves)
	waves = slices.DeleteFunc(waves, func(w v1alpha1.NodeMaintenanceWave) bool { return int(w.Entry) >= len(f.Maintenance.Spec.DrainPlan) })
	if v1alpha1.IsEnding(f.Maintenance) {
		return waves
	}
	leaving, goneBefore := -1, int32(0)
	for i := range waves {
		switch {
		case waves[i].StartTime == nil || waves[i].PodsLeft == 0:
			goneBefore += waves[i].PodsPeak - waves[i].PodsLeft
		case leaving >= 0:
			// If several waves are leaving, the wave of a departed pod is unknown.
			return waves
		default:
			leaving = i
		}
	}
	if leaving >= 0 {
		w := &waves[leaving]
		gone := w.PodsPeak - w.PodsLeft
		w.PodsLeft = max(w.PodsLeft-f.leftSince(), 0)
		// If new pods have been created since, more pods have left than the peak shows.
		seen := min(int32(f.Departures.since(w.StartTime.Time, f.outside())), int32(f.count().gone)-goneBefore)
		w.PodsPeak = max(w.PodsPeak, w.PodsLeft+max(gone, seen))
	}
	return waves
}

// leftSince returns how many pods have left since the status was written, without those of nodes
// whose pods the waves do not have.
func (f *Facts) leftSince() int32 {
	var left int32
	for i := range f.Maintenance.Status.NodeStatuses {
		if n := &f.Maintenance.Status.NodeStatuses[i]; !glance.IsOutside(n) {
			left += n.PodsEvacuating - int32(f.evacuating(n))
		}
	}
	return left
}

// outside returns the names of the nodes whose pods the waves do not have.
func (f *Facts) outside() sets.Set[string] {
	nodes := sets.New[string]()
	for i := range f.Maintenance.Status.NodeStatuses {
		if n := &f.Maintenance.Status.NodeStatuses[i]; glance.IsOutside(n) {
			nodes.Insert(n.NodeRef.Name)
		}
	}
	return nodes
}

// Departures records which pods have left the nodes of a maintenance, and when. The server deletes
// an Evacuation some minutes after its pod has left, so a single read finds the most recent
// departures, and a watch finds all departures since its start. The number of earlier departures is
// derived from the peaks of the nodes.
//
// A pod that replaces a departed pod on the same node does not count when it leaves: pods that
// leave and return again and again are no progress.
type Departures struct {
	byPod  map[types.UID]departure
	byNode map[string]int
	// first is the time at which the first pod of each kind left each node.
	first map[podKind]time.Time
}

// departure is the time at which a pod left its node.
type departure struct {
	at   time.Time
	node string
}

// podKind identifies the pods of one workload on a node, which can replace each other.
type podKind struct {
	namespace, node, labels string
}

// kindOf returns the kind of the pod of an Evacuation, from the labels of the Evacuation, which are
// copied from the pod. It returns false for a pod without labels: no controller recreates such a
// pod.
func kindOf(e *v1alpha1.Evacuation) (podKind, bool) {
	return podKind{e.Namespace, e.Spec.NodeName, labels.Set(e.Labels).String()}, len(e.Labels) > 0
}

// cameBack reports whether the pod of an Evacuation was created after a pod of its kind had left
// the node: all pods of a kind on a node are evacuated at the same time.
func (d *Departures) cameBack(e *v1alpha1.Evacuation) bool {
	kind, ok := kindOf(e)
	first, left := d.first[kind]
	return ok && left && e.CreationTimestamp.After(first)
}

// See adds the departures that Evacuations record on nodes of the maintenance since its drain
// began.
func (d *Departures) See(nm *v1alpha1.NodeMaintenance, evacuations []v1alpha1.Evacuation) {
	start := v1alpha1.StageEntered(nm, v1alpha1.NodeMaintenanceStageDrain)
	if start.IsZero() {
		return
	}
	if d.byPod == nil {
		d.byPod, d.byNode, d.first = map[types.UID]departure{}, map[string]int{}, map[podKind]time.Time{}
	}
	nodes := Nodes(nm)
	counts := func(e *v1alpha1.Evacuation) (time.Time, bool) {
		at, left := protocol.LeftAt(e)
		return at, left && nodes.Has(e.Spec.NodeName) && !at.Before(start)
	}
	for i := range evacuations {
		e := &evacuations[i]
		if at, ok := counts(e); ok {
			if kind, ok := kindOf(e); ok && (d.first[kind].IsZero() || at.Before(d.first[kind])) {
				d.first[kind] = at
			}
		}
	}
	for i := range evacuations {
		e := &evacuations[i]
		at, ok := counts(e)
		if _, known := d.byPod[e.Spec.PodRef.UID]; !ok || known || d.cameBack(e) {
			continue
		}
		d.byPod[e.Spec.PodRef.UID] = departure{at, e.Spec.NodeName}
		d.byNode[e.Spec.NodeName]++
	}
}

// from returns the number of recorded departures from a node.
func (d *Departures) from(node string) int {
	if d == nil {
		return 0
	}
	return d.byNode[node]
}

// evacuating returns the number of pods of a node that are being evacuated and have not left. It
// counts the Evacuations, which are newer than the counter in the status: the server writes that at
// most once a second. After a pause or another change of the spec, pods whose Evacuations are gone
// may have been withdrawn, and not have left. Then the counter is right until the server writes it.
func (f *Facts) evacuating(n *v1alpha1.NodeMaintenanceNodeStatus) int {
	if nm := f.Maintenance; f.Departures == nil || nm.Spec.Paused || nm.Status.ObservedGeneration != nm.Generation {
		return int(n.PodsEvacuating)
	}
	if f.living == nil {
		f.living = map[string]int{}
		for i := range f.Evacuations {
			if e := &f.Evacuations[i]; !protocol.IsComplete(e) {
				f.living[e.Spec.NodeName]++
			}
		}
	}
	return min(int(n.PodsEvacuating), f.living[n.NodeRef.Name])
}

// left returns the number of pods that must still leave a node.
func (f *Facts) left(n *v1alpha1.NodeMaintenanceNodeStatus) int {
	return int(n.PodsPendingEvacuation) + f.evacuating(n)
}

// gone returns the number of pods that have left a node: the peak minus the remaining pods, or the
// recorded departures if that is more, since new pods may have been created.
func (f *Facts) gone(n *v1alpha1.NodeMaintenanceNodeStatus) int {
	return max(f.Departures.from(n.NodeRef.Name), int(n.PodsPeak)-f.left(n), 0)
}

// knowsGone reports whether the number of departed pods can be computed.
func (f *Facts) knowsGone() bool {
	return f.Departures != nil || f.Maintenance.Status.PodsGone > 0 || slices.ContainsFunc(f.Maintenance.Status.NodeStatuses, func(n v1alpha1.NodeMaintenanceNodeStatus) bool { return n.PodsPeak > 0 })
}

// since returns the number of pods that have left since a time, without those of some nodes.
func (d *Departures) since(start time.Time, without sets.Set[string]) int {
	count := 0
	for _, one := range d.all() {
		if !one.at.Before(start) && !without.Has(one.node) {
			count++
		}
	}
	return count
}

func (d *Departures) all() map[types.UID]departure {
	if d == nil {
		return nil
	}
	return d.byPod
}

// Nodes returns the names of the nodes of a maintenance.
func Nodes(nm *v1alpha1.NodeMaintenance) sets.Set[string] {
	nodes := sets.New[string]()
	for i := range nm.Status.NodeStatuses {
		nodes.Insert(nm.Status.NodeStatuses[i].NodeRef.Name)
	}
	return nodes
}

// DrainedNodes returns the names of the nodes that a maintenance drains. There are none unless it
// is in stage Drain: then the pods that leave these nodes do so for other maintenances.
func DrainedNodes(nm *v1alpha1.NodeMaintenance) sets.Set[string] {
	if !v1alpha1.IsDraining(nm) {
		return nil
	}
	return Nodes(nm)
}

// count has the sums over the nodes of a maintenance.
type count struct {
	nodes, drained            int
	gone, pending, evacuating int
	// waiting counts the pods among pending that the plan lets complete.
	blocked, waiting int
}

func (c count) left() int { return c.pending + c.evacuating }

// done reports whether all pods that must leave a node have left. A node without a target is not
// part of any wave.
func done(n *v1alpha1.NodeMaintenanceNodeStatus) bool {
	return len(n.DrainTargets) > 0 && n.PodsPendingEvacuation == 0 && n.PodsEvacuating == 0
}

func (f *Facts) count() count {
	nm := f.Maintenance
	c := count{nodes: glance.Nodes(nm), drained: glance.DrainedNodes(nm), gone: len(f.Departures.all()), blocked: glance.BlockedPods(nm)}
	for i := range f.Maintenance.Status.NodeStatuses {
		n := &f.Maintenance.Status.NodeStatuses[i]
		// c.gone already includes the departures, including departures from nodes that were
		// released since then.
		c.gone += f.gone(n) - f.Departures.from(n.NodeRef.Name)
		c.pending += int(n.PodsPendingEvacuation)
		c.waiting += int(ptr.Deref(n.PodsWaiting, 0))
		c.evacuating += f.evacuating(n)
	}
	// The server also counts pods of nodes that were released since then.
	gone, all := glance.Pods(nm)
	if v1alpha1.IsEnding(nm) {
		c.gone, c.pending, c.evacuating, c.waiting = gone, all-gone, 0, 0
	}
	c.gone = max(c.gone, gone)
	return c
}

const paceWindow = time.Minute

// pace is the rate at which pods leave.
type pace struct {
	// departures is the number of pods that have left within the window.
	departures int
	over       time.Duration
}

func (f *Facts) pace() pace {
	start := v1alpha1.StageEntered(f.Maintenance, v1alpha1.NodeMaintenanceStageDrain)
	over := min(max(f.Now.Sub(start), 0), paceWindow)
	return pace{departures: f.Departures.since(f.Now.Add(-over), nil), over: over}
}

func (p pace) perMinute() int {
	if p.over < time.Second {
		return 0
	}
	return int(float64(p.departures)/p.over.Minutes() + 0.5)
}

// forPods returns the time in which a number of pods leave at this pace; 0 if the pace is unknown.
func (p pace) forPods(pods int) time.Duration {
	if p.departures == 0 || p.over < time.Second || pods <= 0 {
		return 0
	}
	return max((p.over * time.Duration(pods) / time.Duration(p.departures)).Round(time.Second), time.Second)
}
