// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// Pod is a live pod that counts for a node.
type Pod struct {
	*corev1.Pod
	// Plan is the pod as the planner sees it.
	Plan drainplan.Pod
	// Kept is why the pod is left running, "" if it is to leave.
	Kept drainplan.KeptReason
	// Own: it is a pod of this server.
	Own bool
	// KeptAt is when its closed budget is a reason to keep it, zero if it is not waiting for one.
	KeptAt time.Time
	// Evacuation is the pod's Evacuation, or nil; Ours: it has our finalizer.
	Evacuation *v1alpha1.Evacuation
	Ours       bool
	// Bound: the pod is on the node, and not only nominated for it. StopsAt is when it is to have
	// stopped, zero if it was not asked to, and Grace is how long it may take. They are here since
	// a drain reads them of every pod.
	Bound   bool
	StopsAt time.Time
	Grace   time.Duration
}

// View is what the caches hold of the pods of a node. It is never changed: a change is seen in a
// new one.
type View struct {
	// Pods are the live pods that count for the node, sorted by namespace and name.
	Pods []Pod
	// Plan is the node as the planner sees it: without the pods that are left running.
	Plan *drainplan.Node
	// Recheck is when the next of its pods is to be kept, zero if none waits for that: no event
	// comes then.
	Recheck time.Time
}

// Keeps reports whether a pod is in the view as one that is left running.
func (v *View) Keeps(uid types.UID) bool {
	return slices.ContainsFunc(v.Pods, func(p Pod) bool { return p.UID == uid && p.Kept != "" })
}

// keptView is a view that is kept until a pod or an Evacuation on its node changes, so that an
// event costs what is on its node, not what is in the cluster.
type keptView struct {
	// uid is that of the node that the view is about, and static decides which of its static pods
	// are kept.
	uid    types.UID
	static protocol.StaticPodFacts
	// change is the number of the last event of the node: a view that was begun before it is not
	// kept.
	change uint64
	// view is nil if there is none.
	view *View
}

// views are the views that are kept, by the name of the node.
type views struct {
	loop.Memory[string, keptView]
	// changes counts the events of all nodes. It never starts again, not even for a node that was
	// forgotten: a view that is still being built then must not be taken for one of now.
	changes atomic.Uint64
}

// of returns the view of a node, from build if none is kept.
func (v *views) of(node *corev1.Node, build func(*corev1.Node) (*View, error)) (*View, error) {
	var kept keptView
	is := keptView{uid: node.UID, static: protocol.StaticPodFactsOf(node)}
	v.Change(node.Name, func(before keptView, _ bool) (keptView, bool) {
		if kept = before; kept.uid != is.uid || kept.static != is.static {
			kept = is
			kept.change = v.changes.Add(1)
		}
		return kept, true
	})
	if kept.view != nil {
		return kept.view, nil
	}
	view, err := build(node)
	if err != nil {
		return nil, err
	}
	v.Change(node.Name, func(now keptView, known bool) (keptView, bool) {
		if now == kept {
			now.view = view
		}
		return now, known
	})
	return view, nil
}

// drop notes that something on a node has changed.
func (v *views) drop(node string) {
	v.Change(node, func(kept keptView, known bool) (keptView, bool) {
		kept.change = v.changes.Add(1)
		kept.view = nil
		return kept, known
	})
}

// View returns what the caches hold of the pods of a node. The caller asks again at Recheck.
func (s *State) View(node *corev1.Node) (*View, error) {
	view, err := s.views.of(node, s.buildView)
	if err == nil && !view.Recheck.IsZero() && !s.clock.Now().Before(view.Recheck) {
		s.views.drop(node.Name)
		return s.views.of(node, s.buildView)
	}
	return view, err
}

func (s *State) buildView(node *corev1.Node) (*View, error) {
	pods := s.pods.OnNode(node.Name)
	view := &View{Pods: make([]Pod, 0, len(pods)), Plan: &drainplan.Node{Name: node.Name, UID: node.UID}}
	for _, pod := range pods {
		if !drainplan.IsLive(pod) {
			continue
		}
		live := s.Classify(pod, node)
		if !live.KeptAt.IsZero() && live.Kept == "" && (view.Recheck.IsZero() || live.KeptAt.Before(view.Recheck)) {
			view.Recheck = live.KeptAt
		}
		view.Pods = append(view.Pods, live)
	}
	slices.SortFunc(view.Pods, func(a, b Pod) int {
		if a.Namespace != b.Namespace {
			return strings.Compare(a.Namespace, b.Namespace)
		}
		return strings.Compare(a.Name, b.Name)
	})
	view.Plan.Pods = make([]drainplan.Pod, 0, len(view.Pods))
	for i := range view.Pods {
		if view.Pods[i].Kept == "" {
			view.Plan.Pods = append(view.Plan.Pods, view.Pods[i].Plan)
		}
	}
	return view, nil
}

// Classify returns what a drain makes of a pod on a node.
func (s *State) Classify(pod *corev1.Pod, node *corev1.Node) Pod {
	plan := drainplan.PodOf(pod, node.UID)
	live := Pod{Pod: pod, Plan: plan, Kept: drainplan.Kept(pod, plan.Type, node, s.evacuators), Own: s.isOwn(pod)}
	live.Bound = pod.Spec.NodeName != ""
	if pod.DeletionTimestamp != nil {
		live.StopsAt = pod.DeletionTimestamp.Time
		if seconds := pod.DeletionGracePeriodSeconds; seconds != nil {
			live.Grace = time.Duration(*seconds) * time.Second
		}
	}
	if live.Evacuation = s.EvacuationOf(pod); live.Evacuation != nil {
		live.Ours = IsOurs(live.Evacuation)
	}
	if live.Evacuation != nil && live.Kept == "" && plan.Type == v1alpha1.PodTypeDaemonSet {
		var waits bool
		if live.KeptAt, waits = protocol.KeptByBudgetAt(live.Evacuation, s.budgetPatience); waits && !s.clock.Now().Before(live.KeptAt) {
			live.Kept = drainplan.KeptBudget
		}
	}
	if live.Own && live.Kept == "" && s.hasComeBack(pod, node) {
		live.Kept = drainplan.KeptOwn
	}
	return live
}
