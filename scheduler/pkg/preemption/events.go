// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"fmt"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"haulout.dev/haulout/pkg/host/podcache"
)

// The reasons of the plugin's own events.
const (
	// EventRefused: victims of the pod or PodGroup were chosen, but one of them was not evicted.
	// About the pod.
	EventRefused = "PreemptionRefused"
	// EventHeldBack: budgets protect pods that could be victims. About the PodGroup.
	EventHeldBack = "PreemptionHeldBack"
	// EventBadThreshold: the threshold of the class is malformed, and counts as the highest. About
	// the PriorityClass.
	EventBadThreshold = "BadPreemptionThreshold"

	// reasonPreempted (Normal, about the victim) is the reason that upstream uses.
	reasonPreempted = "Preempted"

	action = "Preempting"
)

// objectOf returns the pending pod or group. It does not use upstream's Obj, whose type for a pod
// is unknown to the recorder.
func objectOf(preemptor upstream.ExecutorPreemptor) runtime.Object {
	for _, pod := range preemptor.Pods() {
		if pod.UID == preemptor.UID() {
			return pod
		}
	}
	return preemptor.Obj()
}

func preemptedEvent(ctx context.Context, handle fwk.Handle, preemptor upstream.ExecutorPreemptor, victim *corev1.Pod, place string) {
	handle.EventRecorder().WithLogger(logger(ctx)).Eventf(victim, objectOf(preemptor), corev1.EventTypeNormal, reasonPreempted, action,
		"Preempted by %s %v on node %v, within its PodDisruptionBudget", preemptor.Type(), preemptor.UID(), place)
}

func refusedEvent(ctx context.Context, handle fwk.Handle, preemptor upstream.ExecutorPreemptor, victim *corev1.Pod, why string) {
	handle.EventRecorder().WithLogger(logger(ctx)).Eventf(objectOf(preemptor), victim, corev1.EventTypeWarning, EventRefused, action,
		"Neither pod %s nor any further victim was preempted. %s", klog.KObj(victim), why)
}

func heldBackEvent(ctx context.Context, handle fwk.Handle, group runtime.Object, held heldPods) {
	handle.EventRecorder().WithLogger(logger(ctx)).Eventf(group, nil, corev1.EventTypeNormal, EventHeldBack, action,
		"%d pods were not considered as victims, because PodDisruptionBudgets protect them; preempting them needs priority %d",
		len(held.pods), held.threshold)
}

// badThresholds reports malformed thresholds of PriorityClasses, once for each value.
type badThresholds struct {
	handle fwk.Handle

	mu       sync.Mutex
	reported map[string]string
}

// newBadThresholds returns a badThresholds that maintains the gauge of malformed thresholds. The
// active scheduler sends the event about a malformed threshold when it uses it.
func newBadThresholds(handle fwk.Handle) (*badThresholds, error) {
	b := &badThresholds{handle: handle, reported: map[string]string{}}
	classes := handle.SharedInformerFactory().Scheduling().V1().PriorityClasses()
	changed := func(_, _ *schedulingv1.PriorityClass) { b.update(classes.Lister()) }
	_, err := classes.Informer().AddEventHandler(podcache.HandlerOf(changed))
	return b, err
}

// update counts the malformed thresholds, and forgets the reports about classes that are correct
// now.
func (b *badThresholds) update(classes schedulinglisters.PriorityClassLister) {
	all, err := classes.List(labels.Everything())
	if err != nil {
		return
	}
	bad := sets.New[string]()
	for _, class := range all {
		if _, _, err := thresholdOf(class); err != nil {
			bad.Insert(class.Name)
		}
	}
	badThresholdClasses.Set(float64(len(bad)))
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.reported, func(name, _ string) bool { return !bad.Has(name) })
}

func (b *badThresholds) report(class *schedulingv1.PriorityClass, err error) {
	value := class.Annotations[ThresholdAnnotation]
	b.mu.Lock()
	known, before := b.reported[class.Name]
	b.reported[class.Name] = value
	b.mu.Unlock()
	if before && known == value {
		return
	}
	b.handle.EventRecorder().Eventf(class, nil, corev1.EventTypeWarning, EventBadThreshold, action, "%s",
		fmt.Sprintf("%v. Until it is corrected, it counts as %d", err, maxThreshold))
}
