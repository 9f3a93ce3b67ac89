// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	controllercache "haulout.dev/haulout/pkg/host/cache"
)

func isDrained(nm *maintenancev1alpha1.NodeMaintenance) bool {
	return meta.IsStatusConditionTrue(nm.Status.Conditions, maintenancev1alpha1.ConditionDrained)
}

// confirmDrained lets Drained become True only after the scheduler has had time to bind what it had
// placed, and after a live list has confirmed the cache. Once this leader has confirmed it for
// these nodes, and as long as none of them is cordoned a second time, the cache is enough: every
// pod that comes is an event.
func (c *Controller) confirmDrained(ctx context.Context, g *gathered, status *maintenancev1alpha1.NodeMaintenanceStatus) error {
	nm := g.subject.NodeMaintenance
	if !meta.IsStatusConditionTrue(status.Conditions, maintenancev1alpha1.ConditionDrained) {
		return nil
	}
	was := isDrained(nm) && sameNodes(nm.Status.NodeStatuses, status.NodeStatuses)
	confirmed, ours := c.confirmed.Get(nm.Name)
	ours = ours && confirmed.uid == nm.UID
	if was && ours && !c.state.Cordons.Latest(g.subject.nodes).After(confirmed.at) {
		return nil
	}
	// What a leader inherits as True has been waited for by another one.
	inherited := was && !ours
	if wait := c.state.Cordons.Unsettled(g.subject.nodes); wait > 0 && !inherited {
		c.queue.AddAfter(nm.Name, wait)
		c.notDrainedYet(nm, status, "All pods are gone; waiting for pods that the scheduler may still bind")
		return nil
	}
	found, err := c.liveRemainder(ctx, g)
	if err != nil {
		return err
	}
	if found != "" {
		c.queue.AddAfter(nm.Name, confirmPatience)
		c.notDrainedYet(nm, status, "Pod "+found+" has just appeared")
		return nil
	}
	c.confirmed.Set(nm.Name, confirmation{uid: nm.UID, at: c.clock.Now()})
	return nil
}

func (c *Controller) notDrainedYet(nm *maintenancev1alpha1.NodeMaintenance, status *maintenancev1alpha1.NodeMaintenanceStatus, message string) {
	// The condition goes back to what it was before, so that its transition time is not lost.
	meta.RemoveStatusCondition(&status.Conditions, maintenancev1alpha1.ConditionDrained)
	if before := conditionOf(nm, maintenancev1alpha1.ConditionDrained); before != nil {
		status.Conditions = append([]metav1.Condition{*before}, status.Conditions...)
	}
	c.setCondition(nm, status, maintenancev1alpha1.ConditionProgressing, metav1.ConditionTrue, maintenancev1alpha1.ReasonProgressDraining, message)
	c.setCondition(nm, status, maintenancev1alpha1.ConditionDrained, metav1.ConditionFalse, maintenancev1alpha1.ReasonDrainInProgress, message)
}

// confirmation is when this leader has seen, by a live list, that a maintenance is drained.
type confirmation struct {
	uid types.UID
	at  time.Time
}

func sameNodes(a, b []maintenancev1alpha1.NodeMaintenanceNodeStatus) bool {
	return slices.EqualFunc(a, b, func(x, y maintenancev1alpha1.NodeMaintenanceNodeStatus) bool { return x.NodeRef == y.NodeRef })
}

// fewNodes is how many nodes are listed one by one; beyond it one list of all pods is cheaper.
const fewNodes = 64

// liveRemainder returns a live pod of the subject's nodes that the plan covers, read from the API
// and not from the cache, or "".
func (c *Controller) liveRemainder(ctx context.Context, g *gathered) (string, error) {
	plan, err := drainplan.CompileTargets(g.subject.Spec.DrainPlan)
	if err != nil {
		return "", err
	}
	nodes := make(map[string]*corev1.Node, len(g.subject.nodes))
	selectors := []string{"spec.nodeName=,status.phase=Pending"}
	for _, node := range g.subject.nodes {
		nodes[node.Name] = node
		selectors = append(selectors, "spec.nodeName="+node.Name)
	}
	if len(nodes) > fewNodes {
		selectors = []string{""}
	}
	found := make([]string, len(selectors))
	err = inParallel(ctx, len(selectors), func(ctx context.Context, i int) error {
		var err error
		found[i], err = c.liveRemainderOf(ctx, selectors[i], g, nodes, plan)
		return err
	})
	for _, f := range found {
		if f != "" {
			return f, nil
		}
	}
	return "", err
}

// pageSize is how many pods a page of a live list has.
const pageSize = 1000

func (c *Controller) liveRemainderOf(ctx context.Context, selector string, g *gathered, nodes map[string]*corev1.Node, plan drainplan.Targets) (string, error) {
	options := metav1.ListOptions{FieldSelector: selector, Limit: pageSize}
	for {
		list, err := c.host.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		if apierrors.IsResourceExpired(err) && options.Continue != "" {
			options.Continue = ""
			continue
		}
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			pod := &list.Items[i]
			node := nodes[controllercache.NodeOf(pod)]
			if node == nil || !drainplan.IsLive(pod) {
				continue
			}
			if live := c.state.Classify(pod, node); live.Kept == "" && plan.Cover(live.Plan) && !g.stays(pod) {
				return pod.Namespace + "/" + pod.Name, nil
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return "", nil
		}
	}
}

// confirmPatience is how long to wait for the cache after a live list showed pods that it does not.
const confirmPatience = time.Second
