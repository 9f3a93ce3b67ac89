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

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/host/noderights"
)

const (
	// conditionsDelay is how long events of a node are gathered before its conditions are written.
	// Cordons and Evacuations go first.
	conditionsDelay = 500 * time.Millisecond
	// nodeWorkers bounds the nodes that are reconciled at the same time.
	nodeWorkers = 16
	// quietRetry is how soon a node is reconciled again that waits for an eviction that is under
	// way.
	quietRetry = 50 * time.Millisecond
	// confirmationAge is how old the live read of a maintenance may be on which a cordon is based.
	confirmationAge = time.Second
)

// nodeReconciler keeps what the server writes to nodes: the cordon, the taints, the annotations
// that record whose they are, and the conditions. Its key is a node; one decision (decideNode) says
// what should be. A node is released when no maintenance holds it and no Evacuation of ours is left
// on it.
type nodeReconciler struct {
	c *Controller
	// storage is the ID of our storage; adopted is that of another one whose annotations count as
	// ours, or "".
	storage, adopted string
	// advertise has nodes of maintenances in stage Idle shown as planned.
	advertise bool
	queue     *loop.Queue[string]

	mu sync.Mutex
	// written are the nodes as they were last written, until the cache shows them.
	written map[string]*corev1.Node
	// confirmed remembers which nodes this leader has seen, or inherited, as drained.
	confirmed map[types.UID]drainedNode
	// madeSchedulable are, by node, the maintenances for which any cordon was lifted.
	madeSchedulable map[types.UID]types.UID
	// holding are, by maintenance, the generation that a live read confirmed, and when.
	holding map[types.UID]heldGeneration
	// foreign are the storages whose marks are on nodes, by node.
	foreign map[types.UID]string
	// troubles are the nodes that cannot be reconciled.
	troubles map[string]trouble
}

// drainedNode records since when, and for whom, a node is known to be drained.
type drainedNode struct {
	at           time.Time
	maintenances sets.Set[types.UID]
}

type heldGeneration struct {
	generation int64
	at         time.Time
}

// trouble is why a node cannot be reconciled, and since when.
type trouble struct {
	since time.Time
	text  string
}

func newNodeReconciler(c *Controller, config Config) *nodeReconciler {
	return &nodeReconciler{
		c: c, advertise: config.AdvertisePlanned, storage: config.StorageID, adopted: config.AdoptStorage,
		queue: loop.NewQueue(loop.Config[string]{
			Name: Name + "-nodes", Backoff: 100 * time.Millisecond, Clock: config.Clock, Liveness: config.Liveness, Busy: Name + " node",
			Failed: func() { nodeErrors.Inc() },
			LogAs:  func(name string) (string, any) { return "node", klog.KRef("", name) },
		}),
		written: map[string]*corev1.Node{}, confirmed: map[types.UID]drainedNode{},
		madeSchedulable: map[types.UID]types.UID{}, holding: map[types.UID]heldGeneration{}, troubles: map[string]trouble{}, foreign: map[types.UID]string{},
	}
}

// enqueue has a node reconciled now, enqueueConditions has it reconciled when its events have been
// gathered.
func (k *nodeReconciler) enqueue(name string)           { k.queue.Add(name) }
func (k *nodeReconciler) enqueueConditions(name string) { k.queue.AddAfter(name, conditionsDelay) }

// enqueueAll has all nodes reconciled that have something of ours or should.
func (k *nodeReconciler) enqueueAll() {
	for _, obj := range k.c.nodeIndexer.List() {
		if node := obj.(*corev1.Node); k.isConcerned(node) {
			k.enqueue(node.Name)
		}
	}
}

func (k *nodeReconciler) isConcerned(node *corev1.Node) bool {
	for _, key := range ourAnnotations {
		if _, ok := node.Annotations[key]; ok {
			return true
		}
	}
	return len(k.c.selection.maintenancesOn(node.Name)) > 0
}

var ourAnnotations = []string{
	maintenancev1alpha1.AnnotationCordonedBy, maintenancev1alpha1.AnnotationTaintedBy, maintenancev1alpha1.AnnotationConditionsBy,
}

// The handlers run after those of the controller, which keep what selects which node.

func (k *nodeReconciler) nodeChanged(old, node *corev1.Node) {
	if old != nil && (node == nil || old.UID != node.UID) {
		k.forget(old)
	}
	if node == nil {
		// Evacuations of its pods may be left.
		k.enqueue(old.Name)
		return
	}
	k.mu.Lock()
	if written := k.written[node.Name]; written != nil && !isNewer(written, node) {
		delete(k.written, node.Name)
	}
	k.mu.Unlock()
	if old != nil && sameForNode(old, node) || !k.isConcerned(node) {
		return
	}
	k.enqueue(node.Name)
}

// sameForNode reports whether nothing has changed about a node that its cordon, taints and
// conditions depend on, nor they themselves.
func sameForNode(a, b *corev1.Node) bool {
	if a.UID != b.UID || a.Spec.Unschedulable != b.Spec.Unschedulable || !labels.Equals(a.Labels, b.Labels) || !sameOurTaints(a, b) {
		return false
	}
	for _, key := range ourAnnotations {
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

// maintenanceChanged enqueues the nodes that a maintenance selects or is recorded on.
func (k *nodeReconciler) maintenanceChanged(old, nm *maintenancev1alpha1.NodeMaintenance) {
	if old != nil && nm != nil && old.UID == nm.UID && old.Generation == nm.Generation && old.DeletionTimestamp.Equal(nm.DeletionTimestamp) &&
		old.Status.NewestNodeTimestamp.Equal(nm.Status.NewestNodeTimestamp) && sameTargets(old, nm) {
		return
	}
	for _, m := range []*maintenancev1alpha1.NodeMaintenance{old, nm} {
		if m == nil {
			continue
		}
		for _, node := range k.c.selection.nodesOf(m.Name) {
			k.enqueue(node.Name)
		}
		for name := range k.recordedFor(m.UID) {
			k.enqueue(name)
		}
	}
}

// recordedFor returns the nodes whose annotations name a maintenance.
func (k *nodeReconciler) recordedFor(uid types.UID) sets.Set[string] {
	names := sets.New[string]()
	for _, index := range []string{nodesByOwner, nodesByConditionsOf} {
		if keys, err := k.c.nodeIndexer.IndexKeys(index, string(uid)); err == nil {
			names.Insert(keys...)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, node := range k.written {
		if isRecorded(node, uid) {
			names.Insert(name)
		}
	}
	return names
}

// isRecorded reports whether an annotation of a node names a maintenance.
func isRecorded(node *corev1.Node, uid types.UID) bool {
	for _, o := range []owners{ownersOf(node), taintersOf(node)} {
		for _, other := range o {
			if other == uid {
				return true
			}
		}
	}
	for _, recorded := range recordOf(node).Maintenances {
		if recorded.UID == uid {
			return true
		}
	}
	return false
}

func (k *nodeReconciler) forget(node *corev1.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.written, node.Name)
	delete(k.confirmed, node.UID)
	delete(k.madeSchedulable, node.UID)
	delete(k.troubles, node.Name)
	delete(k.foreign, node.UID)
	nodesWithForeignMarks.Set(float64(len(k.foreign)))
}

// latest returns a node as the cache has it, or as it was written here if that is newer.
func (k *nodeReconciler) latest(name string) (*corev1.Node, error) {
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

// isNewer reports whether a is a later state of the node than b.
func isNewer(a, b *corev1.Node) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order > 0 && a.UID == b.UID
}

// reconcile brings a node to what it should be. The cache is enough for it: a write is refused if
// the node has changed meanwhile, and then decided again from a live read.
func (k *nodeReconciler) reconcile(ctx context.Context, name string) error {
	cached, err := k.latest(name)
	if apierrors.IsNotFound(err) {
		// What was asked of the pods of the node is withdrawn.
		err = k.c.withdrawFrom(ctx, name)
		k.note(name, err)
		return err
	}
	if err != nil {
		return err
	}
	err = k.sync(ctx, cached)
	if apierrors.IsConflict(err) {
		var node *corev1.Node
		node, err = k.c.host.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && node.UID != cached.UID:
			return nil // the cache will show it
		case err != nil:
			err = fmt.Errorf("read node %s: %w", name, err)
		default:
			err = k.sync(ctx, node)
		}
	}
	k.note(name, err)
	return err
}

// note remembers why a node cannot be reconciled; nil forgets. The maintenances of the node show
// it.
func (k *nodeReconciler) note(name string, err error) {
	if err != nil && loop.IsOnlyConflict(err) {
		return
	}
	k.mu.Lock()
	was, had := k.troubles[name]
	switch {
	case err == nil:
		delete(k.troubles, name)
	case !had:
		k.troubles[name] = trouble{since: k.c.clock.Now(), text: textOf(err)}
	default:
		k.troubles[name] = trouble{since: was.since, text: textOf(err)}
	}
	k.mu.Unlock()
	switch {
	case err == nil && had:
		k.c.markNode(name)
	case err != nil && !had:
		for _, nm := range k.c.selection.maintenancesOn(name) {
			k.c.queue.AddAfter(nm, visibleAfter)
		}
	}
}

// troubleOf returns why a node cannot be reconciled, if that has been so for long enough to be
// shown.
func (k *nodeReconciler) troubleOf(name string) (trouble, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t, ok := k.troubles[name]
	return t, ok && k.c.clock.Since(t.since) >= visibleAfter
}

// troublesAmong returns why nodes cannot be reconciled for which that has been so for long enough
// to be shown, and how long it takes until another one is shown, 0 if none will be.
func (k *nodeReconciler) troublesAmong(nodes []*corev1.Node) (visible []problem, next time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.troubles) == 0 {
		return nil, 0
	}
	for _, node := range nodes {
		t, ok := k.troubles[node.Name]
		if !ok {
			continue
		}
		if wait := visibleAfter - k.c.clock.Since(t.since); wait <= 0 {
			visible = append(visible, problem{object: "node " + node.Name, since: t.since, text: t.text})
		} else if next == 0 || wait < next {
			next = wait
		}
	}
	return visible, next
}

// untilVisible returns how long it takes until the trouble of a node is shown, 0 if it has none or
// is shown already.
func (k *nodeReconciler) untilVisible(name string) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t, ok := k.troubles[name]; ok {
		return max(0, visibleAfter-k.c.clock.Since(t.since))
	}
	return 0
}

// isFailing reports whether a node could not be reconciled at the last attempt: then its queue
// tries it again by itself, less and less often.
func (k *nodeReconciler) isFailing(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, failing := k.troubles[name]
	return failing
}

func (k *nodeReconciler) sync(ctx context.Context, node *corev1.Node) error {
	facts, err := k.gather(ctx, node)
	if err != nil && len(facts.holders) == 0 {
		// Without a holder the node would be released, which an authorizer that does not answer
		// must not bring about.
		return err
	}
	if len(facts.holders) == 0 && facts.undecided {
		// A maintenance is about to hold the node. There is an event when it does: that of its
		// status, or that of the authorizer's answer.
		return nil
	}
	if len(facts.released()) > 0 || !facts.drains && k.c.hasUnwanted(node.Name) {
		if withdrawn := k.c.withdrawFrom(ctx, node.Name); withdrawn != nil {
			return errors.Join(err, withdrawn)
		}
		if len(facts.holders) == 0 && !k.c.isQuiet(node.Name) {
			k.queue.AddAfter(node.Name, quietRetry)
			return err
		}
	}
	if len(facts.holders) == 0 {
		// The conditions go first: a node that is seen schedulable has nothing of the maintenance
		// any more.
		return errors.Join(err, k.writeConditionsThen(ctx, node, facts))
	}
	wrote, writeErr := k.write(ctx, facts)
	if wrote || writeErr != nil {
		k.enqueueConditions(node.Name)
		return errors.Join(err, writeErr)
	}
	_, conditionsErr := k.writeConditions(ctx, node, facts)
	return errors.Join(err, ignoreAsking(conditionsErr))
}

// ignoreAsking returns nil for what waits for the first answer of the authorizer: the node is
// reconciled again when that is there.
func ignoreAsking(err error) error {
	if errors.Is(err, noderights.ErrAsking) {
		return nil
	}
	return err
}

// writeConditionsThen writes the conditions of a node that nothing holds and then the node itself.
func (k *nodeReconciler) writeConditionsThen(ctx context.Context, node *corev1.Node, facts nodeFacts) error {
	stored, conditionsErr := k.writeConditions(ctx, node, facts)
	if apierrors.IsConflict(conditionsErr) || errors.Is(conditionsErr, noderights.ErrAsking) {
		return ignoreAsking(conditionsErr)
	}
	if stored != nil {
		facts.node = stored
	}
	_, err := k.write(ctx, facts)
	return errors.Join(conditionsErr, err)
}

// gather reads what the decision about a node depends on. An authorizer that does not answer is an
// error beside the facts: those who hold the node already go on holding it.
func (k *nodeReconciler) gather(ctx context.Context, node *corev1.Node) (nodeFacts, error) {
	f := nodeFacts{node: node, holders: owners{}, now: k.c.clock.Now()}
	f.cordon, f.foreignCordon = k.ours(node, maintenancev1alpha1.AnnotationCordonedBy)
	f.taint, f.foreignTaint = k.ours(node, maintenancev1alpha1.AnnotationTaintedBy)
	if !f.foreignTaint {
		f.added = markIn(node, maintenancev1alpha1.AnnotationTaintedBy).Taints
	}
	k.noteForeign(node)
	var errs []error
	for _, name := range k.c.selection.maintenancesOn(node.Name) {
		nm, err := k.c.get(name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return f, err
		}
		if makesSchedulable(nm) && isEnding(nm) && !isDone(nm) && !k.hasMadeSchedulable(node, nm) {
			f.makesSchedulable = nm
		}
		holds := f.cordon.has(nm) || f.taint.has(nm)
		if isHolding(nm) && nm.Status.NewestNodeTimestamp == nil {
			f.undecided = true
		}
		if !isHolding(nm) || nm.Status.NewestNodeTimestamp == nil || !holds && k.c.tooLarge(nm) != nil {
			continue
		}
		answer := k.c.rights.Ask(ctx, nm.Spec.RequestedBy, []*corev1.Node{node})[node.Name]
		switch {
		case holds || answer.Err == nil:
		case errors.Is(answer.Err, noderights.ErrAsking):
			f.undecided = true
		default:
			errs = append(errs, fmt.Errorf("ask whether user %q may delete node %s: %w", usernameOf(nm), node.Name, answer.Err))
		}
		f.mayWork = f.mayWork || answer.Allowed && (holds || !answer.Stale)
		holds = holds || answer.Allowed && !answer.Stale
		if holds {
			f.holders[nm.Name] = nm.UID
			f.drains = f.drains || isDraining(nm)
			f.drainsDaemonSets = f.drainsDaemonSets || k.c.asksDaemonSets(nm, node)
		}
	}
	for name, uid := range f.released() {
		ended, err := k.c.hasEnded(ctx, name, uid, node)
		if err != nil {
			errs = append(errs, err)
		}
		if !ended {
			f.holders[name] = uid
		}
	}
	return f, errors.Join(errs...)
}

// noteForeign records, once for each node and storage, that a server with another storage has left
// marks on a node.
func (k *nodeReconciler) noteForeign(node *corev1.Node) {
	storage := ""
	for _, key := range []string{maintenancev1alpha1.AnnotationCordonedBy, maintenancev1alpha1.AnnotationTaintedBy} {
		if id := markIn(node, key).Storage; id != "" && !k.isOurStorage(id) {
			storage = id
		}
	}
	k.mu.Lock()
	was := k.foreign[node.UID]
	if storage == "" {
		delete(k.foreign, node.UID)
	} else {
		k.foreign[node.UID] = storage
	}
	nodesWithForeignMarks.Set(float64(len(k.foreign)))
	k.mu.Unlock()
	if storage != "" && storage != was {
		k.c.recorder.Eventf(nodeRef(node), nil, corev1.EventTypeWarning, EventForeignMarks, actionMaintain, "%s",
			note("The node has marks of the storage %.64q, which is not that of this server (%s): they stay until the server is started with --adopt-storage", storage, k.storage))
	}
}

// ours returns the maintenances of our storage that an annotation of a node names, and whether the
// annotation is there and not ours.
func (k *nodeReconciler) ours(node *corev1.Node, annotation string) (o owners, foreign bool) {
	if _, there := node.Annotations[annotation]; !there {
		return nil, false
	}
	m := markIn(node, annotation)
	if !k.isOurStorage(m.Storage) {
		return nil, true
	}
	return m.Maintenances, false
}

func (k *nodeReconciler) isOurStorage(id string) bool {
	return id == k.storage || id != "" && id == k.adopted
}

// hasMadeSchedulable reports whether any cordon of a node was lifted for a maintenance already: one
// that is set after that is meant.
func (k *nodeReconciler) hasMadeSchedulable(node *corev1.Node, nm *maintenancev1alpha1.NodeMaintenance) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.madeSchedulable[node.UID] == nm.UID
}

// hasEnded reports whether a maintenance that an annotation names does not hold the node any more.
// The cache answers for those that it shows, the API for the others.
func (c *Controller) hasEnded(ctx context.Context, name string, uid types.UID, node *corev1.Node) (bool, error) {
	nm, err := c.get(name)
	if err != nil || nm.UID != uid {
		nm, err = c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && nm.UID != uid {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("look for maintenance %s, which node %s names: %w", name, node.Name, err)
		}
		// The cache does not show it yet.
		return isDone(nm), nil
	}
	return !isHolding(nm) || !slices.Contains(c.selection.maintenancesOn(node.Name), name), nil
}
