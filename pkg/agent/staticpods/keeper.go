// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/evacuator"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
)

// Reasons of events of the node.
const (
	// EventParked: the manifests of a static pod were parked. About the node.
	EventParked = "StaticPodParked"
	// EventParkedAgain: a manifest of a parked static pod reappeared in the folder and was parked
	// again. About the node.
	EventParkedAgain = "StaticPodParkedAgain"
	// EventRestored: the manifests of static pods were restored. About the node.
	EventRestored = "StaticPodRestored"
	// EventRestoredWithoutAPI: the manifests of static pods were restored because the API did not
	// respond. About the node.
	EventRestoredWithoutAPI = "StaticPodRestoredWithoutAPI"
	// EventForeign: a parked manifest of another cluster was set aside. About the node.
	EventForeign = "StaticPodOfAnotherCluster"
	// EventTrouble: an operation on static pods has failed for a minute. About the node.
	EventTrouble = "StaticPodsNotAsTheyShouldBe"
	// EventNotStopped: a static pod cannot be stopped. About the node.
	EventNotStopped = "StaticPodNotStopped"
	// EventKubeletRestarted: the kubelet was restarted while a static pod was terminating. About
	// the node.
	EventKubeletRestarted = "KubeletRestartedDuringTermination"
)

const (
	// relistPeriod is the interval at which the Keeper lists the folder and, while manifests are
	// parked, reads its Node.
	relistPeriod = 10 * time.Second
	// pollPeriod is the interval at which the Keeper checks a terminating pod.
	pollPeriod = 2 * time.Second
	// requestTimeout limits the Keeper's requests to the API.
	requestTimeout = 10 * time.Second
	// pollingLatency is the longest time after which a kubelet without file events notices a change
	// of the folder: its default fileCheckFrequency.
	pollingLatency = 20 * time.Second
	// If a program restores a manifest again and again, the pause before the Keeper parks it again
	// doubles, from shortestHold to longestHold.
	shortestHold, longestHold = time.Second, 5 * time.Minute
)

// Containers reports which containers run on the node.
type Containers interface {
	// Running reports whether a container of a pod runs. podUID is the UID in the kubelet and the
	// container runtime.
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
	// Dir is the kubelet's static pod folder; empty if the kubelet has none.
	Dir string
	// NodeName is the name of the node.
	NodeName string
	// Kubelet and Containers give access to the node.
	Kubelet    Kubelet
	Containers Containers
	// Policy is the configuration for static pods.
	Policy Policy
	// Server returns the URL of the API server in the kubelet's kubeconfig. CA returns the CA
	// certificates of that kubeconfig.
	Server func() (string, error)
	CA     func() ([]byte, error)
	// Static returns the static pods of the node according to the API.
	Static func() []types.NamespacedName
	// Kube and Maintenance are clients that authenticate as the kubelet.
	Kube        kubernetes.Interface
	Maintenance versioned.Interface
	// APILossRestorePeriod is the time after which the Keeper restores all static pods if neither
	// Kubernetes nor Haulout responds. HauloutLossRestorePeriod is this time if Kubernetes responds
	// and Haulout does not.
	APILossRestorePeriod, HauloutLossRestorePeriod time.Duration
	// PollingOnly is set if neither the Keeper nor the kubelet watches the folder (Windows).
	PollingOnly bool
	// Leaving reports whether the machine shuts down. During a shutdown, the Keeper does not
	// restore pods only because an API does not respond.
	Leaving func() bool
	// Event reports an event of the node.
	Event func(eventType, reason, message string)
	// BootID is the boot ID of the kernel; empty if the kubelet writes a different ID to the Node
	// (Windows). While the Node still has the boot ID of the previous boot, the Keeper reads the
	// Node often.
	BootID string
}

// Keeper stops static pods for maintenances and keeps them stopped.
type Keeper struct {
	Config

	folder        *folder
	relist        time.Duration
	held, decided chan struct{}
	// holds has the pauses for pods whose manifests another program has restored in the folder.
	holds *flowcontrol.Backoff

	mu sync.Mutex
	// problem is the reason why manifests cannot be moved. troubles are the repeated failures.
	problem  string
	troubles map[string]*trouble
	// lostSince is the time since which neither Kubernetes nor Haulout has responded.
	// hauloutLostSince is the time since which Haulout has not responded. Both are zero while the
	// APIs respond.
	lostSince, hauloutLostSince time.Time
	// seen is the Node as read at seenAt. published is set once the Node has the list of kept pods.
	// place is the last known location of the API server. namespace is the UID of kube-system, once
	// known.
	seen      *corev1.Node
	seenAt    time.Time
	published bool
	place     apiPlace
	namespace types.UID
	// list has the maintenances as listed at listedAt.
	list     []v1alpha1.NodeMaintenance
	listedAt time.Time
	// checked has the marks that the Node had at checkedAt, the time at which the Keeper last read
	// the maintenances.
	checked   string
	checkedAt time.Time
	// checkedTask is set if one of these maintenances has a task.
	checkedTask bool
	// refused has the kept pods that have an Evacuation nevertheless.
	refused map[types.NamespacedName]bool
}

// New returns a Keeper that does nothing before it runs.
func New(config Config) (*Keeper, error) {
	switch {
	case config.NodeName == "":
		return nil, errors.New("a node name is required")
	case config.Kubelet == nil || config.Containers == nil || config.Kube == nil || config.Maintenance == nil:
		return nil, errors.New("a kubelet, containers and two clients are required")
	case config.Server == nil || config.CA == nil || config.Static == nil || config.Leaving == nil || config.Event == nil:
		return nil, errors.New("the functions Server, CA, Static, Leaving and Event are required")
	case config.APILossRestorePeriod <= 0 || config.HauloutLossRestorePeriod <= 0:
		return nil, fmt.Errorf("the restore periods are %s and %s, must be positive", config.APILossRestorePeriod, config.HauloutLossRestorePeriod)
	}
	k := &Keeper{
		Config: config, relist: relistPeriod,
		held: make(chan struct{}, 1), decided: make(chan struct{}, 1),
		problem:  "the static pod folder has not been checked yet",
		holds:    flowcontrol.NewBackOff(shortestHold, longestHold),
		troubles: map[string]*trouble{}, refused: map[types.NamespacedName]bool{},
	}
	k.folder = newFolder(osFiles{}, config.Dir, config.NodeName, time.Now)
	return k, nil
}

// Run stops, holds and restores static pods until the context ends.
func (k *Keeper) Run(ctx context.Context) error {
	registerMetrics()
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("component", "static-pods"))
	v, err := evacuator.New(evacuator.Config{
		Class: v1alpha1.EvacuatorClassKubelet, Client: k.Maintenance, NodeName: k.NodeName, HandlerReportsFirst: true,
		Handler: k.evacuate,
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
	timer := time.NewTimer(k.relist)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.held:
			k.hold(ctx)
			continue
		case <-k.decided:
		case <-timer.C:
		}
		k.reconcile(ctx)
		timer.Reset(k.relist)
	}
}

// Problem returns the reason why the Keeper cannot stop and restart static pods at present; empty
// if it can. It does not block.
func (k *Keeper) Problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.problem != "":
		return k.problem
	case !k.published:
		return cmp.Or(k.problems(), "the list of kept static pods is not published yet")
	}
	return k.problems()
}

// Refused returns the number of static pods that are kept although a server requests their end.
// Such a server is older than the agent and waits for these pods.
func (k *Keeper) Refused() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.refused)
}

func (k *Keeper) setRefused(pod types.NamespacedName, refused bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if refused {
		k.refused[pod] = true
	} else {
		delete(k.refused, pod)
	}
}

// Parked returns the parked manifests.
func (k *Keeper) Parked() ([]Entry, error) { return k.folder.entries() }

// wake makes the main loop run once more.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// reconcile publishes which static pods are kept, restores the manifests of pods that are kept or
// no longer targeted, and holds the other parked pods.
func (k *Keeper) reconcile(ctx context.Context) {
	entries, err := k.folder.entries()
	k.mu.Lock()
	before := k.problem
	k.mu.Unlock()
	if err != nil || before != "" {
		k.setProblem(ctx, errors.Join(err, k.folder.probe()))
	}
	if err != nil {
		return
	}
	if len(entries) > 0 || k.isDue() {
		k.findNamespace(ctx)
		_, err = k.node(ctx)
	}
	k.restoreKept(ctx, entries)
	if len(entries) > 0 {
		k.sortByCluster(ctx, entries)
		// Complete an interrupted restore.
		k.restore(ctx, func(e *Entry) bool { return e.Restoring }, corev1.EventTypeNormal, EventRestored)
		k.checkMaintenances(ctx, entries, err)
	} else {
		k.note(ctx, troubleHaulout, nil)
		k.note(ctx, troubleMove, nil)
		k.setFound()
	}
	k.hold(ctx)
	if entries, err := k.folder.entries(); err == nil {
		manifestsParked.Set(float64(len(entries)))
		k.noteStopped(ctx, entries)
	}
}

// restoreKept publishes the list of kept pods, and restores the parked pods that are on this list.
// A pod of which the agent cannot decide whether it serves the API stays parked: a drain has ended
// it.
func (k *Keeper) restoreKept(ctx context.Context, entries []Entry) {
	kept, isControlPlane, err := k.kept(ctx)
	k.mu.Lock()
	node := k.seen
	k.mu.Unlock()
	if err == nil && node != nil {
		err = k.publish(ctx, node, kept, isControlPlane)
	}
	k.note(ctx, troublePublish, err)
	becameKept := func(e *Entry) bool {
		why := kept[e.Pod()]
		return why != "" && why != protocol.KeptUndecided
	}
	if slices.ContainsFunc(entries, func(e Entry) bool { return becameKept(&e) }) {
		k.sortByCluster(ctx, entries)
		k.restore(ctx, becameKept, corev1.EventTypeNormal, EventRestored)
	}
}

// checkMaintenances restores the pods that no maintenance targets. nodeErr is the error of reading
// the Node. It reads the maintenances when the marks of the Node have changed, and at regular
// intervals; each time if one has a task, since a node may have a minute to become Ready after it.
func (k *Keeper) checkMaintenances(ctx context.Context, entries []Entry, nodeErr error) {
	marks := ""
	if nodeErr == nil {
		k.mu.Lock()
		marks = strings.Join(holdersOf(k.seen), ",")
		isNew := marks != k.checked || k.checkedTask || time.Since(k.checkedAt) >= listPeriod
		k.mu.Unlock()
		if !isNew {
			return
		}
	}
	// Use only the entries from before the list: newer entries may belong to a newer maintenance.
	list, err := k.maintenances(ctx)
	k.note(ctx, troubleHaulout, err)
	if err != nil {
		k.restoreWithoutAPI(ctx, entries, answers(nodeErr))
		return
	}
	k.setFound()
	k.mu.Lock()
	k.checked, k.checkedAt = marks, time.Now()
	k.checkedTask = slices.ContainsFunc(list, func(nm v1alpha1.NodeMaintenance) bool { return nm.Spec.Task != nil })
	k.mu.Unlock()
	k.restoreUntargeted(ctx, entries, list)
}

// noteStopped records which pods have stopped. If the Evacuation of a pod completes early, its
// handler ends before it can record this.
func (k *Keeper) noteStopped(ctx context.Context, entries []Entry) {
	uids := map[types.NamespacedName][]types.UID{}
	for i := range entries {
		if e := &entries[i]; !e.Stopped && !e.Restoring {
			uids[e.Pod()] = append(uids[e.Pod()], e.StaticUIDs...)
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

func (k *Keeper) running(ctx context.Context, uids []types.UID) (bool, error) {
	for _, uid := range uids {
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

// setProblem records the result of a check of the folder.
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

// restoreUntargeted restores the entries of pods that no maintenance targets, and updates the other
// entries.
func (k *Keeper) restoreUntargeted(ctx context.Context, entries []Entry, list []v1alpha1.NodeMaintenance) {
	// Restore all manifests of a pod together: while one of them stays parked, the Keeper would
	// park the restored manifests again.
	untargeted := map[string]time.Time{}
	for i := range entries {
		e := &entries[i]
		targeting, err := k.targeting(e, list)
		switch {
		case err != nil:
			klog.FromContext(ctx).Error(err, "Cannot determine which maintenances target a static pod, it stays parked", "pod", klog.KRef(e.Namespace, e.Name))
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

// targeting returns the maintenances that target a parked pod. A file that is not a manifest stays
// parked as long as its maintenance exists.
func (k *Keeper) targeting(e *Entry, list []v1alpha1.NodeMaintenance) ([]Maintenance, error) {
	if e.Name != "" {
		return targeting(list, k.ref(), e.Priority, e.Labels)
	}
	var found []Maintenance
	for _, m := range e.Maintenances {
		if slices.ContainsFunc(list, func(nm v1alpha1.NodeMaintenance) bool { return nm.UID == m.UID }) {
			found = append(found, m)
		}
	}
	return found, nil
}

// setFound records that both APIs respond.
func (k *Keeper) setFound() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lostSince, k.hauloutLostSince = time.Time{}, time.Time{}
}

// restoreWithoutAPI restores all pods if their maintenances could not be read for too long: a pod
// must not stay stopped for a maintenance that no user can end. If Kubernetes does not respond, the
// period is short, since the API server may need these pods. If only Haulout does not respond, the
// period is longer, since an update of Haulout can take minutes.
func (k *Keeper) restoreWithoutAPI(ctx context.Context, entries []Entry, kubernetesAnswers bool) {
	now := time.Now()
	k.mu.Lock()
	if k.hauloutLostSince.IsZero() {
		k.hauloutLostSince = now
	}
	switch {
	case kubernetesAnswers:
		k.lostSince = time.Time{}
	case k.lostSince.IsZero():
		k.lostSince = now
	}
	isOver := !k.lostSince.IsZero() && now.Sub(k.lostSince) >= k.APILossRestorePeriod || now.Sub(k.hauloutLostSince) >= k.HauloutLossRestorePeriod
	k.mu.Unlock()
	if !isOver || k.Leaving() {
		return
	}
	// The API server itself may be parked. In that case the cluster of an entry from an older
	// version stays unknown.
	var kept map[types.NamespacedName]protocol.KeptReason
	if !kubernetesAnswers {
		var err error
		if kept, _, err = k.kept(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot determine which static pods are kept")
		}
	}
	k.restoreIn(ctx, func(e *Entry, now *Cluster) bool {
		member := membershipOf(e.Cluster, now)
		return slices.ContainsFunc(entries, func(known Entry) bool { return known.File == e.File }) &&
			(member == memberSame || member == memberUnknown && !isRefuted(e.Cluster, now) && kept[e.Pod()] == protocol.KeptControlPlane)
	}, corev1.EventTypeWarning, EventRestoredWithoutAPI)
}

// restore restores the selected manifests of this cluster and reports them.
func (k *Keeper) restore(ctx context.Context, selected func(*Entry) bool, eventType, reason string) {
	k.restoreIn(ctx, func(e *Entry, now *Cluster) bool { return selected(e) && membershipOf(e.Cluster, now) == memberSame }, eventType, reason)
}

// restoreIn restores and reports the manifests for which selected returns true, given the known
// parts of the present cluster.
func (k *Keeper) restoreIn(ctx context.Context, selected func(*Entry, *Cluster) bool, eventType, reason string) {
	now := k.cluster(ctx)
	tried := false
	done, err := k.folder.restore(func(e *Entry) bool {
		isSelected := selected(e, now)
		tried = tried || isSelected
		return isSelected
	})
	logger := klog.FromContext(ctx)
	if tried || err != nil {
		k.note(ctx, troubleMove, err)
	}
	for _, e := range done {
		logger.Info("Manifest restored", "pod", klog.KRef(e.Namespace, e.Name), "path", e.Origin, "reason", reason, "archived", e.Archived)
		if e.Archived != "" {
			manifestMoves.WithLabelValues(moveArchived).Inc()
			k.Event(eventType, reason, fmt.Sprintf("Static pod %s/%s runs with the newer manifest in %s; the parked manifest is now %s",
				e.Namespace, e.Name, e.Origin, e.Archived))
			continue
		}
		manifestMoves.WithLabelValues(moveRestored).Inc()
		k.Event(eventType, reason, fmt.Sprintf("Manifest %s of static pod %s/%s was restored", e.Origin, e.Namespace, e.Name))
	}
}

// hold parks manifests of parked pods that have reappeared in the folder.
func (k *Keeper) hold(ctx context.Context) {
	done, err := k.folder.hold(k.mayHold, func() (string, error) {
		if err := k.Kubelet.Check(ctx); err != nil {
			return "", fmt.Errorf("manifests of parked static pods have reappeared in the folder, but the kubelet is not healthy: %w", err)
		}
		return k.instance(ctx), nil
	})
	k.note(ctx, troubleHold, err)
	for i := range done {
		e := &done[i]
		k.pauseHold(ctx, e.Pod())
		manifestMoves.WithLabelValues(moveParkedAgain).Inc()
		klog.FromContext(ctx).Info("Manifest parked again", "pod", klog.KRef(e.Namespace, e.Name))
		k.Event(corev1.EventTypeWarning, EventParkedAgain, fmt.Sprintf(
			"Another program put a manifest of static pod %s/%s into %s, and it was parked again; complete the NodeMaintenance to run the pod%s",
			e.Namespace, e.Name, k.folder.dir, names(e.Maintenances)))
	}
}

// mayHold reports whether the pause has ended after which the manifest of a pod may be parked
// again.
func (k *Keeper) mayHold(pod types.NamespacedName) bool {
	return !k.holds.IsInBackOffSinceUpdate(pod.String(), time.Now())
}

// pauseHold begins the pause of a held pod before its manifest may be parked again. The pause
// doubles each time that a program puts the manifest back, which would otherwise start and stop the
// pod in a loop.
func (k *Keeper) pauseHold(ctx context.Context, pod types.NamespacedName) {
	k.holds.Next(pod.String(), time.Now())
	length := k.holds.Get(pod.String())
	go func() {
		select {
		case <-ctx.Done():
		case <-time.After(length):
			wake(k.held)
		}
	}()
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

// instance returns the process of the kubelet; empty if unknown.
func (k *Keeper) instance(ctx context.Context) string {
	instance, err := k.Kubelet.Instance(ctx)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("The process of the kubelet is unknown", "reason", err.Error())
		return ""
	}
	return instance
}
