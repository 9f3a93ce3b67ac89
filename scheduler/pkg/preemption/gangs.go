// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util"
	"k8s.io/utils/ptr"
)

// PodGroupPostFilter searches for victims in the whole cluster so that all pods of a group fit. It
// runs upstream's search on listers in which the held-back pods have the highest priority, so that
// upstream does not choose them as victims. Everything else in these listers is unchanged.
func (p *Plugin) PodGroupPostFilter(ctx context.Context, _ fwk.PodGroupCycleState, group fwk.PodGroupInfo, schedule fwk.PodGroupSchedulingFunc,
) (result *fwk.PodGroupPostFilterResult, status *fwk.Status) {
	defer func() { metrics.WorkloadPreemptionAttempts.WithLabelValues(status.Code().String()).Inc() }()
	object, who := describe(group)
	if result, status := p.groupWaits(who); status != nil {
		return result, status
	}
	var o outcome
	p.waiting.begin(who)
	defer func() { p.conclude(who.uid, o) }()
	r, err := p.rules(who.priority)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	o.restricted = r.restrict()
	err = p.mutate(func(lister fwk.MutableSnapshotSharedLister) error {
		handle := p.handle
		if o.restricted {
			masked, held, err := p.mask(ctx, r, lister)
			if err != nil {
				return err
			}
			handle, o.held = maskedHandle{Handle: p.handle, masked: masked}, held
		}
		called := false
		result, status = upstream.NewPodGroupEvaluator(handle, p.Executor, p.features).Preempt(ctx, group,
			func(ctx context.Context) (*fwk.PodGroupAssignments, *fwk.Status) {
				called = true
				return schedule(ctx)
			})
		// Upstream returns early for a group that must not preempt, or whose preemption is in
		// progress.
		o.searched = status.Code() != fwk.Error && (called || status.Code() == fwk.UnschedulableAndUnresolvable)
		return nil
	})
	if err == nil && o.searched && !status.IsSuccess() && o.held.any() {
		err = p.mutate(func(fwk.MutableSnapshotSharedLister) error {
			if !p.fitsWithAll(ctx, group, schedule) {
				// The group would not fit without budgets either.
				o.held = heldPods{}
			}
			return nil
		})
	}
	if err != nil {
		o.searched = false
		return nil, fwk.AsStatus(err)
	}
	o.found = status.IsSuccess()
	if o.searched && !o.found && o.held.any() {
		heldBackEvent(ctx, p.handle, object, o.held)
	}
	if message := status.Message(); message != "" {
		status = fwk.NewStatus(status.Code(), "pod group preemption: "+message)
	}
	return result, status
}

// mutate calls change in a session that allows changes to the snapshot, and then undoes the
// changes.
func (p *Plugin) mutate(change func(fwk.MutableSnapshotSharedLister) error) error {
	lister := p.handle.MutableSnapshotSharedLister()
	if err := lister.StartMutations(); err != nil {
		return fmt.Errorf("begin to change the snapshot for a group: %w", err)
	}
	err := change(lister)
	if undone := lister.EndMutations(); undone != nil {
		return fmt.Errorf("undo the changes of the snapshot for a group: %w", undone)
	}
	return err
}

// groupWaits returns a status if the group must not search for victims now: its victims are
// terminating, which upstream's cache shows late, or their eviction was refused a moment ago.
func (p *Plugin) groupWaits(who waiter) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	if p.gate.awaitsVictims(who.uid, func(node string) bool { return p.isNominated(node, who.pods...) }) {
		// As in upstream, success keeps the nominations.
		nominations := map[types.NamespacedName]*fwk.NominatingInfo{}
		for _, pod := range who.pods {
			nominations[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = &fwk.NominatingInfo{NominatingMode: fwk.ModeNoop}
		}
		return &fwk.PodGroupPostFilterResult{NominatingInfos: nominations},
			fwk.NewStatus(fwk.Success, "pod group preemption: pods that were evicted for the group are not gone yet")
	}
	// A group has one candidate, the whole cluster.
	if until := p.gate.nextTry(who.uid, nil); !until.IsZero() {
		p.waiting.wakeAt(who, until)
		return nil, fwk.NewStatus(fwk.Unschedulable, "pod group preemption: not eligible because the eviction of its victims was refused a moment ago.")
	}
	return nil, nil
}

// fitsWithAll reports whether the group would fit if all less important pods were removed,
// regardless of budgets. It runs upstream's search only up to that decision.
func (p *Plugin) fitsWithAll(ctx context.Context, group fwk.PodGroupInfo, schedule fwk.PodGroupSchedulingFunc) bool {
	fits := false
	upstream.NewPodGroupEvaluator(p.handle, p.Executor, p.features).Preempt(ctx, group,
		func(ctx context.Context) (*fwk.PodGroupAssignments, *fwk.Status) {
			_, status := schedule(ctx)
			fits = status.IsSuccess()
			return nil, fwk.NewStatus(fwk.Unschedulable)
		})
	return fits
}

func describe(group fwk.PodGroupInfo) (runtime.Object, waiter) {
	pods := group.GetUnscheduledPods()
	if composite := group.GetCompositePodGroup(); composite != nil {
		return composite, waiter{uid: composite.UID, priority: util.CompositePodGroupPriority(composite), pods: pods}
	}
	single := group.GetPodGroup()
	return single, waiter{uid: single.UID, priority: util.PodGroupPriority(single), pods: pods}
}

// mask returns the pods of all nodes that must not become victims. It applies the per-node rule as
// if all pods ran on one node.
func (p *Plugin) mask(ctx context.Context, r *rules, lister fwk.SharedLister) (sets.Set[types.UID], heldPods, error) {
	nodes, err := lister.NodeInfos().List()
	if err != nil {
		return nil, heldPods{}, err
	}
	victims, err := p.Evaluator.GetVictimsOnNode(ctx, wholeCluster{nodes: nodes})
	if err != nil {
		return nil, heldPods{}, err
	}
	_, held := offer(r, victims)
	pods, masked := podsOf(held), sets.New[types.UID]()
	for _, pod := range pods {
		masked.Insert(pod.UID)
	}
	return masked, r.heldOf(pods), nil
}

// wholeCluster is a node with the pods of all nodes. Upstream lists the possible victims on it.
type wholeCluster struct {
	fwk.NodeInfo
	nodes []fwk.NodeInfo
}

func (c wholeCluster) GetPods() []fwk.PodInfo {
	var pods []fwk.PodInfo
	for _, node := range c.nodes {
		pods = append(pods, node.GetPods()...)
	}
	return pods
}

// maskedHandle is a Handle in whose snapshot the masked pods have the highest priority.
type maskedHandle struct {
	fwk.Handle
	masked sets.Set[types.UID]
}

func (h maskedHandle) MutableSnapshotSharedLister() fwk.MutableSnapshotSharedLister {
	return maskedLister{h.Handle.MutableSnapshotSharedLister(), h.masked}
}

func (h maskedHandle) SnapshotSharedLister() fwk.SharedLister {
	return h.MutableSnapshotSharedLister()
}

type maskedLister struct {
	fwk.MutableSnapshotSharedLister
	masked sets.Set[types.UID]
}

func (l maskedLister) NodeInfos() fwk.NodeInfoLister {
	return maskedNodes{l.MutableSnapshotSharedLister.NodeInfos(), l.masked}
}

type maskedNodes struct {
	fwk.NodeInfoLister
	masked sets.Set[types.UID]
}

func (l maskedNodes) List() ([]fwk.NodeInfo, error) {
	return l.wrap(l.NodeInfoLister.List())
}

func (l maskedNodes) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) {
	return l.wrap(l.NodeInfoLister.HavePodsWithAffinityList())
}

func (l maskedNodes) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	return l.wrap(l.NodeInfoLister.HavePodsWithRequiredAntiAffinityList())
}

func (l maskedNodes) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	return l.wrap(l.NodeInfoLister.HavePodsWithRequiredNonHostScopedAntiAffinityList())
}

func (l maskedNodes) wrap(nodes []fwk.NodeInfo, err error) ([]fwk.NodeInfo, error) {
	masked := make([]fwk.NodeInfo, 0, len(nodes))
	for _, node := range nodes {
		masked = append(masked, maskedNode{node, l.masked})
	}
	return masked, err
}

func (l maskedNodes) Get(name string) (fwk.NodeInfo, error) {
	node, err := l.NodeInfoLister.Get(name)
	if err != nil {
		return nil, err
	}
	return maskedNode{node, l.masked}, nil
}

type maskedNode struct {
	fwk.NodeInfo
	masked sets.Set[types.UID]
}

func (n maskedNode) GetPods() []fwk.PodInfo { return n.mask(n.NodeInfo.GetPods()) }

func (n maskedNode) GetPodsWithAffinity() []fwk.PodInfo {
	return n.mask(n.NodeInfo.GetPodsWithAffinity())
}

func (n maskedNode) GetPodsWithRequiredAntiAffinity() []fwk.PodInfo {
	return n.mask(n.NodeInfo.GetPodsWithRequiredAntiAffinity())
}

func (n maskedNode) GetPodsWithRequiredNonHostScopedAntiAffinity() []fwk.PodInfo {
	return n.mask(n.NodeInfo.GetPodsWithRequiredNonHostScopedAntiAffinity())
}

// mask returns the pods in the same order, with copies in place of the masked pods. A copy has the
// highest priority and no group, because upstream would use the group's priority. Other pods of the
// group can still be victims.
func (n maskedNode) mask(pods []fwk.PodInfo) []fwk.PodInfo {
	masked := make([]fwk.PodInfo, 0, len(pods))
	for _, info := range pods {
		if pod := info.GetPod(); n.masked.Has(pod.UID) {
			top := *pod
			top.Spec.Priority, top.Spec.SchedulingGroup = ptr.To[int32](math.MaxInt32), nil
			info = maskedPod{info, &top}
		}
		masked = append(masked, info)
	}
	return masked
}

// Snapshot returns a copy with the same masks, because filters receive copies of nodes.
func (n maskedNode) Snapshot() fwk.NodeInfo {
	return maskedNode{n.NodeInfo.Snapshot(), n.masked}
}

type maskedPod struct {
	fwk.PodInfo
	pod *corev1.Pod
}

func (p maskedPod) GetPod() *corev1.Pod { return p.pod }
