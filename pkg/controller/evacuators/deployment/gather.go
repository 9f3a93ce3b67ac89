// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/drain/pdb"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/drain/surge"
	"haulout.dev/haulout/pkg/host/owners"
)

// cacheRetry is the time after which an Evacuation is synced again if the ReplicaSet of its pod
// exists but is not in the cache.
const cacheRetry = 100 * time.Millisecond

// gather reads all inputs of the decision about a Deployment.
func (c *Controller) gather(ctx context.Context, key types.NamespacedName) (situation, error) {
	known := c.known.get(key)
	s := situation{
		now: c.clock.Now(), servingSince: c.since(), timeout: c.timeout, startDeadline: c.startDeadline, off: c.off, tracked: c.known.Len(),
		memory: known.memory, refused: known.refused,
	}
	if deployment, exists := c.latestDeployments.Get(key.String()); exists {
		s.deployment = deployment
		s.readAnnotations()
	}
	var err error
	if s.autoscalers, err = c.autoscalersOf(key); err != nil {
		return s, err
	}
	s.target = targetOf(s.deployment, s.autoscalers, known)
	if err := c.gatherPods(key, &s); err != nil {
		return s, err
	}
	s.unconfirmed = func(pods []*pod) string { return c.removalBeside(key, s.deployment, pods) }
	s.healthyUnder = func(budget *policyv1.PodDisruptionBudget) int32 {
		healthy, err := c.healthyUnder(budget, s.now)
		if err != nil {
			return 0
		}
		return healthy
	}
	if err := c.readWaiting(ctx, &s); err != nil {
		return s, err
	}
	return s, c.readClaims(ctx, &s)
}

// readAnnotations parses the annotations of the Deployment that configure surges.
func (s *situation) readAnnotations() {
	timeout, err := surge.TimeoutFor(s.deployment.Annotations, s.timeout)
	s.timeout = timeout
	for _, err := range []error{err, surge.CheckMode(s.deployment.Annotations)} {
		if err != nil {
			s.warnings = append(s.warnings, err.Error())
		}
	}
}

func (c *Controller) autoscalersOf(key types.NamespacedName) ([]*autoscalingv2.HorizontalPodAutoscaler, error) {
	objects, err := c.Autoscalers.Informer().GetIndexer().ByIndex(autoscalersByDeployment, key.String())
	if err != nil {
		return nil, err
	}
	found := make([]*autoscalingv2.HorizontalPodAutoscaler, 0, len(objects))
	for _, object := range objects {
		a, ok := object.(*autoscalingv2.HorizontalPodAutoscaler)
		if !ok {
			continue
		}
		if latest, exists := c.latestAutoscalers.Get(cache.MetaObjectToName(a).String()); exists {
			found = append(found, latest)
		}
	}
	slices.SortFunc(found, func(a, b *autoscalingv2.HorizontalPodAutoscaler) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// targetOf returns the object to scale. During a surge it is the object with the record. Otherwise
// it is the autoscaler if there is one, since the autoscaler would revert a change of the
// Deployment.
func targetOf(d *appsv1.Deployment, autoscalers []*autoscalingv2.HorizontalPodAutoscaler, known state) target {
	var onDeployment target
	if d != nil {
		r, garbage := readRecord(d, 1)
		if r == nil && !garbage && known.record.isUp() && known.record.UID == d.UID {
			// A client has replaced the object with one that lacks the annotation.
			r = known.record
		}
		onDeployment = newTarget(nil, surge.Replicas(d), r, garbage, 1)
		if r != nil || garbage {
			return onDeployment
		}
	}
	for i, a := range autoscalers {
		r, garbage := readRecord(a, 0)
		if r == nil && !garbage && known.record.isUp() && known.record.UID == a.UID {
			r = known.record
		}
		if r == nil && !garbage && i < len(autoscalers)-1 {
			continue
		}
		return newTarget(a, ptr.Deref(a.Spec.MinReplicas, 1), r, garbage, 0)
	}
	return onDeployment
}

// gatherPods reads the pods of the Deployment with their Evacuations, nodes and budgets.
func (c *Controller) gatherPods(key types.NamespacedName, s *situation) error {
	var ours []*corev1.Pod
	for _, set := range c.Owners.ReplicaSets(key) {
		isOurs := s.deployment != nil && metav1.IsControlledBy(set, s.deployment)
		isActive := ptr.Deref(set.Spec.Replicas, 1) > 0
		for _, p := range c.Owners.Pods(set.Namespace, set.UID) {
			if p.DeletionTimestamp != nil || !drainplan.IsLive(p) {
				continue
			}
			isActive = true
			if isOurs {
				ours = append(ours, p)
				continue
			}
			if evacuation := c.openEvacuationOf(p); evacuation != nil && isOurTurn(evacuation) {
				s.orphans = append(s.orphans, evacuation)
			}
		}
		if isOurs && isActive {
			s.activeReplicaSets++
		}
	}
	slices.SortFunc(ours, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	s.pods = make([]pod, 0, len(ours))
	staysUp, drains, budgets := map[string]bool{}, map[string]drain{}, budgetsByLabels{}
	for _, p := range ours {
		evacuation := c.openEvacuationOf(p)
		isUp, known := staysUp[p.Spec.NodeName]
		if !known {
			isUp = c.staysUp(p.Spec.NodeName)
			staysUp[p.Spec.NodeName] = isUp
		}
		var of drain
		if evacuation == nil && !isUp || evacuation != nil && isOfMaintenance(evacuation) {
			if of, known = drains[p.Spec.NodeName]; !known {
				of = c.drainOf(p.Spec.NodeName)
				drains[p.Spec.NodeName] = of
			}
		}
		_, isSettled := s.memory.settled[p.UID]
		s.pods = append(s.pods, pod{
			// Read the evictions in flight after the Evacuation: no eviction is sent after the
			// Evacuation was withdrawn.
			Pod: p, evacuation: evacuation, isEvicting: c.InFlight.Has(p.UID), purpose: of.purpose, budgets: c.budgetsOf(p, &budgets),
			isPaused: of.isPaused(p, evacuation), isCovered: evacuation == nil && (of.isGone || of.covers(p)), staysUp: isSettled || isUp,
		})
	}
	return c.countOthers(s)
}

// countOthers counts the pods of other workloads under budgets that require more pods than the
// Deployment has without a surge. ExpectedPods of such a budget cannot tell: it also counts the
// extra replicas of all surges, as soon as the disruption controller has observed them.
func (c *Controller) countOthers(s *situation) error {
	var ours map[types.UID]struct{}
	for i := range s.pods {
		for _, budget := range s.pods[i].budgets {
			name := pdb.NameOf(budget)
			if _, counted := s.others[name]; counted || surge.KeepsBudget(budget, s.original(), 0) {
				continue
			}
			selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
			if err != nil {
				return err
			}
			selected, err := c.podLister.Pods(budget.Namespace).List(selector)
			if err != nil {
				return err
			}
			if s.others == nil {
				s.others, ours = map[types.NamespacedName]int32{}, make(map[types.UID]struct{}, len(s.pods))
				for j := range s.pods {
					ours[s.pods[j].UID] = struct{}{}
				}
			}
			s.others[name] = 0
			for _, p := range selected {
				if _, isOurs := ours[p.UID]; !isOurs && p.DeletionTimestamp == nil && drainplan.IsLive(p) {
					s.others[name]++
				}
			}
		}
	}
	return nil
}

// openEvacuationOf returns the Evacuation of a pod, unless it is complete or withdrawn.
func (c *Controller) openEvacuationOf(p *corev1.Pod) *v1alpha1.Evacuation {
	if evacuation := c.EvacuationOf(p); evacuation != nil && !protocol.IsWithdrawn(evacuation) && !protocol.IsComplete(evacuation) {
		return evacuation
	}
	return nil
}

// budgetsByLabels caches the budgets of pods by the labels of the pods. Most siblings have the same
// labels, and a namespace may have thousands of budgets to match.
type budgetsByLabels struct {
	found map[string][]*policyv1.PodDisruptionBudget
	// latest has the labels and the budgets of the latest pod.
	latest map[drainplan.Siblings]budgeted
}

type budgeted struct {
	labels  labels.Set
	budgets []*policyv1.PodDisruptionBudget
}

// budgetsOf returns the budgets that the Eviction API would check.
func (c *Controller) budgetsOf(p *corev1.Pod, known *budgetsByLabels) []*policyv1.PodDisruptionBudget {
	if !pdb.Holds(p) {
		return nil
	}
	of := drainplan.SiblingsOf(p.Labels, metav1.GetControllerOfNoCopy(p))
	if latest, ok := known.latest[of]; ok && maps.Equal(latest.labels, p.Labels) {
		return latest.budgets
	}
	if known.found == nil {
		known.found, known.latest = map[string][]*policyv1.PodDisruptionBudget{}, map[drainplan.Siblings]budgeted{}
	}
	key := labels.Set(p.Labels).String()
	same, ok := known.found[key]
	if !ok {
		c.matching.RLock()
		same = c.budgets.Of(p)
		c.matching.RUnlock()
		known.found[key] = same
	}
	known.latest[of] = budgeted{p.Labels, same}
	return same
}

// staysUp reports whether no maintenance holds a node. It is true for a pod without a node, which
// may still be bound to a node that is not held. It reads the node instead of the status of
// maintenances, which also has nodes that are not held. The node is sufficiently up to date: pods
// are asked to leave only after all nodes are cordoned in the cache.
func (c *Controller) staysUp(name string) bool {
	if name == "" {
		return true
	}
	node, err := c.nodeLister.Get(name)
	return err == nil && !isUnderMaintenance(node)
}

// isUnderMaintenance reports whether a maintenance holds a node, or any client has cordoned it.
func isUnderMaintenance(node *corev1.Node) bool {
	_, cordoned := node.Annotations[v1alpha1.AnnotationCordonedBy]
	return cordoned || node.Spec.Unschedulable || slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == v1alpha1.TaintHeld
	})
}

// isOfMaintenance reports whether a NodeMaintenance is an instigator of an Evacuation.
func isOfMaintenance(evacuation *v1alpha1.Evacuation) bool {
	return slices.Contains(evacuation.Finalizers, v1alpha1.FinalizerInstigatorNodeMaintenance)
}

// drain has a node, the NodeMaintenances that drain it, and the time. The zero value has none.
type drain struct {
	node *corev1.Node
	// isGone is set if the node does not exist.
	isGone bool
	by     []*v1alpha1.NodeMaintenance
	now    time.Time
	// purpose is a phrase that names the NodeMaintenance which drains the node. If several drain
	// it, this is the oldest. If none does, purpose is "".
	purpose string
}

func (c *Controller) drainOf(nodeName string) drain {
	node, err := c.nodeLister.Get(nodeName)
	if err != nil {
		return drain{isGone: apierrors.IsNotFound(err) && nodeName != ""}
	}
	by := c.holders.Which(nodeName, holds.Targeting(node))
	of := drain{node: node, by: by, now: c.clock.Now()}
	if nm := holds.Oldest(by, func(*v1alpha1.NodeMaintenance) bool { return true }); nm != nil {
		of.purpose = purposeOf(nm.Name, nm.Spec.Reason)
	}
	return of
}

// covers reports whether a maintenance, paused or not, has reached a pod in its drain plan.
func (d drain) covers(p *corev1.Pod) bool {
	return slices.ContainsFunc(d.by, func(nm *v1alpha1.NodeMaintenance) bool {
		covers, err := holds.Covers(nm, p, d.node, d.now)
		return err == nil && covers
	})
}

// isPaused reports whether the maintenances for which a pod leaves are paused, or those for which
// it would leave if it has no Evacuation. At the end of a pause the evacuation controller restarts
// the deadlines of the Evacuation. Until then the pod is paused, so that the time of the pause does
// not count towards a surge timeout.
func (d drain) isPaused(p *corev1.Pod, evacuation *v1alpha1.Evacuation) bool {
	if evacuation == nil {
		return d.covers(p) && holds.PausedBy(p, d.node, d.by, d.now) != nil
	}
	return d.node != nil && protocol.OnlyMaintenancesDecide(evacuation) &&
		(protocol.IsPaused(evacuation) || holds.PausedBy(p, d.node, d.by, d.now) != nil)
}

// readClaims reads the volume claims of the pod template before a surge starts.
func (c *Controller) readClaims(ctx context.Context, s *situation) error {
	if s.deployment == nil || s.target.record.isUp() || len(s.leaving()) == 0 && len(s.declined()) == 0 {
		return nil
	}
	for _, name := range surge.Claims(s.deployment) {
		claim, err := owners.Claims(c.Client).Get(ctx, s.deployment.Namespace, name)
		if err != nil {
			return err
		}
		if claim != nil && surge.OneNode(claim) {
			s.oneNodeClaims = append(s.oneNodeClaims, name)
		}
	}
	return nil
}

// syncEvacuation finds the Deployment of an Evacuation's pod and enqueues it. If there is none, it
// reports completion to the Evacuation.
func (c *Controller) syncEvacuation(ctx context.Context, key types.NamespacedName) error {
	evacuation, err := c.evacuationLister.Evacuations(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !isOurTurn(evacuation) && !isDeclined(evacuation) || protocol.IsComplete(evacuation) {
		return nil
	}
	ref := evacuation.Spec.PodRef
	p, err := c.podLister.Pods(key.Namespace).Get(ref.Name)
	if apierrors.IsNotFound(err) || err == nil && p.UID != ref.UID {
		// The pod was deleted, or the event of its creation will follow.
		return nil
	}
	if err != nil {
		return err
	}
	deployment, known := c.deploymentOf(p)
	if known {
		c.enqueue(deployment)
		return nil
	}
	if !isOurTurn(evacuation) {
		return nil
	}
	// The cache may not have the ReplicaSet of the pod yet.
	_, comes, err := owners.DeploymentOf(ctx, p, owners.NewLive(c.Client))
	if err != nil {
		return err
	}
	if comes {
		c.queue.AddAfter(item{isEvacuation: true, NamespacedName: key}, cacheRetry)
		return nil
	}
	return c.report(ctx, c.clock.Now(), report{evacuation: evacuation, completed: true, message: "The pod belongs to no Deployment."})
}
