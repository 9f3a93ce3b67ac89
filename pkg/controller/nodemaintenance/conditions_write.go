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
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/keymutex"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	controllercache "haulout.dev/haulout/pkg/controller/cache"
	"haulout.dev/haulout/pkg/controller/worker"
	"haulout.dev/haulout/pkg/drainplan"
)

const (
	// conditionsDelay is how long events of a node are gathered before its conditions are looked at. Cordons and Evacuations go first.
	conditionsDelay = 500 * time.Millisecond
	// conditionsWorkers bounds the writes of conditions that are under way.
	conditionsWorkers = 4
	// returnPatience is how long a node that was drained and got a pod again is shown as not drained at least. Where somebody keeps putting pods
	// there, every one of them would be two writes.
	returnPatience = 30 * time.Second
)

// nodesByConditionsOf is the index of nodes by the UIDs of the maintenances that their conditions are about.
const nodesByConditionsOf = "haulout.dev/nodes-by-conditions-of"

func indexNodeByConditionsOf(obj any) ([]string, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, nil
	}
	var uids []string
	for _, recorded := range recordOf(node).Maintenances {
		uids = append(uids, string(recorded.UID))
	}
	return uids, nil
}

// nodeConditions keeps the conditions of nodes. It looks at one node at a time, beside the syncs of the maintenances, and writes what the caches
// say at that moment: a drain does not wait for it, and what one look has missed the next one mends.
type nodeConditions struct {
	c *Controller
	// advertise has nodes of maintenances in stage Idle shown as planned.
	advertise bool
	queue     *worker.Queue[string]
	// locks keep a look that began before a maintenance let go of a node from writing after that.
	locks keymutex.KeyMutex

	mu sync.Mutex
	// written are the nodes as they were last written, until the cache shows them.
	written map[string]*corev1.Node
	// confirmed remembers which nodes this leader has seen, or inherited, as drained.
	confirmed map[types.UID]drainedNode
}

// drainedNode says since when, and for whom, a node is known to be drained.
type drainedNode struct {
	at           time.Time
	maintenances sets.Set[types.UID]
}

func newNodeConditions(c *Controller, config Config) *nodeConditions {
	return &nodeConditions{
		c: c, advertise: config.AdvertisePlanned,
		queue: worker.NewQueue(worker.Config[string]{
			Name: Name + "-conditions", Backoff: 100 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness, Busy: Name + " conditions of",
			Failed: func() { conditionErrors.Inc() },
			LogAs:  func(name string) (string, any) { return "node", klog.KRef("", name) },
		}),
		locks: keymutex.NewHashed(256), written: map[string]*corev1.Node{}, confirmed: map[types.UID]drainedNode{},
	}
}

func (k *nodeConditions) mark(name string) { k.queue.AddAfter(name, conditionsDelay) }

// markAll has all nodes looked at that bear conditions of ours or should.
func (k *nodeConditions) markAll() {
	for _, node := range k.c.nodeIndexer.List() {
		k.markIfConcerned(node.(*corev1.Node))
	}
}

func (k *nodeConditions) markIfConcerned(node *corev1.Node) {
	if _, annotated := node.Annotations[maintenancev1alpha1.AnnotationConditionsBy]; annotated || len(k.c.selection.maintenancesOn(node.Name)) > 0 {
		k.mark(node.Name)
	}
}

// The handlers run after those of the controller, which keep what selects which node.

func (k *nodeConditions) nodeChanged(old, node *corev1.Node) {
	if old != nil && (node == nil || old.UID != node.UID) {
		k.forget(old)
	}
	if node == nil || old != nil && sameConditions(old, node) {
		return
	}
	k.mu.Lock()
	if written := k.written[node.Name]; written != nil && !isNewer(written, node) {
		delete(k.written, node.Name)
	}
	k.mu.Unlock()
	k.markIfConcerned(node)
}

// sameConditions says whether nothing has changed about a node that its conditions depend on, nor they themselves.
func sameConditions(a, b *corev1.Node) bool {
	if a.UID != b.UID || a.Spec.Unschedulable != b.Spec.Unschedulable || !labels.Equals(a.Labels, b.Labels) {
		return false
	}
	for _, key := range []string{maintenancev1alpha1.AnnotationCordonedBy, maintenancev1alpha1.AnnotationConditionsBy} {
		if a.Annotations[key] != b.Annotations[key] {
			return false
		}
	}
	for _, conditionType := range nodeConditionTypes {
		x, y := nodeCondition(a, conditionType), nodeCondition(b, conditionType)
		if (x == nil) != (y == nil) || x != nil && (x.Status != y.Status || x.Reason != y.Reason || x.Message != y.Message) {
			return false
		}
	}
	return true
}

func (k *nodeConditions) maintenanceChanged(old, nm *maintenancev1alpha1.NodeMaintenance) {
	if old != nil && nm != nil && old.UID == nm.UID && old.Generation == nm.Generation && old.DeletionTimestamp.Equal(nm.DeletionTimestamp) {
		return
	}
	for _, m := range []*maintenancev1alpha1.NodeMaintenance{old, nm} {
		if m == nil {
			continue
		}
		for _, node := range k.c.selection.nodesOf(m.Name) {
			k.mark(node.Name)
		}
		shown, err := k.c.nodeIndexer.IndexKeys(nodesByConditionsOf, string(m.UID))
		if err != nil {
			continue
		}
		for _, name := range shown {
			k.mark(name)
		}
	}
}

func (k *nodeConditions) forget(node *corev1.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.written, node.Name)
	delete(k.confirmed, node.UID)
}

// latest returns a node as the cache has it, or as it was written here if that is newer.
func (k *nodeConditions) latest(name string) (*corev1.Node, error) {
	node, err := k.c.nodeLister.Get(name)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if written := k.written[name]; written != nil && isNewer(written, node) {
		return written, nil
	}
	return node, nil
}

// isNewer says whether a is a later state of the node than b.
func isNewer(a, b *corev1.Node) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order > 0 && a.UID == b.UID
}

// reconcile writes the conditions of a node if they are not what they should be. The cache is enough for it: the write is refused if the node has
// changed meanwhile, and then decided anew.
func (k *nodeConditions) reconcile(ctx context.Context, name string) error {
	k.locks.LockKey(name)
	defer func() { _ = k.locks.UnlockKey(name) }()
	cached, err := k.latest(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := k.write(ctx, cached); !apierrors.IsConflict(err) {
		return err
	}
	node, err := k.c.host.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && node.UID != cached.UID {
		// The cache will show it.
		return nil
	}
	if err != nil {
		return fmt.Errorf("read node %s: %w", name, err)
	}
	return k.write(ctx, node)
}

func (k *nodeConditions) write(ctx context.Context, node *corev1.Node) error {
	holders, err := k.holdersOf(ctx, node)
	if err != nil {
		return err
	}
	now := metav1.NewTime(k.c.clock.Now())
	change := decideConditions(node, holders, true, now)
	if change.drained {
		wait, err := k.unconfirmed(ctx, node, holders)
		if err != nil {
			return err
		}
		if wait != 0 {
			change = decideConditions(node, holders, false, now)
			k.queue.AddAfter(node.Name, wait)
		}
	}
	if change.empty() {
		return nil
	}
	if err := k.patch(ctx, node, change); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("write the conditions of node %s: %w", node.Name, err)
	}
	for _, news := range change.news {
		about := &maintenancev1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: news.name, UID: news.uid}}
		k.c.nodeEvent(node, about, corev1.EventTypeNormal, news.reason, news.action, "%s", news.note)
	}
	return nil
}

// patch writes conditions and annotation in one request to the node's status. The kubelet, and whoever else writes conditions, keeps those of
// other types.
func (k *nodeConditions) patch(ctx context.Context, node *corev1.Node, change conditionsChange) error {
	conditions := make([]any, 0, len(change.set)+len(change.remove))
	for i := range change.set {
		conditions = append(conditions, &change.set[i])
	}
	for _, conditionType := range change.remove {
		conditions = append(conditions, map[string]any{"$patch": "delete", "type": conditionType})
	}
	metadata := map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion}
	if change.setRecord {
		var value any
		if change.record != "" {
			value = change.record
		}
		metadata["annotations"] = map[string]any{maintenancev1alpha1.AnnotationConditionsBy: value}
	}
	data, err := json.Marshal(map[string]any{"metadata": metadata, "status": map[string]any{"conditions": conditions}})
	if err != nil {
		return err
	}
	stored, err := k.c.host.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if err != nil {
		return err
	}
	conditionWrites.Inc()
	if _, err := controllercache.Strip(stored); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.written[node.Name] = stored
	return nil
}

// holdersOf returns the maintenances that a node's conditions are about, sorted by name: those in stage Cordon and Drain that have cordoned it, and,
// if they are to be advertised, those in stage Idle that select it. No write is made on behalf of one whose requester may not delete the node;
// a right that is lost later ends no hold.
func (k *nodeConditions) holdersOf(ctx context.Context, node *corev1.Node) ([]holder, error) {
	record := recordOf(node)
	var holders []holder
	for _, name := range k.c.selection.maintenancesOn(node.Name) {
		nm, err := k.c.get(name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		held := isHolding(nm) && (record.holds(nm.Name, nm.UID) || decideCordon(node, nm).empty())
		planned := k.advertise && nm.DeletionTimestamp == nil && nm.Spec.Stage == maintenancev1alpha1.NodeMaintenanceStageIdle
		if !held && !planned {
			continue
		}
		allowed, err := k.c.authorize.allowed(ctx, nm.Spec.RequestedBy, []*corev1.Node{node})
		if err != nil {
			return nil, err
		}
		if !allowed[node.Name] && (planned || !record.holds(nm.Name, nm.UID)) {
			continue
		}
		h := holder{name: nm.Name, uid: nm.UID, stage: nm.Spec.Stage, reason: nm.Spec.Reason, refused: !allowed[node.Name]}
		if isDraining(nm) {
			if h.left, err = k.covers(ctx, nm, node); err != nil {
				return nil, err
			}
		}
		holders = append(holders, h)
	}
	return holders, nil
}

// covers says whether the cache shows a live pod on a node that a maintenance's plan covers and that is not left running on purpose.
func (k *nodeConditions) covers(ctx context.Context, nm *maintenancev1alpha1.NodeMaintenance, node *corev1.Node) (bool, error) {
	plan, err := drainplan.CompileTargets(nm.Spec.DrainPlan)
	if err != nil {
		return false, fmt.Errorf("drain plan of %s: %w", nm.Name, err)
	}
	view, err := k.c.view(ctx, node)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(view.pods, func(pod livePod) bool { return pod.left == "" && plan.Cover(pod.plan) }), nil
}

// unconfirmed returns how long to wait before a node on which the cache shows no covered pod may be called drained, and 0 if it may now. As
// for the maintenance as a whole, the scheduler has time to bind what it had placed, and a live list confirms the cache; after that the cache is
// enough, for the same maintenances, as long as the node is not seen cordoned anew.
func (k *nodeConditions) unconfirmed(ctx context.Context, node *corev1.Node, holders []holder) (time.Duration, error) {
	if !node.Spec.Unschedulable {
		// There is nothing to wait for but an event. It is asked again, in case that was missed.
		return settle, nil
	}
	maintenances := sets.New[types.UID]()
	for _, h := range drainingOf(holders) {
		maintenances.Insert(h.uid)
	}
	one := []*corev1.Node{node}
	drained := recordOf(node).ours(node, maintenancev1alpha1.NodeConditionDrained)
	if drained != nil && drained.Status == corev1.ConditionTrue {
		confirmed := k.confirmedOf(node)
		if confirmed.maintenances.IsSuperset(maintenances) && !k.c.cordons.latest(one).After(confirmed.at) {
			return 0, nil
		}
	}
	if wait := k.c.cordons.unsettled(one); wait > 0 {
		return wait, nil
	}
	if drained != nil && drained.Reason == maintenancev1alpha1.NodeReasonPodsReturned {
		if wait := returnPatience - k.c.clock.Since(drained.LastTransitionTime.Time); wait > 0 {
			return min(wait, returnPatience), nil
		}
	}
	found, err := k.foundLive(ctx, node, drainingOf(holders))
	if err != nil || found {
		return confirmPatience, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.confirmed[node.UID] = drainedNode{at: k.c.clock.Now(), maintenances: maintenances}
	return 0, nil
}

// confirmedOf returns what is known of a node that is shown as drained. What a leader inherits has been confirmed by another one.
func (k *nodeConditions) confirmedOf(node *corev1.Node) drainedNode {
	k.mu.Lock()
	defer k.mu.Unlock()
	if confirmed, known := k.confirmed[node.UID]; known {
		return confirmed
	}
	inherited := drainedNode{at: k.c.clock.Now(), maintenances: sets.New[types.UID]()}
	for _, recorded := range recordOf(node).Maintenances {
		if recorded.Stage == maintenancev1alpha1.NodeMaintenanceStageDrain {
			inherited.maintenances.Insert(recorded.UID)
		}
	}
	k.confirmed[node.UID] = inherited
	return inherited
}

// foundLive says whether the API, and not the cache, shows a pod on a node that one of the maintenances covers. Pods that are only nominated
// for the node are left to the cache: the API cannot select them, and none is nominated for a node that is cordoned.
func (k *nodeConditions) foundLive(ctx context.Context, node *corev1.Node, draining []holder) (bool, error) {
	var plans []drainplan.Targets
	for _, h := range draining {
		nm, err := k.c.get(h.name)
		if err != nil {
			return false, err
		}
		plan, err := drainplan.CompileTargets(nm.Spec.DrainPlan)
		if err != nil {
			return false, err
		}
		plans = append(plans, plan)
	}
	view, err := k.c.view(ctx, node)
	if err != nil {
		return false, err
	}
	list, err := k.c.host.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	if err != nil {
		return false, fmt.Errorf("list the pods of node %s: %w", node.Name, err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Spec.NodeName != node.Name || !drainplan.IsLive(pod) || view.leaves(pod.UID) {
			continue
		}
		live := k.c.classify(pod, node)
		if live.left == "" && slices.ContainsFunc(plans, func(plan drainplan.Targets) bool { return plan.Cover(live.plan) }) {
			return true, nil
		}
	}
	return false, nil
}

// leaves says whether a pod is in the view as one that is left running.
func (v *nodeView) leaves(uid types.UID) bool {
	return slices.ContainsFunc(v.pods, func(p livePod) bool { return p.UID == uid && p.left != "" })
}

// both calls two handlers one after the other.
func both[T any](first, second func(old, new *T)) func(old, new *T) {
	return func(old, new *T) {
		first(old, new)
		second(old, new)
	}
}
