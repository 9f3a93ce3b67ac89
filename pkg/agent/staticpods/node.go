// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/local/pods"
	"haulout.dev/haulout/pkg/answer"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// refreshPeriod is the interval at which the Keeper reads its Node while no manifest is parked.
	refreshPeriod = 2 * time.Minute
	// listPeriod is the interval at which the Keeper reads the maintenances again if the marks of
	// the Node are unchanged.
	listPeriod = time.Minute
)

// node reads the Node of the agent. The marks of the Node name its maintenances, so that agents
// need not list all maintenances, which the server would read from etcd.
func (k *Keeper) node(ctx context.Context) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	node, err := k.Kube.CoreV1().Nodes().Get(ctx, k.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", k.NodeName, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen, k.seenAt = node, time.Now()
	return node, nil
}

// ref returns the Node as last read; without the UID if the Node was not read yet.
func (k *Keeper) ref() v1alpha1.NodeReference {
	k.mu.Lock()
	defer k.mu.Unlock()
	ref := v1alpha1.NodeReference{Name: k.NodeName}
	if k.seen != nil {
		ref.UID = k.seen.UID
	}
	return ref
}

// isDue reports whether the Keeper must read the Node although no manifest is parked.
func (k *Keeper) isDue() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen == nil || !k.published || time.Since(k.seenAt) >= refreshPeriod ||
		k.BootID != "" && !strings.EqualFold(k.BootID, k.seen.Status.NodeInfo.BootID)
}

// kept returns the static pods of the node that are kept, including parked ones, and whether one of
// them makes it a control-plane node.
func (k *Keeper) kept(ctx context.Context) (kept map[types.NamespacedName]protocol.KeptReason, isControlPlane bool, err error) {
	manifests, err := k.folder.manifests()
	if err != nil {
		return nil, false, err
	}
	pods, err := k.folder.parkedPods()
	if err != nil {
		return nil, false, err
	}
	for _, m := range manifests {
		pods = append(pods, m.pod)
	}
	entries, err := k.folder.entries()
	if err != nil {
		return nil, false, err
	}
	read := sets.New[types.NamespacedName]()
	for _, pod := range pods {
		read.Insert(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	}
	for i := range entries {
		read.Insert(entries[i].Pod())
	}
	unread := slices.DeleteFunc(k.Static(), read.Has)
	kept, isControlPlane = keptPods(pods, unread, k.surroundings(ctx))
	return kept, isControlPlane, nil
}

func (k *Keeper) surroundings(ctx context.Context) surroundings {
	place := apiUnknown
	if server, err := k.Server(); err == nil {
		place = placeOf(ctx, server, ownAddresses, lookup)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	// Keep the last known place if a name server fails for a moment.
	if place != apiUnknown {
		k.place = place
	}
	return surroundings{policy: k.Policy, node: k.NodeName, labelled: protocol.IsControlPlane(k.seen), api: k.place}
}

// publish writes the list of kept static pods to the Node, for the server.
func (k *Keeper) publish(
	ctx context.Context, node *corev1.Node, kept map[types.NamespacedName]protocol.KeptReason, isControlPlane bool,
) error {
	reasons := map[string]protocol.KeptReason{}
	for pod, reason := range kept {
		reasons[pod.String()] = reason
	}
	value := protocol.EncodeKeptStaticPods(node.Status.NodeInfo.BootID, isControlPlane, reasons)
	if node.Annotations[v1alpha1.AnnotationKeptStaticPods] != value {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": node.UID, "annotations": map[string]string{v1alpha1.AnnotationKeptStaticPods: value},
		}})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		if node, err = k.Kube.CoreV1().Nodes().Patch(ctx, k.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("publish which static pods are kept: %w", err)
		}
		klog.FromContext(ctx).Info("Published the list of kept static pods", "value", value)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen, k.published = node, true
	return nil
}

func holdersOf(node *corev1.Node) []string {
	names := sets.New[string]()
	for _, annotation := range []string{
		v1alpha1.AnnotationCordonedBy, v1alpha1.AnnotationTaintedBy, v1alpha1.AnnotationConditionsBy,
	} {
		var mark struct {
			Maintenances map[string]json.RawMessage `json:"maintenances"`
		}
		if json.Unmarshal([]byte(node.Annotations[annotation]), &mark) == nil {
			names.Insert(sets.KeySet(mark.Maintenances).UnsortedList()...)
		}
	}
	return sets.List(names)
}

// recorded returns the names of the maintenances that targeted the parked pods at the last check.
// It returns none if the name of one of them is unknown, because the index was lost.
func (k *Keeper) recorded() ([]string, error) {
	entries, err := k.folder.entries()
	if err != nil {
		return nil, err
	}
	names := sets.New[string]()
	for i := range entries {
		for _, m := range entries[i].Maintenances {
			names.Insert(m.Name)
		}
	}
	if names.Has("") {
		return nil, nil
	}
	return sets.List(names), nil
}

// maintenances returns the maintenances that drain the node: those in stage Drain, and those in
// another stage, or that end, while a worker has the node. The server removes the marks of the Node
// when a maintenance ends: then the Keeper reads the maintenances for which the pods are parked.
func (k *Keeper) maintenances(ctx context.Context) ([]v1alpha1.NodeMaintenance, error) {
	node, err := k.node(ctx)
	if err != nil {
		return nil, err
	}
	holders := holdersOf(node)
	if len(holders) == 0 {
		if holders, err = k.recorded(); err != nil {
			return nil, err
		}
	}
	if len(holders) == 0 {
		return k.listed(ctx)
	}
	k.mu.Lock()
	k.listedAt, k.list = time.Time{}, nil
	k.mu.Unlock()
	var found []v1alpha1.NodeMaintenance
	for _, name := range holders {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		nm, err := k.Maintenance.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
		cancel()
		switch {
		case answer.ObjectGone(err):
		case err != nil:
			return nil, fmt.Errorf("get NodeMaintenance %s: %w", name, err)
		case nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain, protocol.IsInHands(taskOn(nm, k.ref())):
			found = append(found, *nm)
		}
	}
	return found, nil
}

// listed lists the maintenances in stage Drain, if neither the marks of the Node nor the index name
// one.
func (k *Keeper) listed(ctx context.Context) ([]v1alpha1.NodeMaintenance, error) {
	k.mu.Lock()
	list, at := k.list, k.listedAt
	k.mu.Unlock()
	if !at.IsZero() && time.Since(at) < listPeriod {
		return list, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	all, err := k.Maintenance.MaintenanceV1alpha1().NodeMaintenances().List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(maintenance.FieldStage, string(v1alpha1.NodeMaintenanceStageDrain)).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list the NodeMaintenances in stage Drain: %w", err)
	}
	// Filter again, because some servers do not support the field selector. Keep only the
	// maintenances of this node.
	list = slices.DeleteFunc(all.Items, func(nm v1alpha1.NodeMaintenance) bool {
		return nm.Spec.Stage != v1alpha1.NodeMaintenanceStageDrain ||
			!slices.ContainsFunc(nm.Status.NodeStatuses, func(s v1alpha1.NodeMaintenanceNodeStatus) bool { return s.NodeRef.Name == k.NodeName })
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list, k.listedAt = list, time.Now()
	return list, nil
}

// answers reports whether an error is a response of the Kubernetes API and not a failed connection.
func answers(err error) bool {
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status) && status.Status().Code >= 400 && status.Status().Code < 500
}

// trouble is the record of a repeated failure.
type trouble struct {
	since time.Time
	text  string
	// told is set once the event was recorded.
	told bool
}

// The operations that can fail repeatedly.
const (
	troublePublish = "publish"
	troubleMove    = "move"
	troubleForeign = "foreign"
	troubleHold    = "hold"
	troubleHaulout = "haulout"
	// troublePatience is the time for which an operation must fail before the failure is reported.
	troublePatience = time.Minute
)

// note records the result of a retried operation. After a minute of failures it records an event,
// and reports a problem of the agent until the operation succeeds.
func (k *Keeper) note(ctx context.Context, what string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		delete(k.troubles, what)
		return
	}
	staticPodErrors.Inc()
	t := k.troubles[what]
	if t == nil {
		t = &trouble{since: time.Now()}
		k.troubles[what] = t
	}
	if t.text != err.Error() {
		t.text = err.Error()
		klog.FromContext(ctx).Error(err, "Operation on static pods failed, will retry", "operation", what)
	}
	if !t.told && time.Since(t.since) >= troublePatience {
		t.told = true
		k.Event(corev1.EventTypeWarning, EventTrouble, "Operations on static pods have failed for a minute: "+t.text)
	}
}

// problems returns a sentence about the operations that have failed for a minute. The caller holds
// the lock.
func (k *Keeper) problems() string {
	var texts []string
	for _, what := range []string{troublePublish, troubleMove, troubleForeign, troubleHold, troubleHaulout} {
		if t := k.troubles[what]; t != nil && time.Since(t.since) >= troublePatience {
			texts = append(texts, t.text)
		}
	}
	return strings.Join(texts, "; ")
}

// watchFolder calls changed after each change of the static pod folder, until the context ends. The
// Keeper also lists the folder regularly, so a failed watch only causes a delay.
func (k *Keeper) watchFolder(ctx context.Context, changed func()) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := watchOnce(ctx, k.folder.dir, changed); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Static pod folder is not watched, only listed", "path", k.folder.dir, "reason", err.Error())
		}
	}, k.relist)
}

func watchOnce(ctx context.Context, dir string, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Add(dir); err != nil {
		return err
	}
	changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			return err
		case event, ok := <-watcher.Events:
			switch {
			case !ok:
				return nil
			case event.Name == dir && event.Has(fsnotify.Remove|fsnotify.Rename):
				return errors.New("the folder was removed")
			case pods.IsIgnored(filepath.Base(event.Name)) || event.Op == fsnotify.Remove || event.Op == fsnotify.Rename:
				continue // no events yet
			}
			changed()
		}
	}
}

// The operations of the metric of moves.
const (
	moveParked      = "parked"
	moveParkedAgain = "parked_again"
	moveRestored    = "restored"
	moveArchived    = "archived"
)

var (
	manifestsParked = metrics.NewGauge(&metrics.GaugeOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "static_pod_manifests_parked",
		Help:           "Number of manifests of static pods that are parked.",
		StabilityLevel: metrics.ALPHA,
	})
	manifestMoves = metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "static_pod_moves_total",
		Help: "Moves of static pod manifests, by operation: parked, parked_again after a tool put them back, " +
			"restored, or archived because a newer manifest was at their path.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"operation"})
	staticPodErrors = metrics.NewCounter(&metrics.CounterOpts{
		Namespace: "haulout", Subsystem: "node_agent", Name: "static_pod_errors_total",
		Help:           "Failed operations on static pods, which are retried.",
		StabilityLevel: metrics.ALPHA,
	})
	registerMetrics = sync.OnceFunc(func() {
		legacyregistry.MustRegister(manifestsParked, manifestMoves, staticPodErrors)
		for _, operation := range []string{moveParked, moveParkedAgain, moveRestored, moveArchived} {
			manifestMoves.WithLabelValues(operation).Add(0)
		}
	})
)
