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

package nodemaintenance

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// isOwn reports whether a pod is that of this server, or one of its replicas: they have the same
// controller. The server drains its own pods last.
func (c *Controller) isOwn(pod *corev1.Pod) bool {
	if c.ownPod.Name == "" || pod.Namespace != c.ownPod.Namespace {
		return false
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if pod.Name == c.ownPod.Name {
		if owner != nil {
			c.ownOwner.Store(owner.UID)
		}
		return true
	}
	return owner != nil && owner.UID == c.ownController()
}

// ownController returns the controller of this server's pod, also when that pod has been evicted
// and this process is about to end: its replacement is a pod of ours, too.
func (c *Controller) ownController() types.UID {
	if me, err := c.podLister.Pods(c.ownPod.Namespace).Get(c.ownPod.Name); err == nil {
		if owner := metav1.GetControllerOfNoCopy(me); owner != nil {
			c.ownOwner.Store(owner.UID)
		}
	}
	uid, _ := c.ownOwner.Load().(types.UID)
	return uid
}

// hasComeBack reports whether a pod of this server was created while a maintenance held the node
// that it is on. It tolerates cordons, so the scheduler found no better node: it leaves once and
// then stays. Both times are whole seconds, and a node may be held and drained within one: a pod of
// that second stays, too.
func (c *Controller) hasComeBack(pod *corev1.Pod, node *corev1.Node) bool {
	for _, name := range c.selection.maintenancesOn(node.Name) {
		nm, err := c.get(name)
		if err != nil || !isHolding(nm) || !taintersOf(node).has(nm) {
			continue
		}
		for _, taint := range node.Spec.Taints {
			if isTaint(taint, maintenancev1alpha1.TaintHeld) && taint.TimeAdded != nil && !pod.CreationTimestamp.Time.Before(taint.TimeAdded.Time) {
				return true
			}
		}
	}
	return false
}

// heldSince returns when a maintenance entered the stage that holds its nodes.
func heldSince(nm *maintenancev1alpha1.NodeMaintenance) time.Time {
	return enteredAt(nm, maintenancev1alpha1.NodeMaintenanceStageCordon)
}

// enteredAt returns when a maintenance entered a stage, zero if it did not.
func enteredAt(nm *maintenancev1alpha1.NodeMaintenance, stage maintenancev1alpha1.NodeMaintenanceStage) time.Time {
	for i := range nm.Status.StageStatuses {
		if entered := &nm.Status.StageStatuses[i]; entered.Name == stage && entered.StartTimestamp != nil {
			return entered.StartTimestamp.Time
		}
	}
	return time.Time{}
}
