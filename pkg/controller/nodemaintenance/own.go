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
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/drainplan"
)

// ownPods deals with the pods of this very server. Whoever empties nodes should not throw itself off one before the others have left, and
// should not leave at all for nowhere: then nobody would finish the maintenance.
type ownPods struct {
	// self is the pod that this server runs in; an empty name means that it runs in none.
	self types.NamespacedName

	mu sync.Mutex
	// needs are what the pods need of a node, which no pod changes in its life.
	needs map[types.UID]needs
}

// needs is what a node has to offer to take a pod.
type needs struct {
	affinity    nodeaffinity.RequiredNodeAffinity
	tolerations []corev1.Toleration
	volumes     []*corev1.PersistentVolume
}

func newOwnPods(self types.NamespacedName) *ownPods {
	return &ownPods{self: self, needs: map[types.UID]needs{}}
}

// isOwn says whether a pod is that of this server, or one of its replicas: they have the same controller.
func (c *Controller) isOwn(pod *corev1.Pod) bool {
	self := c.own.self
	if self.Name == "" || pod.Namespace != self.Namespace {
		return false
	}
	if pod.Name == self.Name {
		return true
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return false
	}
	me, err := c.podLister.Pods(self.Namespace).Get(self.Name)
	return err == nil && metav1.IsControlledBy(me, &metav1.ObjectMeta{UID: owner.UID})
}

// settleOwn returns the view of a node as it is to be planned: with its own pods staying if no other node would take them.
func (c *Controller) settleOwn(ctx context.Context, node *corev1.Node, view *nodeView) (*nodeView, error) {
	if view.ifOwnStay == nil {
		return view, nil
	}
	for i := range view.pods {
		pod := &view.pods[i]
		if !pod.own {
			continue
		}
		taken, err := c.anotherTakes(ctx, node, pod.Pod)
		if err != nil {
			return nil, err
		}
		if !taken {
			return view.ifOwnStay, nil
		}
	}
	return view, nil
}

// anotherTakes says whether a node other than the given one would take a pod of ours, as far as can be said without the scheduler: it is
// ready and schedulable, no maintenance holds it, and its taints, the pod's node affinity and its volumes allow it. Free CPU and memory are
// not looked at.
func (c *Controller) anotherTakes(ctx context.Context, node *corev1.Node, pod *corev1.Pod) (bool, error) {
	n, err := c.needsOf(ctx, pod)
	if err != nil {
		return false, fmt.Errorf("see where pod %s/%s of this server could go: %w", pod.Namespace, pod.Name, err)
	}
	all, err := c.nodeLister.List(labels.Everything())
	if err != nil {
		return false, err
	}
	for _, other := range all {
		if other.Name != node.Name && !other.Spec.Unschedulable && isReady(other) && !c.isHeld(other) && n.metBy(klog.FromContext(ctx), other) {
			return true, nil
		}
	}
	return false, nil
}

func (n needs) metBy(logger klog.Logger, node *corev1.Node) bool {
	if match, err := n.affinity.Match(node); err != nil || !match {
		return false
	}
	if _, untolerated := corev1helpers.FindMatchingUntoleratedTaint(logger, node.Spec.Taints, n.tolerations, keepsPodsOff, false); untolerated {
		return false
	}
	for _, v := range n.volumes {
		if volume.CheckNodeAffinity(v, node.Labels) != nil {
			return false
		}
	}
	return true
}

func keepsPodsOff(taint *corev1.Taint) bool {
	return taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
}

func isReady(node *corev1.Node) bool {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == corev1.NodeReady {
			return node.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// isHeld says whether a maintenance holds a node or is about to.
func (c *Controller) isHeld(node *corev1.Node) bool {
	for _, name := range c.selection.maintenancesOn(node.Name) {
		if nm, err := c.get(name); err == nil && isHolding(nm) {
			return true
		}
	}
	return false
}

// needsOf reads what a pod needs. The cache does not keep it.
func (c *Controller) needsOf(ctx context.Context, pod *corev1.Pod) (needs, error) {
	c.own.mu.Lock()
	n, known := c.own.needs[pod.UID]
	c.own.mu.Unlock()
	if known {
		return n, nil
	}
	live, err := c.host.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && live.UID != pod.UID {
		// It has gone; the next look does not see it.
		return needs{}, nil
	}
	if err != nil {
		return needs{}, err
	}
	n = needs{affinity: nodeaffinity.GetRequiredNodeAffinity(live), tolerations: live.Spec.Tolerations}
	if n.volumes, err = c.volumesOf(ctx, live); err != nil {
		return needs{}, err
	}
	c.own.mu.Lock()
	defer c.own.mu.Unlock()
	c.own.needs[pod.UID] = n
	return n, nil
}

// volumesOf returns the volumes that the claims of a pod are bound to.
func (c *Controller) volumesOf(ctx context.Context, pod *corev1.Pod) ([]*corev1.PersistentVolume, error) {
	var volumes []*corev1.PersistentVolume
	for i := range pod.Spec.Volumes {
		source := pod.Spec.Volumes[i].PersistentVolumeClaim
		if source == nil {
			continue
		}
		claim, err := c.host.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, source.ClaimName, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if claim.Spec.VolumeName == "" {
			continue
		}
		v, err := c.host.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		volumes = append(volumes, v)
	}
	return volumes, nil
}

// forgetOwn forgets a pod that is gone.
func (c *Controller) forgetOwn(pod types.UID) {
	c.own.mu.Lock()
	defer c.own.mu.Unlock()
	delete(c.own.needs, pod)
}

// nodeOffersMore has the maintenances of this server's nodes looked at when another node may take or refuse its pods from now on.
func (c *Controller) nodeOffersMore(old, node *corev1.Node) {
	if c.own.self.Name == "" || old != nil && node != nil && offersSame(old, node) {
		return
	}
	neighbours, err := c.podLister.Pods(c.own.self.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, pod := range neighbours {
		if c.isOwn(pod) {
			c.markNode(pod.Spec.NodeName)
		}
	}
}

func offersSame(a, b *corev1.Node) bool {
	return a.Spec.Unschedulable == b.Spec.Unschedulable && isReady(a) == isReady(b) && labels.Equals(a.Labels, b.Labels) && sameTaints(a.Spec.Taints, b.Spec.Taints)
}

func sameTaints(a, b []corev1.Taint) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].MatchTaint(&b[i]) || a[i].Value != b[i].Value {
			return false
		}
	}
	return true
}

// staying returns the view of a node whose own pods stay, or nil if it has none.
func staying(view *nodeView) *nodeView {
	stay := &nodeView{pods: make([]livePod, len(view.pods)), plan: &drainplan.Node{Name: view.plan.Name, UID: view.plan.UID}}
	found := false
	for i, pod := range view.pods {
		if pod.own && pod.left == "" {
			pod.left, found = drainplan.LeftOwn, true
		}
		stay.pods[i] = pod
	}
	if !found {
		return nil
	}
	stay.plan.Pods = leaving(stay.pods)
	return stay
}
