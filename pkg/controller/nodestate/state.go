// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodestate has the state of nodes and their pods that several controllers share and that
// is not in one object: the pods as a drain classifies them, the requested Evacuations that are not
// in the cache yet, the failures, since when a node is cordoned, and for which maintenances it is
// confirmed as drained.
//
// All of it may be lost at any time. A new leader classifies pods again (views), requests
// Evacuations again (Requests) and reports failures a minute later (Troubles). It also waits for
// the scheduler again, confirms drained nodes again, notices later that another client keeps
// removing a cordon, and may remove a cordon again for a maintenance that only uncordons (Cordons).
package nodestate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/drain/marks"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	maintenancelisters "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/inflight"
	"haulout.dev/haulout/pkg/host/podcache"
)

// Config has the dependencies and options of a State.
type Config struct {
	// Cluster has the clients and the caches.
	Cluster *host.Cluster
	// Selection reports changes of nodes. The State subscribes to it, so create the State before
	// its users subscribe to the Selection.
	Selection *selection.Selection
	Clock     clock.PassiveClock
	// Evacuators are the classes of the enabled built-in evacuators. Pods that only a disabled
	// evacuator could evacuate are kept.
	Evacuators sets.Set[string]
	// DaemonSetBudgetPatience is how long the budget of a DaemonSet pod may allow no disruption
	// before the pod is kept on its node; 0 means 5 minutes.
	DaemonSetBudgetPatience time.Duration
	// OwnPod is the pod that this server runs in; an empty name means none.
	OwnPod types.NamespacedName
}

// Subscriber has functions that are called after the state has processed a change. They must not
// block, and may be nil. The first argument is nil for a new object, the second one for a deleted
// object.
type Subscriber struct {
	// Pod and Evacuation are called for each event that changes a field that a drain reads.
	Pod        func(old, pod *corev1.Pod)
	Evacuation func(old, evacuation *v1alpha1.Evacuation)
	// Changed is called with the name of a node when a failure of the node begins or ends, when the
	// node was uncordoned for a maintenance that only uncordons, when it becomes drained or not
	// drained, or when a volume is attached to it or detached.
	Changed func(node string)
	// Task is called for each event of a NodeTask, with its last state.
	Task func(task *v1alpha1.NodeTask)
	// RequestEnded is called with the name of a node when the requested Evacuation of one of its
	// pods does not exist.
	RequestEnded func(node string)
}

// State has the shared state of nodes and their pods. It is safe for concurrent use.
type State struct {
	// HasSynced reports whether the state has processed the initial lists of the informers.
	HasSynced cache.InformerSynced
	// Cordons and Taints record the cordons and the taints of the server.
	Cordons, Taints *Cordons
	// Troubles has the failures by node.
	Troubles *loop.Failures[string]
	// Requests has the requested Evacuations that are not in the cache yet.
	Requests *Requests
	// Nodes has the nodes, each in the cached state or in the newer state that this process has
	// written.
	Nodes loop.Latest[*corev1.Node]
	// Tasks has the NodeTasks, by node, in the same way.
	Tasks loop.Latest[*v1alpha1.NodeTask]

	clock             clock.PassiveClock
	selection         *selection.Selection
	pods              *podcache.Pods
	evacuations       cache.Indexer
	taskIndexer       cache.Indexer
	volumeIndexer     cache.Indexer
	cluster           *host.Cluster
	podLister         corelisters.PodLister
	evacuationLister  maintenancelisters.EvacuationLister
	maintenanceLister maintenancelisters.NodeMaintenanceLister
	evictions         *inflight.Evictions
	evacuators        sets.Set[string]
	budgetPatience    time.Duration
	ownPod            types.NamespacedName
	// ownOwner is the UID of the controller of ownPod, once that pod has been read.
	ownOwner atomic.Value
	views    views
	// withTask are the names of the maintenances that have a task and have not released all nodes.
	withTask    loop.Memory[string, struct{}]
	subscribers []Subscriber
}

// New creates a State and registers its handlers and indexes; the informers must not run yet.
func New(config Config) (*State, error) {
	if config.DaemonSetBudgetPatience == 0 {
		config.DaemonSetBudgetPatience = protocol.DefaultBudgetPatience
	}
	evacuations, tasks := config.Cluster.Evacuations.Informer(), config.Cluster.NodeTasks.Informer()
	volumes := config.Cluster.VolumeAttachments.Informer()
	s := &State{
		Cordons: newCordons(config.Clock), Taints: newCordons(config.Clock),
		Nodes:             loop.NewLatest[*corev1.Node](config.Cluster.Nodes.Informer().GetStore()),
		Tasks:             loop.NewLatest[*v1alpha1.NodeTask](tasks.GetStore()),
		clock:             config.Clock,
		selection:         config.Selection,
		pods:              config.Cluster.Pods,
		evacuations:       evacuations.GetIndexer(),
		taskIndexer:       tasks.GetIndexer(),
		volumeIndexer:     volumes.GetIndexer(),
		cluster:           config.Cluster,
		podLister:         config.Cluster.Pods.Lister(),
		evacuationLister:  config.Cluster.Evacuations.Lister(),
		maintenanceLister: config.Cluster.NodeMaintenances.Lister(),
		evictions:         config.Cluster.InFlight,
		evacuators:        config.Evacuators,
		budgetPatience:    config.DaemonSetBudgetPatience,
		ownPod:            config.OwnPod,
	}
	s.Requests = newRequests(config.Clock, func(node string) { s.tell(func(sub Subscriber) func(string) { return sub.RequestEnded }, node) })
	s.Troubles = loop.NewFailures(config.Clock, func(node string) { s.tell(func(sub Subscriber) func(string) { return sub.Changed }, node) })
	config.Selection.Subscribe(selection.Subscriber{Node: s.nodeChanged, Maintenance: s.maintenanceChanged})
	err := errors.Join(
		podcache.AddIndex(tasks, tasksByMaintenance, indexByMaintenance),
		podcache.AddIndex(volumes, attachedByNode, indexAttachedByNode),
	)
	if err != nil {
		return nil, fmt.Errorf("add indexes: %w", err)
	}
	s.HasSynced, err = podcache.AddHandlers(
		podcache.Handled{Informer: config.Cluster.Pods, Handler: podcache.HandlerOf(s.podChanged)},
		podcache.Handled{Informer: evacuations, Handler: podcache.HandlerOf(s.evacuationChanged)},
		podcache.Handled{Informer: tasks, Handler: podcache.HandlerOf(s.taskChanged)},
		podcache.Handled{Informer: volumes, Handler: podcache.HandlerOf(s.volumeAttachmentChanged)},
	)
	if err != nil {
		return nil, fmt.Errorf("watch pods, Evacuations, NodeTasks and volume attachments: %w", err)
	}
	return s, nil
}

// Subscribe adds a subscriber, which is called after the previous ones. The informers must not run
// yet.
func (s *State) Subscribe(subscriber Subscriber) {
	s.subscribers = append(s.subscribers, subscriber)
}

func (s *State) nodeChanged(change selection.NodeChange) {
	old, node := change.Old, change.New
	if old != nil && (node == nil || old.UID != node.UID) {
		s.Cordons.forget(old)
		s.Taints.forget(old)
		s.Troubles.Forget(old.Name)
		s.views.Forget(old.Name)
	}
	if node == nil {
		return
	}
	s.Cordons.observe(node)
	if old != nil && (!labels.Equals(old.Labels, node.Labels) || !SameTaints(old, node) || !marks.Same(old, node)) {
		// The taints determine whether a pod of this server is kept.
		s.views.drop(node.Name)
	}
}

// maintenanceChanged records which maintenances have tasks, and drops the views of nodes that no
// maintenance selects any more.
func (s *State) maintenanceChanged(old, nm *v1alpha1.NodeMaintenance) {
	if nm != nil && nm.Spec.Task != nil && !v1alpha1.IsDone(nm) {
		s.withTask.Set(nm.Name, struct{}{})
	} else {
		s.withTask.Forget(cmp.Or(nm, old).Name)
	}
	if nm == nil || v1alpha1.IsDone(nm) {
		// During this call, a deleted maintenance still selects its nodes.
		selects := func(name string) bool { return nm != nil || name != old.Name }
		for _, node := range s.views.Keys() {
			if !slices.ContainsFunc(s.selection.MaintenancesOn(node), selects) {
				s.views.Forget(node)
			}
		}
	}
}

func (s *State) podChanged(old, pod *corev1.Pod) {
	for _, p := range []*corev1.Pod{old, pod} {
		if p != nil {
			s.views.drop(podcache.NodeOf(p))
		}
	}
	if pod == nil {
		s.Requests.Forget(old.UID)
	}
	if old != nil && pod != nil && samePod(old, pod) {
		return
	}
	for _, subscriber := range s.subscribers {
		if subscriber.Pod != nil {
			subscriber.Pod(old, pod)
		}
	}
}

func (s *State) evacuationChanged(old, evacuation *v1alpha1.Evacuation) {
	latest := cmp.Or(evacuation, old)
	s.views.drop(s.NodeOf(latest))
	if evacuation == nil || IsOurs(evacuation) {
		s.Requests.Forget(latest.Spec.PodRef.UID)
	}
	if old != nil && evacuation != nil && sameEvacuation(old, evacuation) {
		return
	}
	for _, subscriber := range s.subscribers {
		if subscriber.Evacuation != nil {
			subscriber.Evacuation(old, evacuation)
		}
	}
}

// samePod reports whether two states of a pod are equal in all fields that a drain reads.
func samePod(a, b *corev1.Pod) bool {
	return a.UID == b.UID && podcache.NodeOf(a) == podcache.NodeOf(b) && a.Status.Phase == b.Status.Phase &&
		drainplan.IsLive(a) == drainplan.IsLive(b) &&
		labels.Equals(a.Labels, b.Labels) && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

// sameEvacuation reports whether two states of an Evacuation are equal in all fields that a drain
// reads.
func sameEvacuation(a, b *v1alpha1.Evacuation) bool {
	return a.UID == b.UID && slices.Equal(a.Finalizers, b.Finalizers) && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		TrueReason(a, v1alpha1.ConditionComplete) == TrueReason(b, v1alpha1.ConditionComplete) &&
		TrueReason(a, v1alpha1.ConditionBlocked) == TrueReason(b, v1alpha1.ConditionBlocked)
}

// TrueReason returns the reason of a condition of an Evacuation that is True, otherwise "".
func TrueReason(e *v1alpha1.Evacuation, conditionType string) string {
	if condition := meta.FindStatusCondition(e.Status.Conditions, conditionType); condition != nil && condition.Status == metav1.ConditionTrue {
		return condition.Reason
	}
	return ""
}

// DropView drops the cached view of a node. The next call of View classifies its pods again.
func (s *State) DropView(node string) { s.views.drop(node) }

// IsOurs reports whether an Evacuation has the finalizer of the instigator NodeMaintenance.
func IsOurs(e *v1alpha1.Evacuation) bool {
	return slices.Contains(e.Finalizers, v1alpha1.FinalizerInstigatorNodeMaintenance)
}

// PodOf returns the pod of an Evacuation, nil if it is not in the cache.
func (s *State) PodOf(e *v1alpha1.Evacuation) *corev1.Pod {
	pod, err := s.podLister.Pods(e.Namespace).Get(e.Spec.PodRef.Name)
	if err != nil || pod.UID != e.Spec.PodRef.UID {
		return nil
	}
	return pod
}

// NodeOf returns the node of an Evacuation's pod, "" if it is not known.
func (s *State) NodeOf(e *v1alpha1.Evacuation) string {
	if e.Spec.NodeName != "" {
		return e.Spec.NodeName
	}
	if pod := s.PodOf(e); pod != nil {
		return podcache.NodeOf(pod)
	}
	return ""
}

// OurEvacuations returns the Evacuations of the pods on a node that have our finalizer, including
// pods that are only nominated for the node.
func (s *State) OurEvacuations(node string) []*v1alpha1.Evacuation {
	return slices.DeleteFunc(slices.Concat(s.evacuationsIn(node), s.EvacuationsWithoutNode()), func(e *v1alpha1.Evacuation) bool {
		return !IsOurs(e) || s.NodeOf(e) != node
	})
}

// EvacuationsWithoutNode returns the Evacuations of pods that had no node when the Evacuation was
// requested.
func (s *State) EvacuationsWithoutNode() []*v1alpha1.Evacuation {
	return s.evacuationsIn("")
}

// evacuationsIn returns the Evacuations whose spec names the given node.
func (s *State) evacuationsIn(node string) []*v1alpha1.Evacuation {
	objects, err := s.evacuations.ByIndex(podcache.EvacuationsByNode, node)
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("list evacuations by node from the cache: %w", err))
	}
	out := make([]*v1alpha1.Evacuation, len(objects))
	for i := range objects {
		out[i] = objects[i].(*v1alpha1.Evacuation)
	}
	return out
}

// HasOurs reports whether a pod of a node has an Evacuation of ours, or whether one was requested
// that is not in the cache yet.
func (s *State) HasOurs(node string) bool {
	return slices.ContainsFunc(s.Requests.On(node), func(r Request) bool { return !r.Terminating }) || len(s.OurEvacuations(node)) > 0
}

// IsEvicting reports whether an eviction of a pod of a node is in flight although no instigator
// requests it any more. The eviction queue checks the cache before each eviction, so it sends no
// further one.
func (s *State) IsEvicting(node string) bool {
	return slices.ContainsFunc(s.evictions.List(), func(e inflight.Eviction) bool { return s.isWithdrawnFrom(e, node) })
}

// NoteLifted records that a maintenance which only uncordons has uncordoned a node.
func (s *State) NoteLifted(node *corev1.Node, maintenance types.UID) {
	s.Cordons.noteLifted(node, maintenance)
	s.tell(func(sub Subscriber) func(string) { return sub.Changed }, node.Name)
}

// NoteDrained records whether a node is drained for a maintenance. cordoned is the value of
// Cordons.Since at the time of that check.
func (s *State) NoteDrained(node *corev1.Node, maintenance types.UID, drained bool, cordoned time.Time) {
	if s.Cordons.noteDrained(node, maintenance, drained, cordoned) {
		s.tell(func(sub Subscriber) func(string) { return sub.Changed }, node.Name)
	}
}

func (s *State) tell(which func(Subscriber) func(string), node string) {
	for _, subscriber := range s.subscribers {
		if f := which(subscriber); f != nil {
			f(node)
		}
	}
}

// isWithdrawnFrom reports whether an eviction is for a pod on a node and no instigator requests it
// any more.
func (s *State) isWithdrawnFrom(eviction inflight.Eviction, node string) bool {
	e, err := s.evacuationLister.Evacuations(eviction.Evacuation.Namespace).Get(eviction.Evacuation.Name)
	if err == nil && !protocol.IsWithdrawn(e) {
		return false
	}
	pod, err := s.podLister.Pods(eviction.Evacuation.Namespace).Get(eviction.Pod)
	return err == nil && pod.UID == eviction.UID && podcache.NodeOf(pod) == node
}
