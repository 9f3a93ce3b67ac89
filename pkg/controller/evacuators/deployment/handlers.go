// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/surge"
	"haulout.dev/haulout/pkg/host/owners"
	"haulout.dev/haulout/pkg/host/podcache"
)

// autoscalersByDeployment is the index of autoscalers by the namespace and name of the Deployment
// that they scale.
const autoscalersByDeployment = "haulout.dev/deployment-evacuator-by-deployment"

func indexByDeployment(obj any) ([]string, error) {
	if a, ok := obj.(*autoscalingv2.HorizontalPodAutoscaler); ok {
		if key, ok := surge.Scales(a); ok {
			return []string{key.String()}, nil
		}
	}
	return nil, nil
}

func (c *Controller) watch() error {
	synced, err := podcache.AddHandlers(
		podcache.Handled{Informer: c.Evacuations.Informer(), Handler: changes(c.evacuationChanged)},
		podcache.Handled{Informer: c.Deployments.Informer(), Handler: podcache.HandlerOf(c.deploymentChanged)},
		podcache.Handled{Informer: c.Autoscalers.Informer(), Handler: changes(c.autoscalerChanged)},
		podcache.Handled{Informer: c.Pods, Handler: changes(c.podChanged)},
		podcache.Handled{Informer: c.Nodes.Informer(), Handler: podcache.HandlerOf(c.nodeChanged)},
		podcache.Handled{Informer: c.NodeMaintenances.Informer(), Handler: podcache.HandlerOf(c.maintenanceChanged)},
		podcache.Handled{Informer: c.Budgets.Informer(), Handler: podcache.HandlerOf(c.budgetChanged)},
	)
	c.synced = append(c.synced, synced)
	return err
}

const (
	// pausePerPod is the pause after each sync of a Deployment, for each of its pods: a sync costs
	// as much as the Deployment has pods, and each pod causes a dozen events while it is replaced.
	// Without a pause the cost would grow with the square of the number of pods, and so it does
	// from the number on with which the pause is the longest.
	pausePerPod = 400 * time.Microsecond
	// longestPause is the maximum of the pause. Between two syncs at most maxRecorded pods can be
	// replaced.
	longestPause = 2 * time.Second
)

// pauseAfter returns the pause after a sync of one of the tracked Deployments. Each of them has as
// many events as it would have alone, so the pause grows with their number. It is at most a quarter
// of startDeadline, within which an evacuator has to send its first report, unless that is 0.
func pauseAfter(pods, tracked int, startDeadline time.Duration) time.Duration {
	longest := longestPause
	if startDeadline > 0 {
		longest = min(longest, startDeadline/4)
	}
	return min(time.Duration(pods)*time.Duration(tracked)*pausePerPod, longest)
}

// enqueue enqueues a Deployment, immediately unless it was synced a moment ago.
func (c *Controller) enqueue(key types.NamespacedName) {
	c.queue.AddAfter(item{NamespacedName: key}, c.known.get(key).nextSync.Sub(c.clock.Now()))
}

// changes returns a handler that calls changed for each addition, update and deletion.
func changes[T any](changed func(*T)) cache.ResourceEventHandler {
	return podcache.HandlerOf(func(old, now *T) { changed(cmp.Or(now, old)) })
}

// evacuationChanged enqueues the Deployment of an Evacuation's pod, even if the Evacuation was
// withdrawn or another evacuator has become active.
func (c *Controller) evacuationChanged(evacuation *v1alpha1.Evacuation) {
	if p, err := c.podLister.Pods(evacuation.Namespace).Get(evacuation.Spec.PodRef.Name); err == nil && p.UID == evacuation.Spec.PodRef.UID && c.enqueueOwner(p) {
		return
	}
	if (isOurTurn(evacuation) || isDeclined(evacuation)) && !protocol.IsComplete(evacuation) {
		c.queue.Add(item{isEvacuation: true, NamespacedName: types.NamespacedName{Namespace: evacuation.Namespace, Name: evacuation.Name}})
	}
}

// enqueueOwner enqueues the Deployment of a pod if it is tracked, and reports whether it is.
func (c *Controller) enqueueOwner(p *corev1.Pod) bool {
	key, ok := c.deploymentOf(p)
	if !ok || !c.known.isTracked(key) {
		return false
	}
	c.enqueue(key)
	return true
}

// deploymentOf returns the Deployment of a pod, according to the cache.
func (c *Controller) deploymentOf(p *corev1.Pod) (types.NamespacedName, bool) {
	key, ok, err := owners.DeploymentOf(context.Background(), p, c.Owners)
	return key, ok && err == nil
}

// cached returns a Deployment from the cache, or nil.
func (c *Controller) cached(key types.NamespacedName) *appsv1.Deployment {
	d, err := c.Owners.Deployment(context.Background(), key.Namespace, key.Name)
	if err != nil {
		return nil
	}
	return d
}

func (c *Controller) podChanged(p *corev1.Pod) {
	if c.enqueueOwner(p) {
		return
	}
	// The Evacuation may have been synced before the pod was in the cache.
	if evacuation := c.openEvacuationOf(p); evacuation != nil && (isOurTurn(evacuation) || isDeclined(evacuation)) {
		c.queue.Add(item{isEvacuation: true, NamespacedName: types.NamespacedName{Namespace: evacuation.Namespace, Name: evacuation.Name}})
	}
}

func (c *Controller) deploymentChanged(old, now *appsv1.Deployment) {
	d := cmp.Or(now, old)
	key := types.NamespacedName{Namespace: d.Namespace, Name: d.Name}
	switch {
	case now == nil:
		c.lowered.Forget(key)
	case old != nil && surge.Replicas(now) < surge.Replicas(old):
		c.noteDeletedBy(key, old)
		c.noteLowered(key, c.clock.Now())
		c.noteDeletedBy(key, now)
	default:
		if old == nil {
			c.noteShrinking(key, now)
		}
		c.noteDeletedBy(key, now)
	}
	if _, recorded := d.Annotations[v1alpha1.AnnotationSurgeRecord]; recorded || c.known.isTracked(key) {
		c.enqueue(key)
	}
}

func (c *Controller) autoscalerChanged(a *autoscalingv2.HorizontalPodAutoscaler) {
	key, ok := surge.Scales(a)
	if !ok {
		if _, recorded := a.Annotations[v1alpha1.AnnotationSurgeRecord]; recorded {
			c.queue.Add(item{isAutoscaler: true, NamespacedName: types.NamespacedName{Namespace: a.Namespace, Name: a.Name}})
		}
		return
	}
	if _, recorded := a.Annotations[v1alpha1.AnnotationSurgeRecord]; recorded || c.known.isTracked(key) {
		c.enqueue(key)
	}
}

// budgetChanged enqueues the Deployments whose pods the budget selects, since they may wait until
// the budget allows a disruption.
func (c *Controller) budgetChanged(old, budget *policyv1.PodDisruptionBudget) {
	c.matching.Lock()
	if budget == nil {
		c.budgets.Remove(old.Namespace, old.Name)
		budget = old
	} else if !c.budgets.Update(budget) {
		c.budgets.Set(budget)
	}
	c.matching.Unlock()
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		return
	}
	for _, key := range c.known.Keys() {
		if key.Namespace != budget.Namespace {
			continue
		}
		if d := c.cached(key); d != nil && selector.Matches(labels.Set(d.Spec.Template.Labels)) {
			c.enqueue(key)
		}
	}
}

// nodeChanged enqueues the tracked Deployments that have a pod on a node when a maintenance begins
// or stops to hold it.
func (c *Controller) nodeChanged(old, node *corev1.Node) {
	if old == nil || node == nil || isUnderMaintenance(old) == isUnderMaintenance(node) {
		return
	}
	for _, p := range c.Pods.OnNode(node.Name) {
		c.enqueueOwner(p)
	}
}

// maintenanceChanged enqueues all tracked Deployments when a maintenance is paused or resumed.
func (c *Controller) maintenanceChanged(old, nm *v1alpha1.NodeMaintenance) {
	if (old != nil && v1alpha1.IsPaused(old)) == (nm != nil && v1alpha1.IsPaused(nm)) {
		return
	}
	for _, key := range c.known.Keys() {
		c.enqueue(key)
	}
}
