// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// A server that drains nodes must not evict itself before the others have left: then no controller
// would finish the drain. Its pods leave last of their wave and once; one that comes back to a held
// node stays.

// isOwn reports whether a pod is one of this server: its own one, or a replica that has the same
// controller.
func (s *State) isOwn(pod *corev1.Pod) bool {
	if s.ownPod.Name == "" || pod.Namespace != s.ownPod.Namespace {
		return false
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if pod.Name == s.ownPod.Name {
		if owner != nil {
			s.ownOwner.Store(owner.UID)
		}
		return true
	}
	return owner != nil && owner.UID == s.ownController()
}

// ownController returns the controller of this server's pod, also when that pod has been evicted
// and this process is about to end: its replacement is a pod of ours, too.
func (s *State) ownController() types.UID {
	if me, err := s.podLister.Pods(s.ownPod.Namespace).Get(s.ownPod.Name); err == nil {
		if owner := metav1.GetControllerOfNoCopy(me); owner != nil {
			s.ownOwner.Store(owner.UID)
		}
	}
	uid, _ := s.ownOwner.Load().(types.UID)
	return uid
}

// OwnPodsOn returns the UIDs of the pods of this server that are on a node, sorted.
func (s *State) OwnPodsOn(node string) ([]types.UID, error) {
	if s.ownPod.Name == "" {
		return nil, nil
	}
	var uids []types.UID
	for _, pod := range s.pods.OnNode(node) {
		if drainplan.IsLive(pod) && s.isOwn(pod) {
			uids = append(uids, pod.UID)
		}
	}
	slices.Sort(uids)
	return uids, nil
}

// hasComeBack reports whether a pod of this server came to the node that it is on while a
// maintenance held the node. It tolerates cordons, so the scheduler found no better node: it leaves
// once and then stays. The node records which pods were there when it was held: the creation time
// of a pod and the time of the taint are of clocks of two machines. A pod that was bound when the
// node was being held, and that the cache did not show yet, stays, too.
func (s *State) hasComeBack(pod *corev1.Pod, node *corev1.Node) bool {
	mark := marks.Read(node, v1alpha1.AnnotationTaintedBy)
	if slices.Contains(mark.OwnPods, pod.UID) {
		return false
	}
	for name, uid := range mark.Maintenances {
		if nm, err := s.maintenanceLister.Get(name); err == nil && nm.UID == uid && v1alpha1.IsHolding(nm) {
			return HasTaint(node, v1alpha1.TaintHeld)
		}
	}
	return false
}
