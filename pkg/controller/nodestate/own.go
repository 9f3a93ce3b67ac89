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

// The server must not evict its own pods before the other pods have left: otherwise no controller
// would finish the drain. The pods of the server are evicted last in their wave, and only once. A
// pod of the server that starts on a held node stays.

// isOwn reports whether a pod belongs to this server: it is the pod of this process, or of a
// replica with the same controller.
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

// ownController returns the UID of the controller of this server's pod, even after that pod is
// deleted and this process is about to end: the replacement of the pod also belongs to this server.
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

// hasComeBack reports whether a pod of this server was bound to its node while a maintenance held
// the node. The pods of the server tolerate cordons, so the scheduler found no better node, and
// evicting them again would not help. The node's annotation records the pods that were on the node
// when the hold began. The creation time of a pod and the time of the taint cannot be compared
// instead, since they come from two clocks. A pod that was bound at that moment, but was not in the
// cache yet, also stays.
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
