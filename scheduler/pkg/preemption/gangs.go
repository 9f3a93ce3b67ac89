/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package preemption

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"haulout.dev/haulout/pkg/drain/budget"
)

// PodGroupPostFilter looks for victims in the whole cluster so that all pods of a group fit. It
// runs upstream's search on listers in which pods that are held back have the highest priority, so
// that they are no possible victims and everything else about them stays.
func (p *Plugin) PodGroupPostFilter(ctx context.Context, _ fwk.PodGroupCycleState, group fwk.PodGroupInfo, schedule fwk.PodGroupSchedulingFunc,
) (result *fwk.PodGroupPostFilterResult, status *fwk.Status) {
	defer func() { metrics.WorkloadPreemptionAttempts.WithLabelValues(status.Code().String()).Inc() }()
	object, uid, priority := describe(group)
	search := p.waiting.begin()
	defer p.waiting.end(search)
	r, err := p.rules(priority)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	lister := p.handle.MutableSnapshotSharedLister()
	if err := lister.StartMutations(); err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("begin to change the snapshot for a group: %w", err))
	}
	defer func() {
		if err := lister.EndMutations(); err != nil {
			result, status = nil, fwk.AsStatus(fmt.Errorf("undo the changes of the snapshot for a group: %w", err))
		}
	}()
	handle, held := p.handle, heldPods{}
	if r.restrict() {
		pods, err := scheduledPods(lister)
		if err != nil {
			return nil, fwk.AsStatus(err)
		}
		var masks *masks
		masks, held = p.mask(r, pods)
		handle = maskedHandle{Handle: p.handle, masks: masks}
	}
	result, status = upstream.NewPodGroupEvaluator(handle, p.Executor, p.features).Preempt(ctx, group, schedule)
	p.conclude(search, waiter{uid: uid, priority: priority, pods: group.GetUnscheduledPods()},
		outcome{searched: true, found: status.IsSuccess(), restricted: r.restrict(), held: held})
	if !status.IsSuccess() && held.any() {
		heldBackEvent(ctx, p.handle, object, held)
	}
	if message := status.Message(); message != "" {
		status = fwk.NewStatus(status.Code(), "pod group preemption: "+message)
	}
	return result, status
}

// describe returns the root object of the group, its UID and its priority.
func describe(group fwk.PodGroupInfo) (runtime.Object, types.UID, int32) {
	if composite := group.GetCompositePodGroup(); composite != nil {
		return composite, composite.UID, util.CompositePodGroupPriority(composite)
	}
	single := group.GetPodGroup()
	return single, single.UID, util.PodGroupPriority(single)
}

func scheduledPods(lister fwk.SharedLister) ([]*corev1.Pod, error) {
	nodes, err := lister.NodeInfos().List()
	if err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	for _, node := range nodes {
		for _, pod := range node.GetPods() {
			pods = append(pods, pod.GetPod())
		}
	}
	return pods, nil
}

// masks are the pods and groups that no group may preempt. Keys are namespace and name.
type masks struct {
	pods              sets.Set[types.UID]
	groups, composite sets.Set[types.NamespacedName]
}

// mask chooses, for the whole cluster, which pods are held back: of each budget all guarded pods
// but as many of the least important ones as it has room for; all of them if it also selects pods
// that are not guarded, since these may be chosen as well.
func (p *Plugin) mask(r *rules, pods []*corev1.Pod) (*masks, heldPods) {
	held := p.heldFromGroups(r, pods)
	m := &masks{pods: sets.New[types.UID](), groups: sets.New[types.NamespacedName](), composite: sets.New[types.NamespacedName]()}
	for _, pod := range held {
		m.pods.Insert(pod.UID)
		p.groups.visit(pod, func(group types.NamespacedName, composite bool, _ string) {
			if composite {
				m.composite.Insert(group)
			} else {
				m.groups.Insert(group)
			}
		})
	}
	return m, r.heldOf(held)
}

func (p *Plugin) heldFromGroups(r *rules, pods []*corev1.Pod) []*corev1.Pod {
	type candidates struct {
		guarded []*corev1.Pod
		mixed   bool
		room    int
	}
	byBudget := map[types.NamespacedName]*candidates{}
	var held []*corev1.Pod
	for _, pod := range pods {
		if p.effectivePriority(pod) >= r.priority {
			continue
		}
		protection := r.protectionOf(pod)
		if protection.guarded && !r.evictable(pod, protection) {
			held = append(held, pod)
			continue
		}
		for _, b := range protection.used {
			name := budget.NameOf(b)
			if byBudget[name] == nil {
				byBudget[name] = &candidates{room: budget.Room(b)}
			}
			if protection.guarded {
				byBudget[name].guarded = append(byBudget[name].guarded, pod)
			} else {
				byBudget[name].mixed = true
			}
		}
	}
	for _, c := range byBudget {
		slices.SortFunc(c.guarded, func(x, y *corev1.Pod) int { return p.compareImportance(x, y) })
		free := min(c.room, len(c.guarded))
		if c.mixed {
			free = 0
		}
		held = append(held, c.guarded[free:]...)
	}
	return held
}

// effectivePriority is the priority that upstream compares: that of the pod's root group.
func (p *Plugin) effectivePriority(pod *corev1.Pod) int32 {
	lister := p.handle.MutableSnapshotSharedLister()
	if !p.features.EnableCompositePodGroup {
		return upstream.GetPodPriority(pod, lister.PodGroups(), nil)
	}
	return upstream.GetPodPriority(pod, lister.PodGroups(), lister.CompositePodGroups())
}

// compareImportance orders the least important pod first: lower priority, then later start.
func (p *Plugin) compareImportance(x, y *corev1.Pod) int {
	if px, py := corev1helpers.PodPriority(x), corev1helpers.PodPriority(y); px != py {
		return int(int64(px) - int64(py))
	}
	sx, sy := util.GetPodStartTime(x), util.GetPodStartTime(y)
	if !sx.Equal(sy) {
		return sy.Compare(sx.Time)
	}
	return strings.Compare(string(x.UID), string(y.UID))
}

// maskedHandle is a Handle whose snapshot shows masked pods and groups with the highest priority.
type maskedHandle struct {
	fwk.Handle
	masks *masks
}

func (h maskedHandle) MutableSnapshotSharedLister() fwk.MutableSnapshotSharedLister {
	return maskedLister{h.Handle.MutableSnapshotSharedLister(), h.masks}
}

type maskedLister struct {
	fwk.MutableSnapshotSharedLister
	masks *masks
}

func (l maskedLister) NodeInfos() fwk.NodeInfoLister {
	return maskedNodes{l.MutableSnapshotSharedLister.NodeInfos(), l.masks}
}

func (l maskedLister) PodGroups() fwk.PodGroupLister {
	return maskedGroups{l.MutableSnapshotSharedLister.PodGroups(), l.masks}
}

func (l maskedLister) CompositePodGroups() fwk.CompositePodGroupLister {
	return maskedComposites{l.MutableSnapshotSharedLister.CompositePodGroups(), l.masks}
}

type maskedGroups struct {
	fwk.PodGroupLister
	masks *masks
}

func (l maskedGroups) Get(namespace, name string) (*schedulingv1beta1.PodGroup, error) {
	group, err := l.PodGroupLister.Get(namespace, name)
	if err != nil || group == nil || !l.masks.groups.Has(types.NamespacedName{Namespace: namespace, Name: name}) {
		return group, err
	}
	masked := group.DeepCopy()
	masked.Spec.Priority = highest()
	return masked, nil
}

type maskedComposites struct {
	fwk.CompositePodGroupLister
	masks *masks
}

func (l maskedComposites) Get(namespace, name string) (*schedulingv1alpha3.CompositePodGroup, error) {
	group, err := l.CompositePodGroupLister.Get(namespace, name)
	if err != nil || group == nil || !l.masks.composite.Has(types.NamespacedName{Namespace: namespace, Name: name}) {
		return group, err
	}
	masked := group.DeepCopy()
	masked.Spec.Priority = highest()
	return masked, nil
}

type maskedNodes struct {
	fwk.NodeInfoLister
	masks *masks
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
		masked = append(masked, maskedNode{node, l.masks})
	}
	return masked, err
}

func (l maskedNodes) Get(name string) (fwk.NodeInfo, error) {
	node, err := l.NodeInfoLister.Get(name)
	if err != nil {
		return nil, err
	}
	return maskedNode{node, l.masks}, nil
}

type maskedNode struct {
	fwk.NodeInfo
	masks *masks
}

// GetPods returns copies of the masked pods with the highest priority. Their order is that of the
// node.
func (n maskedNode) GetPods() []fwk.PodInfo {
	pods := n.NodeInfo.GetPods()
	masked := make([]fwk.PodInfo, 0, len(pods))
	for _, info := range pods {
		if pod := info.GetPod(); n.masks.pods.Has(pod.UID) {
			top := *pod
			top.Spec.Priority = highest()
			info = maskedPod{info, &top}
		}
		masked = append(masked, info)
	}
	return masked
}

// Snapshot keeps the masks: filters get copies of nodes.
func (n maskedNode) Snapshot() fwk.NodeInfo {
	return maskedNode{n.NodeInfo.Snapshot(), n.masks}
}

type maskedPod struct {
	fwk.PodInfo
	pod *corev1.Pod
}

func (p maskedPod) GetPod() *corev1.Pod { return p.pod }

func highest() *int32 {
	priority := int32(math.MaxInt32)
	return &priority
}
