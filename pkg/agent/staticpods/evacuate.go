// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/local/pods"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/evacuator"
)

const (
	// longestBeat is the maximum interval of heartbeats while a pod terminates. beatsPerDeadline is
	// the number of heartbeats within the deadline of the Evacuation.
	longestBeat      = 10 * time.Second
	beatsPerDeadline = 4
)

type evacuation struct {
	*evacuator.Evacuation
	keeper *Keeper
	key    types.NamespacedName
	// said is the message of the last report, and at is the time of that report.
	said string
	at   time.Time
	// targeting are the maintenances for which this process has parked the pod.
	targeting []Maintenance
	// restarted is set once the event about a restarted kubelet was recorded.
	restarted bool
}

// evacuate handles Evacuations for the class kubelet.k8s.io.
func (k *Keeper) evacuate(ctx context.Context, e *evacuator.Evacuation) error {
	w := &evacuation{Evacuation: e, keeper: k, key: types.NamespacedName{Namespace: e.Namespace, Name: e.PodName}}
	// Wake the main loop even if there is nothing to do: the Evacuation may have been cancelled.
	defer wake(k.decided)
	defer k.setRefused(w.key, false)
	logger := klog.FromContext(ctx)
	for {
		pause := pollPeriod
		s, err := w.gather(ctx)
		if err != nil {
			staticPodErrors.Inc()
			logger.Error(err, "Cannot observe the static pod, will retry")
		} else {
			d := decide(s)
			k.setRefused(w.key, d.step == stepWait && s.kept != "")
			over, err := w.act(ctx, s, d)
			if over || err != nil {
				return err
			}
			if d.step == stepLeave || d.step == stepWait {
				pause = k.relist
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

func (w *evacuation) gather(ctx context.Context) (situation, error) {
	k := w.keeper
	s := situation{now: time.Now(), namespace: w.key.Namespace, name: w.key.Name, dir: k.folder.dir}
	if k.PollingOnly {
		s.latency = pollingLatency
	}
	var err error
	if s.pod, err = w.pod(ctx); err != nil {
		return s, err
	}
	s.isMirror = s.pod != nil && isMirrorPod(s.pod, k.NodeName)
	entries, err := k.folder.entries()
	if err != nil {
		return s, err
	}
	for i := range entries {
		if entries[i].Pod() == w.key {
			s.parked = append(s.parked, entries[i])
		}
	}
	if len(s.parked) == 0 && !s.isMirror {
		return s, nil
	}
	manifests, err := k.folder.manifestsOf(w.key)
	if err != nil {
		return s, err
	}
	s.manifests = len(manifests)
	if len(s.parked) > 0 {
		s.targeting, s.instance = w.targeting, k.instance(ctx)
		s.running, s.runtime = w.running(ctx, s)
		return s, nil
	}
	list, err := k.maintenances(ctx)
	if err != nil {
		return s, err
	}
	// A paused maintenance keeps the pods that are parked for it, and parks no other.
	list = slices.DeleteFunc(slices.Clone(list), func(nm v1alpha1.NodeMaintenance) bool { return v1alpha1.IsPaused(&nm) })
	if s.targeting, err = targeting(list, k.ref(), pods.PriorityOf(s.pod), s.pod.Labels); err != nil || len(s.targeting) == 0 || s.manifests == 0 {
		return s, err
	}
	kept, _, err := k.kept(ctx)
	if err != nil {
		return s, err
	}
	s.kept = kept[w.key]
	if s.unhealthy = k.Kubelet.Check(ctx); s.unhealthy == nil {
		// Without the runtime, the agent would never notice that the pod ended.
		_, s.unhealthy = w.running(ctx, s)
	}
	return s, nil
}

// pod returns the pod in the API; nil if this node has no such pod. It sends a list request,
// because a get request of a node returns Forbidden if the pod does not exist.
func (w *evacuation) pod(ctx context.Context) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := w.keeper.Kube.CoreV1().Pods(w.key.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", w.keeper.NodeName), fields.OneTermEqualSelector("metadata.name", w.key.Name),
	).String()})
	if err != nil {
		return nil, fmt.Errorf("read the pod: %w", err)
	}
	for i := range list.Items {
		if list.Items[i].Name == w.key.Name {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

func (w *evacuation) running(ctx context.Context, s situation) (bool, error) {
	var uids []types.UID
	if s.isMirror {
		uids = append(uids, types.UID(s.pod.Annotations[corev1.MirrorPodAnnotationKey]))
	}
	for i := range s.parked {
		uids = append(uids, s.parked[i].StaticUIDs...)
	}
	return w.keeper.running(ctx, uids)
}

// act carries out a decision. It reports whether the work is done.
func (w *evacuation) act(ctx context.Context, s situation, d decision) (over bool, err error) {
	k := w.keeper
	switch d.step {
	case stepLeave:
		return false, nil
	case stepGiveUp:
		k.Event(corev1.EventTypeWarning, EventNotStopped, d.message)
		return true, errors.New(d.message)
	case stepWait:
		if s.kept != "" && d.message != w.said {
			k.Event(corev1.EventTypeWarning, EventNotStopped, d.message)
		}
		w.report(ctx, d)
		return false, nil
	case stepPark:
		w.park(ctx, s)
		return false, nil
	}
	if d.restarted && !w.restarted {
		w.restarted = true
		k.Event(corev1.EventTypeWarning, EventKubeletRestarted, fmt.Sprintf(
			"The kubelet was restarted while static pod %s was terminating, so its containers may have been killed without their grace period", w.key))
	}
	w.report(ctx, d)
	if d.step == stepWatch {
		if s.manifests > 0 {
			wake(k.held)
		}
		return false, nil
	}
	if err := k.folder.change(w.key, func(e *Entry) { e.Stopped = true }); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot store that the static pod has stopped")
	}
	return true, w.AwaitDeparture(ctx)
}

// park parks the pod's manifests, and reports the reason if it cannot.
func (w *evacuation) park(ctx context.Context, s situation) {
	k := w.keeper
	parked, err := k.folder.park(s.pod, s.targeting, k.instance(ctx), k.cluster(ctx))
	for range parked {
		manifestMoves.WithLabelValues(moveParked).Inc()
	}
	if err != nil {
		staticPodErrors.Inc()
		klog.FromContext(ctx).Error(err, "Cannot park the manifests of the static pod, will retry")
		if !errors.Is(err, errNoManifest) {
			// The next reconciliation checks the folder again.
			k.setProblem(ctx, err)
		}
		w.report(ctx, decision{message: fmt.Sprintf("static pod %s cannot be stopped: %v", w.key, err)})
		return
	}
	klog.FromContext(ctx).Info("Manifests parked", "files", parked, "maintenance", s.targeting[0].Name)
	k.Event(corev1.EventTypeNormal, EventParked, fmt.Sprintf("Static pod %s is stopped for NodeMaintenance %s", w.key, s.targeting[0].Name))
	w.targeting, s.now = s.targeting, time.Now()
	s.parked = []Entry{{ParkedAt: s.now, GracePeriodSeconds: pods.GraceSeconds(s.pod), Maintenances: s.targeting}}
	s.manifests, s.running = 0, true
	w.report(ctx, decide(s))
}

// report writes a new message, or a heartbeat while the pod is expected to stop.
func (w *evacuation) report(ctx context.Context, d decision) {
	isDue := d.step == stepWatch && !d.late && time.Since(w.at) >= w.interval()
	if d.message == w.said && !isDue {
		return
	}
	err := w.Report(ctx, evacuator.Progress{Message: d.message, ExpectedFinish: d.expected})
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot report on the Evacuation, will retry")
		}
		return
	}
	w.said, w.at = d.message, time.Now()
}

// interval is the time between two heartbeats.
func (w *evacuation) interval() time.Duration {
	deadline := longestBeat * beatsPerDeadline
	if seconds := w.Object().Spec.ProgressDeadlineSeconds; seconds != nil {
		deadline = time.Duration(*seconds) * time.Second
	}
	return min(longestBeat, deadline/beatsPerDeadline)
}
