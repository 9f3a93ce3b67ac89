// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

type wave struct {
	index  int
	entry  *v1alpha1.DrainPlanEntry
	covers drainplan.Targets
	// pods are the pods of the wave, sorted by node, namespace and name. listed are the first of
	// these pods, up to the limits.
	pods, listed []*leavingPod

	asked, terminating, waiting int
}

type leavingPod struct {
	*Pod
	wave *wave
	*handling
	drainplan.Treatment
	// blockers are the reasons of the pod's blockers, the worst first. It is only set for listed
	// pods.
	blockers []string
	listed   bool
}

// checkEvery is the number of pods between two checks of the context.
const checkEvery = 1024

// sortPods assigns each pod of the subject's nodes to its wave, or to the pods that are kept
// running, and checks it for problems.
func (d *decision) sortPods(ctx context.Context) error {
	plan := d.Subject.Spec.DrainPlan
	for i := range plan {
		covers, err := drainplan.CompileTargets(plan[i : i+1])
		if err != nil {
			return fmt.Errorf("plan entry %d: %w", i, err)
		}
		d.waves = append(d.waves, &wave{index: i, entry: &plan[i], covers: covers})
	}
	d.kept = map[drainplan.KeptReason][]*Pod{}
	trouble, handlings := newTrouble(d), handlings{decision: d, known: map[*traits]*handling{}}
	seen := 0
	for _, n := range d.Subject.Allowed() {
		pods, counts, targets := d.Pods.on(n.Name), d.nodes[n.Name], d.result.Targets[n.Name]
		// Pointers to these elements are kept, so the slice must not grow.
		all := make([]leavingPod, 0, len(pods))
		for i := range pods {
			if seen++; seen%checkEvery == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			pod := &pods[i]
			treatment, kept := d.rules[n.Name].Of(pod.planned(), d.Now), pod.Kept
			if kept == "" && treatment.Behavior == v1alpha1.DrainBehaviorSkip {
				kept = drainplan.KeptSkipped
			}
			if kept != "" {
				d.kept[kept] = append(d.kept[kept], pod)
				counts.kept++
				continue
			}
			w := d.waveOf(pod)
			if w == nil {
				continue
			}
			all = append(all, leavingPod{Pod: pod, wave: w, Treatment: treatment, handling: &noHandling})
			leaving := &all[len(all)-1]
			if !pod.Nominated && !leaving.completes() {
				var err error
				if leaving.handling, err = handlings.of(ctx, pod); err != nil {
					return err
				}
			}
			w.add(leaving, targets)
			counts.add(leaving, targets)
			d.leaving = append(d.leaving, leaving)
			trouble.look(leaving, counts)
		}
	}
	d.blockers = trouble.all()
	return nil
}

// waveOf returns the first entry that covers the pod. A plan with defaults covers every pod.
func (d *decision) waveOf(pod *Pod) *wave {
	planned := pod.planned()
	for _, w := range d.waves {
		if w.covers.Cover(planned) {
			return w
		}
	}
	return nil
}

// completes reports whether the plan lets the pod complete.
func (p *leavingPod) completes() bool { return p.Behavior == v1alpha1.DrainBehaviorWaitCompleted }

// add adds a pod that has to leave the node.
func (n *nodeState) add(pod *leavingPod, targets drainplan.Targets) {
	n.pods++
	reached := targets.Cover(pod.planned())
	switch {
	case pod.completes():
		n.waiting++
		if reached {
			n.completing.Add(pod.Namespace+"/"+pod.Name, pod.Until)
		}
	case reached:
		n.asked++
	}
}

func (w *wave) add(pod *leavingPod, targets drainplan.Targets) {
	w.pods = append(w.pods, pod)
	if pod.Terminating() {
		w.terminating++
	}
	if pod.completes() {
		w.waiting++
		return
	}
	if targets.Cover(pod.planned()) {
		w.asked++
	}
}

func (d *decision) describeWaves(out *v1alpha1.NodeMaintenancePreview) {
	out.PodCount = int32(len(d.leaving))
	for _, w := range d.waves {
		out.PodsWaitingCount += int32(w.waiting)
	}
	room := MaxPods
	for _, w := range d.waves {
		w.listed = w.pods[:min(len(w.pods), MaxPodsOfWave, room)]
		room -= len(w.listed)
		for _, pod := range w.listed {
			pod.listed = true
		}
	}
	for _, b := range d.blockers {
		for _, pod := range b.pods {
			if pod.listed && !slices.Contains(pod.blockers, b.Reason) {
				pod.blockers = append(pod.blockers, b.Reason)
			}
		}
	}
	for _, w := range d.waves {
		if len(w.pods) > 0 {
			out.Waves = append(out.Waves, w.describe())
		}
	}
}

// describe returns a wave of the preview. Its pods are sorted by node, namespace and name.
func (w *wave) describe() v1alpha1.PreviewWave {
	out := v1alpha1.PreviewWave{
		Index: int32(w.index), PodType: w.entry.PodType, PodPriority: w.entry.PodPriority, PodSelector: w.entry.PodSelector.DeepCopy(),
		PodCount: int32(len(w.pods)), PodsAsked: int32(w.asked), PodsTerminating: int32(w.terminating),
		PodsOmitted: int32(len(w.pods) - len(w.listed)), PodsWaiting: int32(w.waiting),
	}
	byClass, onNode := map[string]int{}, map[string]int{}
	for _, pod := range w.pods {
		onNode[pod.Node]++
		if pod.completes() {
			continue
		}
		first := ""
		if len(pod.Classes) > 0 {
			first = pod.Classes[0]
		}
		byClass[first]++
	}
	out.NodeCount = int32(len(onNode))
	classes := slices.SortedFunc(maps.Keys(byClass), func(a, b string) int {
		return cmp.Or(-cmp.Compare(byClass[a], byClass[b]), strings.Compare(a, b))
	})
	for _, class := range classes[:min(len(classes), MaxEvacuators)] {
		out.Evacuators = append(out.Evacuators, v1alpha1.PreviewEvacuator{EvacuatorClass: class, PodCount: int32(byClass[class])})
	}
	for _, pod := range w.listed {
		if n := len(out.Nodes); n == 0 || out.Nodes[n-1].Name != pod.Node {
			out.Nodes = append(out.Nodes, v1alpha1.PreviewWaveNode{Name: pod.Node, PodCount: int32(onNode[pod.Node])})
		}
		n := &out.Nodes[len(out.Nodes)-1]
		if last := len(n.Namespaces); last == 0 || n.Namespaces[last-1].Name != pod.Namespace {
			n.Namespaces = append(n.Namespaces, v1alpha1.PreviewWaveNamespace{Name: pod.Namespace})
		}
		namespace := &n.Namespaces[len(n.Namespaces)-1]
		namespace.Pods = append(namespace.Pods, v1alpha1.PreviewPod{
			Name: pod.Name, EvacuatorClasses: pod.Classes, Blockers: pod.blockers, Terminating: pod.Terminating(),
		})
	}
	return out
}
