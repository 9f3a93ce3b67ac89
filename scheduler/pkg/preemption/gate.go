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

package preemption

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	apipod "k8s.io/kubernetes/pkg/api/v1/pod"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"haulout.dev/haulout/pkg/controller/eviction"
)

const (
	// evictNowAnnotation tells Haulout's admission of evictions that the caller needs the pod gone
	// and does not wait for an Evacuation.
	evictNowAnnotation = "maintenance.haulout.dev/evict-now"

	// evictionTimeout ends a call without an answer: the pending pod, and without
	// SchedulerAsyncPreemption all other pods, wait for it. It is the longest that a webhook may
	// take.
	evictionTimeout = 30 * time.Second

	// pauseAfterRefusal is how long a pending pod pauses after its victims were refused before any
	// was asked for: upstream tries it again immediately, and an extender would put in the same
	// pod.
	pauseAfterRefusal = time.Second
)

// preemptPod removes one victim. It returns true if the victim had not been bound yet and was only
// taken back in the scheduler's memory.
type preemptPod func(context.Context, upstream.Candidate, upstream.ExecutorPreemptor, *corev1.Pod, string) (bool, error)

// gate removes victims. The caches from which they were chosen only predict what budgets allow; the
// Eviction API decides. Therefore it evicts the guarded victims first, and only if all of them go
// it lets upstream delete the others.
type gate struct {
	*memory
	handle   fwk.Handle
	rules    func(priority int32) (*rules, error)
	upstream preemptPod
	waiting  *waitingRoom
	// evictPod asks the Eviction API once. Any answer but success is an error.
	evictPod func(context.Context, *policyv1.Eviction) error

	mu sync.Mutex
	// runs has the removals that are under way: the executor calls the gate for each victim of a
	// candidate, for several at the same time.
	runs map[upstream.Candidate]*run
}

// run is the removal of one candidate's victims.
type run struct {
	once sync.Once
	err  error
	// restricted means that the gate checks each victim. Otherwise all is upstream's.
	restricted bool
	// evicted has the guarded victims, and those that start.
	evicted sets.Set[types.UID]
	// last is the victim that the executor hands over last.
	last types.UID
}

func newGate(handle fwk.Handle, rules func(int32) (*rules, error), original preemptPod, waiting *waitingRoom) *gate {
	g := &gate{
		memory:   newMemory(handle.SharedInformerFactory().Core().V1().Pods().Lister()),
		handle:   handle,
		rules:    rules,
		upstream: original,
		waiting:  waiting,
		evictPod: eviction.NewHost(handle.ClientSet()).Evict,
		runs:     map[upstream.Candidate]*run{},
	}
	waiting.opened = g.forgetRefusals
	waiting.gone = g.forgetPod
	return g
}

// preempt is called for each victim of a candidate.
func (g *gate) preempt(ctx context.Context, c upstream.Candidate, preemptor upstream.ExecutorPreemptor, victim *corev1.Pod, plugin string) (bool, error) {
	r, err := g.runOf(ctx, c)
	if err != nil {
		return false, err
	}
	r.once.Do(func() { r.err = g.open(ctx, c, preemptor, r) })
	if r.err != nil {
		return false, r.err
	}
	// Upstream deletes by name. Where another pod has the name, that one was not chosen.
	if !r.restricted || !r.evicted.Has(victim.UID) && g.current(victim) != nil {
		return g.upstream(ctx, c, preemptor, victim, plugin)
	}
	// The executor expects that its last victim goes in this call: while it waits for that one, the
	// queue drops all events for the pending pod. If the pod went before, its event was dropped.
	if victim.UID == r.last && g.isLeaving(victim) {
		g.handle.Activate(klog.FromContext(ctx), preemptor.Pods())
	}
	return false, nil
}

// runOf returns the run of the candidate. The executor ends ctx when it is done with the candidate,
// and when one of its calls has failed. A later call is too late.
func (g *gate) runOf(ctx context.Context, c upstream.Candidate) (*run, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if known, ok := g.runs[c]; ok {
		return known, nil
	}
	r := &run{evicted: sets.New[types.UID]()}
	g.runs[c] = r
	context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.runs, c)
	})
	return r, nil
}

// current returns the victim as it is now, or nil if it is gone.
func (g *gate) current(victim *corev1.Pod) *corev1.Pod {
	pod, err := g.pods.Pods(victim.Namespace).Get(victim.Name)
	if err != nil || pod.UID != victim.UID {
		return nil
	}
	return pod
}

func (g *gate) isLeaving(victim *corev1.Pod) bool {
	pod := g.current(victim)
	return pod == nil || pod.DeletionTimestamp != nil
}

// isUnbound reports whether upstream takes the victim back in memory.
func (g *gate) isUnbound(victim *corev1.Pod) bool {
	return g.handle.GetWaitingPod(victim.UID) != nil || g.handle.GetPodInPreBind(victim.UID) != nil
}

// open checks all victims of a candidate against the budgets of now, since an extender may have put
// in others, and evicts the guarded ones. If it returns an error, no victim may be deleted.
func (g *gate) open(ctx context.Context, c upstream.Candidate, preemptor upstream.ExecutorPreemptor, r *run) error {
	rules, err := g.rules(preemptor.Priority())
	if err != nil {
		return err
	}
	if r.restricted = rules.restrict(); !r.restricted {
		return nil
	}
	var victims []*corev1.Pod
	for _, victim := range c.Victims().Pods {
		if victim.DeletionTimestamp != nil {
			continue
		}
		r.last = victim.UID
		if pod := g.current(victim); pod != nil && !g.isUnbound(victim) {
			victims = append(victims, pod)
		}
	}
	if pod, why := rules.breaks(victims); pod != nil {
		g.pauseAndWake(preemptor)
		refusedEvent(ctx, g.handle, preemptor, pod, why)
		attempts.WithLabelValues(resultRefused).Inc()
		return fmt.Errorf("pod %s must not be preempted: %s", klog.KObj(pod), why)
	}
	var evicted []*corev1.Pod
	for _, pod := range victims {
		if p := rules.protectionOf(pod); !p.guarded && !p.starts {
			continue
		}
		found, err := g.evict(ctx, c, preemptor, pod, rules)
		if err != nil {
			// What was evicted so far is no reason to wait: it makes too little room.
			attempts.WithLabelValues(resultRefused).Inc()
			g.waiting.wakeAt(preemptor.UID(), podsOfPreemptor(preemptor), g.clock.Now())
			return err
		}
		r.evicted.Insert(pod.UID)
		if found {
			evicted = append(evicted, pod)
		}
	}
	for _, pod := range evicted {
		g.addLeaving(preemptor.UID(), pod)
		g.markAsPreempted(ctx, preemptor, pod)
	}
	return nil
}

// evict evicts one guarded victim, once. It returns false without an error if the victim is gone.
func (g *gate) evict(ctx context.Context, c upstream.Candidate, preemptor upstream.ExecutorPreemptor, pod *corev1.Pod, rules *rules) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, evictionTimeout)
	defer cancel()
	err := g.evictPod(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Annotations: map[string]string{evictNowAnnotation: "preemption"}},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
	})
	switch {
	case err == nil:
		evictions.WithLabelValues(answerEvicted).Inc()
		preemptedEvent(ctx, g.handle, preemptor, pod, c.Name())
		return true, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err) && g.isReplaced(ctx, pod):
		evictions.WithLabelValues(answerGone).Inc()
		return false, nil
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		evictions.WithLabelValues(answerBudget).Inc()
	case apierrors.IsForbidden(err):
		evictions.WithLabelValues(answerForbidden).Inc()
	default:
		evictions.WithLabelValues(answerError).Inc()
	}
	g.refuse(pod.UID, rules.heldOf([]*corev1.Pod{pod}).budgets)
	refusedEvent(ctx, g.handle, preemptor, pod, "The eviction API answered: "+err.Error())
	return false, fmt.Errorf("evict pod %s: %w", klog.KObj(pod), err)
}

// isReplaced tells the two reasons of a conflict apart: another pod has the name, or the pod has
// changed while it was evicted.
func (g *gate) isReplaced(ctx context.Context, pod *corev1.Pod) bool {
	now, err := g.handle.ClientSet().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID
}

// markAsPreempted corrects the reason of the condition DisruptionTarget, which the Eviction API
// sets to its own: upstream recognizes victims by it. The pod is evicted whether or not this works.
func (g *gate) markAsPreempted(ctx context.Context, preemptor upstream.ExecutorPreemptor, pod *corev1.Pod) {
	condition := corev1.PodCondition{
		Type:               corev1.DisruptionTarget,
		ObservedGeneration: apipod.CalculatePodConditionObservedGeneration(&pod.Status, pod.Generation, corev1.DisruptionTarget),
		Status:             corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(g.clock.Now()),
		Reason:             corev1.PodReasonPreemptionByScheduler,
		Message:            fmt.Sprintf("%s: evicted within its budget for a %s of higher priority", preemptor.SchedulerName(), preemptor.Type()),
	}
	// With the UID, the API server refuses to change another pod of the name.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"conditions": []corev1.PodCondition{condition}},
	})
	if err == nil {
		_, err = g.handle.ClientSet().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		logger(ctx).Error(err, "Cannot set the condition DisruptionTarget of an evicted pod", "pod", klog.KObj(pod))
	}
}

// pauseAndWake keeps a pending pod from looking for victims for a moment, and wakes it then.
func (g *gate) pauseAndWake(preemptor upstream.ExecutorPreemptor) {
	until := g.clock.Now().Add(pauseAfterRefusal)
	g.pause(preemptor.UID(), until)
	g.waiting.wakeAt(preemptor.UID(), podsOfPreemptor(preemptor), until)
}

func podsOfPreemptor(preemptor upstream.ExecutorPreemptor) []*corev1.Pod {
	return slices.Collect(maps.Values(preemptor.Pods()))
}
