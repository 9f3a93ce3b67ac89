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

package staticpods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/evacuator"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
)

// Reasons of events of the node.
const (
	// EventParked: the manifests of a static pod were parked. About the node.
	EventParked = "StaticPodParked"
	// EventParkedAgain: a manifest of a parked static pod was in the folder and was parked again.
	// About the node.
	EventParkedAgain = "StaticPodParkedAgain"
	// EventRestored: the manifests of static pods returned. About the node.
	EventRestored = "StaticPodRestored"
	// EventRestoredWithoutAPI: the manifests of static pods returned because the API did not
	// answer. About the node.
	EventRestoredWithoutAPI = "StaticPodRestoredWithoutAPI"
	// EventNotStopped: a static pod cannot be stopped. About the node.
	EventNotStopped = "StaticPodNotStopped"
	// EventKubeletRestarted: the kubelet was restarted while a static pod was terminating.
	// About the node.
	EventKubeletRestarted = "KubeletRestartedDuringTermination"
)

const (
	// relistPeriod is how often the Keeper lists the folder and the maintenances while manifests
	// are parked.
	relistPeriod = 10 * time.Second
	// pollPeriod is how often it checks a terminating pod.
	pollPeriod = 2 * time.Second
	// requestTimeout limits its requests to the API.
	requestTimeout = 10 * time.Second
	// pollingLatency is how long a kubelet without file events takes to see a change of the folder,
	// its default fileCheckFrequency.
	pollingLatency = 20 * time.Second
)

// Containers knows the containers of the node.
type Containers interface {
	// Running reports whether a container of the pod with the UID that the kubelet and the
	// container runtime know runs.
	Running(ctx context.Context, podUID string) (bool, error)
}

// Kubelet is the kubelet of the node.
type Kubelet interface {
	// Check returns an error if the kubelet is not healthy.
	Check(ctx context.Context) error
	// Instance identifies the process of the kubelet: it changes with each restart.
	Instance(ctx context.Context) (string, error)
}

// Config has the dependencies and options of a Keeper.
type Config struct {
	// Dir is the kubelet's static pod folder, empty if it has none.
	Dir string
	// NodeName is the name of the node.
	NodeName string
	// Kubelet, Containers and Guard are the node as the Keeper sees it.
	Kubelet    Kubelet
	Containers Containers
	Guard      Guard
	// Kube and Maintenance are clients with the kubelet's identity.
	Kube        kubernetes.Interface
	Maintenance versioned.Interface
	// APILossRestorePeriod is how long the Kubernetes API may be gone before the Keeper restores
	// the static pods that may serve it.
	APILossRestorePeriod time.Duration
	// PollingOnly: the Keeper does not watch the folder, and the kubelet does not either (Windows).
	PollingOnly bool
	// Leaving reports whether the machine shuts down: then the Keeper restores nothing because of a
	// lost API. nil means never.
	Leaving func() bool
	// Event reports an event of the node; nil means none.
	Event func(eventType, reason, message string)
	// Clock is the clock; nil means the real one.
	Clock clock.Clock
}

// Keeper stops static pods for maintenances and keeps them stopped.
type Keeper struct {
	Config

	folder        *folder
	clock         clock.Clock
	relist, poll  time.Duration
	held, decided chan struct{}

	mu sync.Mutex
	// problem is why manifests cannot be moved.
	problem string
	// lostSince is when the Kubernetes API was first found gone, zero while it answers.
	lostSince time.Time
}

// New returns a Keeper that does nothing before it runs.
func New(config Config) (*Keeper, error) {
	switch {
	case config.NodeName == "":
		return nil, errors.New("a node name is required")
	case config.Kubelet == nil || config.Containers == nil || config.Guard == nil || config.Kube == nil || config.Maintenance == nil:
		return nil, errors.New("a kubelet, containers, a guard and two clients are required")
	case config.APILossRestorePeriod <= 0:
		return nil, fmt.Errorf("the API loss restore period is %s, must be positive", config.APILossRestorePeriod)
	}
	k := &Keeper{
		Config: config, clock: config.Clock, relist: relistPeriod, poll: pollPeriod,
		held: make(chan struct{}, 1), decided: make(chan struct{}, 1),
		problem: "the static pod folder is not checked yet",
	}
	if k.clock == nil {
		k.clock = clock.RealClock{}
	}
	if k.Leaving == nil {
		k.Leaving = func() bool { return false }
	}
	if k.Event == nil {
		k.Event = func(string, string, string) {}
	}
	k.folder = newFolder(osFiles{}, config.Dir, config.NodeName, k.clock.Now)
	return k, nil
}

// Run stops, holds and restores static pods until the context ends.
func (k *Keeper) Run(ctx context.Context) error {
	registerMetrics()
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("component", "static-pods"))
	v, err := evacuator.New(evacuator.Config{
		Class: maintenancev1alpha1.EvacuatorClassKubelet, Client: k.Maintenance, NodeName: k.NodeName, HandlerReportsFirst: true,
		Handler: k.evacuate, Clock: k.Clock,
	})
	if err != nil {
		return err
	}
	k.reconcile(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		if err := v.Run(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Evacuator failed")
		}
	})
	if !k.PollingOnly && k.folder.dir != "" {
		running.Go(func() { k.watchFolder(ctx, func() { wake(k.held) }) })
	}
	timer := k.clock.NewTimer(k.relist)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.held:
			k.hold(ctx)
			continue
		case <-k.decided:
		case <-timer.C():
		}
		k.reconcile(ctx)
		timer.Reset(k.relist)
	}
}

// Problem returns why static pods cannot be stopped and restarted now, empty if they can. It does
// not block.
func (k *Keeper) Problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.problem
}

// Parked returns the parked manifests.
func (k *Keeper) Parked() ([]Entry, error) { return k.folder.entries() }

// wake makes the loop run once more.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// reconcile restores the manifests of pods that no maintenance targets any more, and holds the
// others.
func (k *Keeper) reconcile(ctx context.Context) {
	// A restore that was interrupted.
	k.restore(ctx, func(e *Entry) bool { return e.Restoring }, corev1.EventTypeNormal, EventRestored)
	entries, err := k.folder.entries()
	if before := k.Problem(); err != nil || before != "" {
		k.setProblem(ctx, errors.Join(err, k.folder.probe()))
	}
	if err != nil {
		return
	}
	if len(entries) > 0 {
		// Only the entries from before the list: newer ones may be for a newer maintenance.
		if list, err := k.maintenances(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot list the maintenances, static pods stay as they are", "parked", len(entries))
			k.restoreWithoutAPI(ctx, entries)
		} else {
			k.setLost(time.Time{})
			k.restoreUntargeted(ctx, entries, list)
		}
	}
	k.hold(ctx)
	if entries, err := k.folder.entries(); err == nil {
		manifestsParked.Set(float64(len(entries)))
		k.noteStopped(ctx, entries)
	}
}

// noteStopped stores which pods have stopped. The Evacuation of a pod may be complete, and its
// handler over, before the handler has seen that.
func (k *Keeper) noteStopped(ctx context.Context, entries []Entry) {
	uids := map[types.NamespacedName]map[types.UID]struct{}{}
	for i := range entries {
		e := &entries[i]
		if e.Stopped || e.Restoring {
			continue
		}
		if uids[e.Pod()] == nil {
			uids[e.Pod()] = map[types.UID]struct{}{}
		}
		for _, uid := range e.StaticUIDs {
			uids[e.Pod()][uid] = struct{}{}
		}
	}
	for pod, uids := range uids {
		running, err := k.running(ctx, uids)
		if err == nil && !running {
			err = k.folder.change(pod, func(e *Entry) { e.Stopped = true })
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot store whether the static pod has stopped", "pod", pod)
		}
	}
}

// running reports whether a container of a pod runs, which the kubelet runs with one of the UIDs.
func (k *Keeper) running(ctx context.Context, uids map[types.UID]struct{}) (bool, error) {
	for uid := range uids {
		running, err := k.Containers.Running(ctx, string(uid))
		if err != nil {
			return false, fmt.Errorf("ask the container runtime: %w", err)
		}
		if running {
			return true, nil
		}
	}
	return false, nil
}

// setProblem stores the result of a check of the folder.
func (k *Keeper) setProblem(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = err.Error()
		staticPodErrors.Inc()
	}
	k.mu.Lock()
	before := k.problem
	k.problem = text
	k.mu.Unlock()
	if err != nil && before != text {
		klog.FromContext(ctx).Error(err, "Static pods cannot be stopped and restarted")
	}
}

func (k *Keeper) setLost(since time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lostSince = since
}

// maintenances returns the maintenances in stage Drain.
func (k *Keeper) maintenances(ctx context.Context) ([]maintenancev1alpha1.NodeMaintenance, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := k.Maintenance.MaintenanceV1alpha1().NodeMaintenances().List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(maintenance.FieldStage, string(maintenancev1alpha1.NodeMaintenanceStageDrain)).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list the NodeMaintenances in stage Drain: %w", err)
	}
	// Not all servers know the field.
	return slices.DeleteFunc(list.Items, func(nm maintenancev1alpha1.NodeMaintenance) bool {
		return nm.Spec.Stage != maintenancev1alpha1.NodeMaintenanceStageDrain
	}), nil
}

// restoreUntargeted restores the entries whose pods no maintenance targets, and updates the others.
func (k *Keeper) restoreUntargeted(ctx context.Context, entries []Entry, list []maintenancev1alpha1.NodeMaintenance) {
	// All together: a manifest would be held as long as another one of its pod is parked.
	untargeted := map[string]time.Time{}
	for i := range entries {
		e := &entries[i]
		targeting, err := k.targeting(e, list)
		switch {
		case err != nil:
			klog.FromContext(ctx).Error(err, "Static pod stays parked", "pod", klog.KRef(e.Namespace, e.Name))
		case len(targeting) == 0:
			untargeted[e.File] = e.ParkedAt
		case !slices.EqualFunc(targeting, e.Maintenances, func(a, b Maintenance) bool { return a.UID == b.UID && a.Name == b.Name }):
			if err := k.folder.change(e.Pod(), func(e *Entry) { e.Maintenances = targeting }); err != nil {
				klog.FromContext(ctx).Error(err, "Cannot update the index", "pod", klog.KRef(e.Namespace, e.Name))
			}
		}
	}
	k.restore(ctx, func(e *Entry) bool {
		parkedAt, ok := untargeted[e.File]
		return ok && parkedAt.Equal(e.ParkedAt)
	}, corev1.EventTypeNormal, EventRestored)
}

// targeting returns the maintenances that target a parked pod. A file that is no manifest stays as
// long as the maintenance for which it was parked.
func (k *Keeper) targeting(e *Entry, list []maintenancev1alpha1.NodeMaintenance) ([]Maintenance, error) {
	if e.Name != "" {
		return targeting(list, k.NodeName, e.Priority, e.Labels)
	}
	var found []Maintenance
	for _, m := range e.Maintenances {
		if slices.ContainsFunc(list, func(nm maintenancev1alpha1.NodeMaintenance) bool { return nm.UID == m.UID }) {
			found = append(found, m)
		}
	}
	return found, nil
}

// restoreWithoutAPI restores the pods that may serve the API if it has been gone for too long: a
// node that parked a part of the control plane must not wait forever for an API that waits for it.
func (k *Keeper) restoreWithoutAPI(ctx context.Context, entries []Entry) {
	if !slices.ContainsFunc(entries, func(e Entry) bool { return e.ServesAPI }) {
		return
	}
	if k.Guard.Ready(ctx) == nil {
		// The Kubernetes API answers, so users can act.
		k.setLost(time.Time{})
		return
	}
	k.mu.Lock()
	if k.lostSince.IsZero() {
		k.lostSince = k.clock.Now()
	}
	since := k.lostSince
	k.mu.Unlock()
	if k.clock.Since(since) < k.APILossRestorePeriod || k.Leaving() {
		return
	}
	k.restore(ctx, func(e *Entry) bool { return e.ServesAPI }, corev1.EventTypeWarning, EventRestoredWithoutAPI)
}

// restore restores the selected manifests and reports them.
func (k *Keeper) restore(ctx context.Context, selected func(*Entry) bool, eventType, reason string) {
	done, err := k.folder.restore(selected)
	logger := klog.FromContext(ctx)
	if err != nil {
		staticPodErrors.Inc()
		logger.Error(err, "Cannot restore the manifests of static pods, will retry")
	}
	for _, e := range done {
		logger.Info("Manifest restored", "pod", klog.KRef(e.Namespace, e.Name), "path", e.Origin, "reason", reason, "archived", e.archived)
		if e.archived != "" {
			manifestMoves.WithLabelValues(moveArchived).Inc()
			k.Event(eventType, reason, fmt.Sprintf("Static pod %s/%s runs with the newer manifest in %s; the parked one is kept as %s",
				e.Namespace, e.Name, e.Origin, e.archived))
			continue
		}
		manifestMoves.WithLabelValues(moveRestored).Inc()
		k.Event(eventType, reason, fmt.Sprintf("Manifest %s of static pod %s/%s was restored", e.Origin, e.Namespace, e.Name))
	}
}

// hold parks the manifests of parked pods that are in the folder again.
func (k *Keeper) hold(ctx context.Context) {
	done, err := k.folder.hold(func() (string, error) {
		if err := k.Kubelet.Check(ctx); err != nil {
			return "", fmt.Errorf("manifests of parked static pods are in the folder, and the kubelet is not healthy: %w", err)
		}
		return k.instance(ctx), nil
	})
	if err != nil {
		staticPodErrors.Inc()
		klog.FromContext(ctx).Error(err, "Cannot hold all static pods, will retry")
	}
	for i := range done {
		e := &done[i]
		manifestMoves.WithLabelValues(moveParkedAgain).Inc()
		klog.FromContext(ctx).Info("Manifest parked again", "pod", klog.KRef(e.Namespace, e.Name))
		k.Event(corev1.EventTypeWarning, EventParkedAgain, fmt.Sprintf(
			"Another program put a manifest of static pod %s/%s into %s, and it was parked again; complete the NodeMaintenance to run the pod%s",
			e.Namespace, e.Name, k.folder.dir, names(e.Maintenances)))
	}
}

func names(list []Maintenance) string {
	var found []string
	for _, m := range list {
		if m.Name != "" {
			found = append(found, m.Name)
		}
	}
	if len(found) == 0 {
		return ""
	}
	return " (" + strings.Join(found, ", ") + ")"
}

// instance returns the process of the kubelet, empty if it is unknown.
func (k *Keeper) instance(ctx context.Context) string {
	instance, err := k.Kubelet.Instance(ctx)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("The process of the kubelet is unknown", "reason", err.Error())
		return ""
	}
	return instance
}
