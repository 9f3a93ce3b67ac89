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
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodemarks"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	controllercache "haulout.dev/haulout/pkg/host/cache"
)

// confirmPatience is how long to wait for the cache after a live list showed pods that it does not.
const confirmPatience = time.Second

// syncIdle updates the status of an Idle maintenance without touching nodes or pods.
func (c *Controller) syncIdle(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) error {
	g, err := c.gather(ctx, nm)
	if err != nil {
		return err
	}
	l, err := c.look(g)
	if err != nil {
		return err
	}
	_, err = c.writeStatus(ctx, nm, l.status)
	return err
}

// hold takes the drain of a maintenance as far as it may go. The node reconciler keeps its nodes
// cordoned meanwhile.
func (c *Controller) hold(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) error {
	if next := c.selection.ReleaseExpired(nm.Name); next > 0 {
		c.queue.AddAfter(nm.Name, next)
	}
	if nm.Status.NewestNodeTimestamp == nil {
		return c.drawLine(ctx, nm)
	}
	g, err := c.gather(ctx, nm)
	if err != nil {
		return err
	}
	c.announceRefused(g.subject)
	c.problems.note(nm.Name, "status", c.selection.TooLarge(nm))
	l, err := c.look(g)
	if err != nil {
		return err
	}
	if err := c.settleDrained(ctx, g, &l.status); err != nil {
		return err
	}
	written, err := c.writeStatus(ctx, nm, l.status)
	if err != nil {
		return err
	}
	c.announceProgress(g, l.plan, written)
	if !maintenancev1alpha1.IsDraining(nm) {
		return nil
	}
	// From here on the targets are what is stored.
	g.subject.NodeMaintenance = written
	if err := errors.Join(c.evacuate(ctx, g, l), c.withdrawUnwanted(ctx, g, l)); err != nil {
		return shownError{err}
	}
	return nil
}

// shownError is an error of a sync that has written its status: the next one shows it beside
// everything else.
type shownError struct{ error }

func (e shownError) Unwrap() error { return e.error }

// drawLine stores which nodes are new to a maintenance that has left stage Idle, before any node is
// touched: those created after the newest one that the cache shows now. One clock, that of the host
// cluster, decides.
func (c *Controller) drawLine(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance) error {
	status := *nm.Status.DeepCopy()
	if status.NewestNodeTimestamp = c.selection.NewestNode(); status.NewestNodeTimestamp.IsZero() {
		// There is no node yet: all that come are new.
		status.NewestNodeTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	}
	written, err := c.writeStatus(ctx, nm, status)
	if err != nil {
		return err
	}
	if err := c.selection.SetMaintenance(written); err != nil {
		return err
	}
	c.queue.Add(nm.Name)
	return nil
}

// touchedNodes returns the names of the nodes that a maintenance may have changed: those of its
// status and those that bear its annotation.
func (c *Controller) touchedNodes(nm *maintenancev1alpha1.NodeMaintenance) sets.Set[string] {
	names := make(sets.Set[string], len(nm.Status.NodeStatuses))
	for i := range nm.Status.NodeStatuses {
		names.Insert(nm.Status.NodeStatuses[i].NodeRef.Name)
	}
	annotated, err := c.nodeIndexer.IndexKeys(nodemarks.NodesByMaintenance, string(nm.UID))
	if err == nil {
		names.Insert(annotated...)
	}
	return names
}

// announceRefused tells once about each node that the requester may not delete: the message in the
// status is the memory.
func (c *Controller) announceRefused(m *member) {
	if len(m.refused) == 0 {
		return
	}
	message := drainplan.NotAuthorizedMessage(m.username())
	omitted := meta.IsStatusConditionTrue(m.Status.Conditions, maintenancev1alpha1.ConditionNodeMessagesOmitted)
	told := map[maintenancev1alpha1.NodeReference]bool{}
	for i := range m.Status.NodeStatuses {
		// Without messages a node that the status has was told of when it joined.
		told[m.Status.NodeStatuses[i].NodeRef] = omitted || m.Status.NodeStatuses[i].DrainMessage == message
	}
	for _, node := range m.refused {
		if !told[refOf(node)] {
			c.nodeEvent(node, m.NodeMaintenance, corev1.EventTypeWarning, EventNotAuthorized, actionDrain,
				"Left alone by NodeMaintenance %s: user %q may not delete the node", m.Name, m.username())
			c.maintenanceEvent(m.NodeMaintenance, corev1.EventTypeWarning, EventNotAuthorized, actionDrain,
				"Node %s is left alone: user %q may not delete it", node.Name, m.username())
		}
	}
}

// announceProgress tells what is new in the status that was written. If none was, nothing is told.
func (c *Controller) announceProgress(g *gathered, plan drainplan.Result, written *maintenancev1alpha1.NodeMaintenance) {
	nm := g.subject.NodeMaintenance
	if written == nm {
		return
	}
	if isDrained(written) && !isDrained(nm) {
		c.maintenanceEvent(nm, corev1.EventTypeNormal, EventDrained, actionDrain, "%s",
			meta.FindStatusCondition(written.Status.Conditions, maintenancev1alpha1.ConditionDrained).Message)
	}
	if isDrained(nm) && !isDrained(written) {
		c.maintenanceEvent(nm, corev1.EventTypeWarning, EventDrainedNoLonger, actionDrain, "%s", conditionOf(written, maintenancev1alpha1.ConditionDrained).Message)
	}
	if wave := openedWave(nm, written); wave != nil {
		if !hasTargets(nm) {
			c.forecasts.queue.Add(nm.Name)
		}
		c.maintenanceEvent(nm, corev1.EventTypeNormal, EventWaveStarted, actionDrain,
			"%s pods up to priority %d are asked to leave %s", wave.PodType, wave.PodPriority, plural(len(g.subject.nodes), "node"))
	}
	c.announceProgressing(nm, written)
	if now := blockedDrain(written); now != nil && blockedDrain(nm) == nil {
		c.maintenanceEvent(nm, corev1.EventTypeWarning, EventDrainBlocked, actionDrain, "%s", now.Message)
	}
	if len(plan.FastForwarded[nm.Name]) > 0 {
		c.announceFastForward(nm, plan)
	}
	if !drainplan.SameTargets(nm, written) {
		for _, o := range plan.Overrides {
			if slices.Contains(o.Overridden, nm.Name) {
				c.maintenanceEvent(nm, corev1.EventTypeWarning, EventOrderOverridden, actionDrain,
					"The drain plans of %s and %s contradict each other: the order of %s is followed", o.Followed, nm.Name, o.Followed)
			}
		}
	}
}

// openedWave returns the last of the targets that the written status has and the one before has
// not, nil if there is none.
func openedWave(before, written *maintenancev1alpha1.NodeMaintenance) *maintenancev1alpha1.DrainPlanEntry {
	furthest := func(nm *maintenancev1alpha1.NodeMaintenance) *maintenancev1alpha1.DrainPlanEntry {
		var last *maintenancev1alpha1.DrainPlanEntry
		for i := range nm.Status.NodeStatuses {
			targets := nm.Status.NodeStatuses[i].DrainTargets
			if len(targets) > 0 && (last == nil || isFurther(&targets[len(targets)-1], last)) {
				last = &targets[len(targets)-1]
			}
		}
		return last
	}
	is, was := furthest(written), furthest(before)
	if is == nil || was != nil && !isFurther(is, was) {
		return nil
	}
	return is
}

// hasTargets reports whether a wave has opened before.
func hasTargets(nm *maintenancev1alpha1.NodeMaintenance) bool {
	return slices.ContainsFunc(nm.Status.NodeStatuses, func(n maintenancev1alpha1.NodeMaintenanceNodeStatus) bool { return len(n.DrainTargets) > 0 })
}

// isFurther reports whether one target comes after another in every plan.
func isFurther(a, b *maintenancev1alpha1.DrainPlanEntry) bool {
	order := []maintenancev1alpha1.PodType{maintenancev1alpha1.PodTypeDefault, maintenancev1alpha1.PodTypeDaemonSet, maintenancev1alpha1.PodTypeStatic}
	x, y := slices.Index(order, a.PodType), slices.Index(order, b.PodType)
	return x > y || x == y && a.PodPriority > b.PodPriority
}

// announceFastForward tells once about each maintenance that has taken nodes further than the plan
// of nm would have.
func (c *Controller) announceFastForward(nm *maintenancev1alpha1.NodeMaintenance, plan drainplan.Result) {
	if meta.IsStatusConditionTrue(nm.Status.Conditions, maintenancev1alpha1.ConditionNodeMessagesOmitted) {
		return // whether it was told is in the messages
	}
	before := map[string]string{}
	for i := range nm.Status.NodeStatuses {
		before[nm.Status.NodeStatuses[i].NodeRef.Name] = nm.Status.NodeStatuses[i].DrainMessage
	}
	told := sets.New[string]()
	for node, by := range plan.FastForwarded[nm.Name] {
		if !isMessageOf(before[node], plan.Messages[nm.Name][node]) && !told.Has(by) {
			told.Insert(by)
			c.maintenanceEvent(nm, corev1.EventTypeWarning, EventFastForwarded, actionDrain,
				"NodeMaintenance %s has taken node %s further than the plan of %s: the pods it has passed are asked to leave now", by, node, nm.Name)
		}
	}
}

// blockedDrain returns the condition Drained if it says that the drain stands still, or nil.
func blockedDrain(nm *maintenancev1alpha1.NodeMaintenance) *metav1.Condition {
	drained := meta.FindStatusCondition(nm.Status.Conditions, maintenancev1alpha1.ConditionDrained)
	if drained == nil || drained.Reason != maintenancev1alpha1.ReasonDrainBlocked {
		return nil
	}
	return drained
}

func isDrained(nm *maintenancev1alpha1.NodeMaintenance) bool {
	return meta.IsStatusConditionTrue(nm.Status.Conditions, maintenancev1alpha1.ConditionDrained)
}

// settleDrained lets Drained become True only after the scheduler has had time to bind what it had
// placed, and after a live list has confirmed the cache. Once this leader has confirmed it for
// these nodes, and as long as none of them is seen cordoned anew, the cache is enough: every pod
// that comes is an event.
func (c *Controller) settleDrained(ctx context.Context, g *gathered, status *maintenancev1alpha1.NodeMaintenanceStatus) error {
	nm := g.subject.NodeMaintenance
	if !meta.IsStatusConditionTrue(status.Conditions, maintenancev1alpha1.ConditionDrained) {
		return nil
	}
	was := isDrained(nm) && sameNodes(nm.Status.NodeStatuses, status.NodeStatuses)
	confirmed, ours := c.confirmed.at(nm)
	if was && ours && !c.state.Cordons.Latest(g.subject.nodes).After(confirmed) {
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
	c.confirmed.set(nm)
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

// confirmations remembers when this leader has seen, by a live list, that a maintenance is drained.
type confirmations struct {
	clock clock.PassiveClock

	mu     sync.Mutex
	byName map[string]confirmation
}

type confirmation struct {
	uid types.UID
	at  time.Time
}

func newConfirmations(clock clock.PassiveClock) *confirmations {
	return &confirmations{clock: clock, byName: map[string]confirmation{}}
}

func (c *confirmations) set(nm *maintenancev1alpha1.NodeMaintenance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byName[nm.Name] = confirmation{uid: nm.UID, at: c.clock.Now()}
}

func (c *confirmations) at(nm *maintenancev1alpha1.NodeMaintenance) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one, ok := c.byName[nm.Name]
	return one.at, ok && one.uid == nm.UID
}

func (c *confirmations) remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byName, name)
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

// pageSize is how many pods a live list asks for at once.
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
