// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/host/podcache"
)

// Pod is a live pod that is on a node or nominated for the node. It has copies of the few fields
// that a drain reads: a corev1.Pod would take six times as much memory, in the view of every node
// under maintenance.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	// Node is the node for which the pod counts (see podcache.NodeOf), and Bound is set if the pod
	// is bound to it, and not only nominated for it.
	Node  string
	Bound bool
	// Owner is the name of the pod's controller. It is the name of the pod if it has none or is
	// static.
	Owner string
	// Plan has the fields of the pod that the planner reads.
	Plan drainplan.Pod
	// Kept is the reason why the pod is kept, "" if it has to leave.
	Kept drainplan.KeptReason
	// Own: the pod belongs to this server.
	Own bool
	// KeptAt is the time at which the pod is kept because its budget allows no disruption, zero if
	// it does not wait for a budget.
	KeptAt time.Time
	// Evacuation is the pod's Evacuation, or nil; Ours: it has our finalizer.
	Evacuation *v1alpha1.Evacuation
	Ours       bool
	// StopsAt is the end of the pod's grace period, zero if it is not terminating, and Grace is
	// the length of that period.
	StopsAt time.Time
	Grace   time.Duration
}

// View has the cached pods of a node. It is immutable: after a change, State.View returns a new
// one.
type View struct {
	// Pods are the live pods on the node or nominated for it, sorted by namespace and name.
	Pods []Pod
	// Plan is the input of the planner for the node, without the kept pods.
	Plan *drainplan.Node
	// Recheck is the next time at which a pod of the view becomes kept without an event, zero if
	// there is none.
	Recheck time.Time
}

// Keeps reports whether a pod is in the view and is kept.
func (v *View) Keeps(uid types.UID) bool {
	return slices.ContainsFunc(v.Pods, func(p Pod) bool { return p.UID == uid && p.Kept != "" })
}

// keptView is a cached view. It is valid until a pod or an Evacuation on its node changes, so that
// after an event only the view of one node is built again.
type keptView struct {
	// uid is the UID of the node, and static has the facts that determine which of its static pods
	// are kept.
	uid    types.UID
	static protocol.StaticPodFacts
	// change is the number of the last event of the node. A view whose build began before that
	// event is not cached.
	change uint64
	// view is nil if there is none.
	view *View
}

type views struct {
	loop.Memory[string, keptView]
	// changes counts the events of all nodes. There is one counter for all nodes, so that it never
	// restarts. A counter per node would restart when the node is forgotten, and a view that is
	// being built at that time would not be recognized as outdated.
	changes atomic.Uint64
}

// of returns the cached view of a node, otherwise the result of build.
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

func (v *views) drop(node string) {
	v.Change(node, func(kept keptView, known bool) (keptView, bool) {
		kept.change = v.changes.Add(1)
		kept.view = nil
		return kept, known
	})
}

// View returns the view of a node. The caller has to call it again at Recheck.
func (s *State) View(node *corev1.Node) (*View, error) {
	view, err := s.views.of(node, s.buildView)
	if err == nil && !view.Recheck.IsZero() && !s.clock.Now().Before(view.Recheck) {
		s.views.drop(node.Name)
		return s.views.of(node, s.buildView)
	}
	return view, err
}

func (s *State) buildView(node *corev1.Node) (*View, error) {
	view := &View{Pods: make([]Pod, 0, s.pods.CountOn(node.Name)), Plan: &drainplan.Node{Name: node.Name, UID: node.UID}}
	s.pods.VisitOn(node.Name, func(pod *corev1.Pod) {
		if !drainplan.IsLive(pod) {
			return
		}
		live := s.Classify(pod, node)
		if !live.KeptAt.IsZero() && live.Kept == "" && (view.Recheck.IsZero() || live.KeptAt.Before(view.Recheck)) {
			view.Recheck = live.KeptAt
		}
		view.Pods = append(view.Pods, live)
	})
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

// LivePods lists the pods on a node from the API, without those that a drain keeps. It does not
// return pods that are only nominated for the node, since the API cannot select them by node: for
// those, rely on the cache and on the nodemaintenance controller.
func (s *State) LivePods(ctx context.Context, node *corev1.Node) ([]Pod, error) {
	view, err := s.View(node)
	if err != nil {
		return nil, err
	}
	list, err := s.cluster.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node.Name, err)
	}
	var pods []Pod
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Spec.NodeName != node.Name || !drainplan.IsLive(pod) || view.Keeps(pod.UID) {
			continue
		}
		if live := s.Classify(pod, node); live.Kept == "" {
			pods = append(pods, live)
		}
	}
	return pods, nil
}

// NewPod returns a Pod with the fields that depend only on the pod, its node, and evacuators, which
// are the enabled built-in evacuators.
func NewPod(pod *corev1.Pod, node *corev1.Node, evacuators sets.Set[string]) Pod {
	plan := drainplan.PodOf(pod, node.UID)
	live := Pod{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Node: podcache.NodeOf(pod), Bound: pod.Spec.NodeName != "", Owner: ownerOf(pod),
		Plan: plan, Kept: drainplan.Kept(pod, plan.Type, node, evacuators),
	}
	if pod.DeletionTimestamp != nil {
		live.StopsAt = pod.DeletionTimestamp.Time
		if seconds := pod.DeletionGracePeriodSeconds; seconds != nil {
			live.Grace = time.Duration(*seconds) * time.Second
		}
	}
	return live
}

// Classify returns how a drain treats a pod on a node.
func (s *State) Classify(pod *corev1.Pod, node *corev1.Node) Pod {
	live := NewPod(pod, node, s.evacuators)
	live.Own = s.isOwn(pod)
	if live.Evacuation = s.cluster.EvacuationOf(pod); live.Evacuation != nil {
		live.Ours = IsOurs(live.Evacuation)
	}
	if live.Evacuation != nil && live.Kept == "" && live.Plan.Type == v1alpha1.PodTypeDaemonSet {
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

// ownerOf returns what a status calls the owner of a pod. The controller of a static pod is its
// node, which says nothing about the pod. The API server checks no name of an owner.
func ownerOf(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && owner.Kind != "Node" {
		return protocol.OneLine(owner.Name, validation.DNS1123SubdomainMaxLength)
	}
	return pod.Name
}
