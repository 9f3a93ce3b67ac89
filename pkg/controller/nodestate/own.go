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

package nodestate

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodemarks"
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

// hasComeBack reports whether a pod of this server was created while a maintenance held the node
// that it is on. It tolerates cordons, so the scheduler found no better node: it leaves once and
// then stays. Both times are whole seconds, and a node may be held and drained within one: a pod of
// that second stays, too.
func (s *State) hasComeBack(pod *corev1.Pod, node *corev1.Node) bool {
	for name, uid := range nodemarks.TaintedBy(node) {
		nm, err := s.maintenanceLister.Get(name)
		if err != nil || nm.UID != uid || !v1alpha1.IsHolding(nm) {
			continue
		}
		for _, taint := range node.Spec.Taints {
			if IsTaint(taint, v1alpha1.TaintHeld) && taint.TimeAdded != nil && !pod.CreationTimestamp.Time.Before(taint.TimeAdded.Time) {
				return true
			}
		}
	}
	return false
}
