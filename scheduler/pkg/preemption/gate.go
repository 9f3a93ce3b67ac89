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
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	apipod "k8s.io/kubernetes/pkg/api/v1/pod"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/kubernetes/pkg/scheduler/util"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	// evictNowAnnotation tells Haulout's admission of evictions that the caller needs the pod gone
	// and does not wait for an Evacuation.
	evictNowAnnotation = "maintenance.haulout.dev/evict-now"

	// A refused pod is held back for refusalDelay, and after each further refusal for twice as
	// long, up to maxRefusalDelay.
	refusalDelay    = 10 * time.Second
	maxRefusalDelay = 5 * time.Minute

	// pauseAfterRefusal is how long a pending pod pauses after its victims were refused before any
	// was asked for: upstream tries it again immediately, and an extender would put in the same
	// pod.
	pauseAfterRefusal = time.Second

	// maxRemembered limits what the gate remembers of candidates, pending pods and refused pods.
	maxRemembered = 10_000
)

// preemptPod removes one victim. It returns true if the victim had not been bound yet and was only
// taken back in the scheduler's memory.
type preemptPod func(context.Context, upstream.Candidate, upstream.ExecutorPreemptor, *corev1.Pod, string) (bool, error)

// gate removes victims. The caches from which they were chosen only predict what budgets allow; the
// Eviction API decides. Therefore it evicts the guarded victims first, and only if all of them go
// it lets upstream delete the others.
type gate struct {
	handle   fwk.Handle
	pods     corelisters.PodLister
	rules    func(priority int32) (*rules, error)
	upstream preemptPod
	waiting  *waitingRoom
	clock    clock.PassiveClock

	// runs has a *run for each candidate: the executor calls the gate for each of its victims, for
	// several at a time.
	mu   sync.Mutex
	runs *lru.Cache
	// evicted has the victims, []*corev1.Pod, that were evicted for a pending pod, by its UID.
	evicted *lru.Cache
	// paused has the time until which a pending pod pauses, by its UID.
	paused *lru.Cache
	// refused has the pods that the Eviction API has refused.
	refused map[types.UID]*refusal
}

// run is the removal of one candidate's victims.
type run struct {
	once    sync.Once
	evicted sets.Set[types.UID]
	// last is the victim that the executor hands over last.
	last types.UID
	err  error
}

type refusal struct {
	until   time.Time
	delay   time.Duration
	budgets []types.NamespacedName
}

func newGate(handle fwk.Handle, rules func(int32) (*rules, error), original preemptPod, waiting *waitingRoom) *gate {
	g := &gate{
		handle:   handle,
		pods:     handle.SharedInformerFactory().Core().V1().Pods().Lister(),
		rules:    rules,
		upstream: original,
		waiting:  waiting,
		clock:    clock.RealClock{},
		runs:     lru.New(maxRemembered),
		evicted:  lru.New(maxRemembered),
		paused:   lru.New(maxRemembered),
		refused:  map[types.UID]*refusal{},
	}
	waiting.opened = g.forgiveBudget
	waiting.gone = g.forgivePod
	return g
}

// preempt is called for each victim of a candidate.
func (g *gate) preempt(ctx context.Context, c upstream.Candidate, preemptor upstream.ExecutorPreemptor, victim *corev1.Pod, plugin string) (bool, error) {
	r := g.runOf(c)
	r.once.Do(func() { r.err = g.open(ctx, c, preemptor, r) })
	if r.err != nil {
		return false, r.err
	}
	if !r.evicted.Has(victim.UID) {
		return g.upstream(ctx, c, preemptor, victim, plugin)
	}
	// The executor expects that its last victim goes in this call: while it waits for that one, the
	// queue drops all events for the pending pod. If the pod went before, its event was dropped.
	if victim.UID == r.last && g.isLeaving(victim) {
		g.handle.Activate(klog.FromContext(ctx), preemptor.Pods())
	}
	return false, nil
}

func (g *gate) runOf(c upstream.Candidate) *run {
	g.mu.Lock()
	defer g.mu.Unlock()
	if known, ok := g.runs.Get(c); ok {
		return known.(*run)
	}
	r := &run{evicted: sets.New[types.UID]()}
	g.runs.Add(c, r)
	return r
}

func (g *gate) isLeaving(victim *corev1.Pod) bool {
	pod, err := g.pods.Pods(victim.Namespace).Get(victim.Name)
	return err != nil || pod.UID != victim.UID || pod.DeletionTimestamp != nil
}

// open checks all victims of a candidate against the budgets of now, since an extender may have put
// in others, and evicts the guarded ones. If it returns an error, no victim may be deleted.
func (g *gate) open(ctx context.Context, c upstream.Candidate, preemptor upstream.ExecutorPreemptor, r *run) error {
	rules, err := g.rules(preemptor.Priority())
	if err != nil {
		return err
	}
	if !rules.restrict() {
		return nil
	}
	var victims []*corev1.Pod
	for _, victim := range c.Victims().Pods {
		if victim.DeletionTimestamp != nil {
			continue
		}
		r.last = victim.UID
		if pod := g.current(victim); pod != nil {
			victims = append(victims, pod)
		}
	}
	if pod, why := rules.breaks(victims); pod != nil {
		g.pause(preemptor)
		refusedEvent(ctx, g.handle, preemptor, pod, why)
		attempts.WithLabelValues(resultRefused).Inc()
		return fmt.Errorf("pod %s must not be preempted: %s", klog.KObj(pod), why)
	}
	for _, pod := range victims {
		if !rules.protectionOf(pod).guarded {
			continue
		}
		if err := g.evict(ctx, c, preemptor, pod, rules); err != nil {
			attempts.WithLabelValues(resultRefused).Inc()
			return err
		}
		r.evicted.Insert(pod.UID)
	}
	return nil
}

// current returns the victim as it is now, or nil if it needs no eviction: it is gone, or it is not
// bound yet, and upstream then takes it back in memory.
func (g *gate) current(victim *corev1.Pod) *corev1.Pod {
	if g.handle.GetWaitingPod(victim.UID) != nil || g.handle.GetPodInPreBind(victim.UID) != nil {
		return nil
	}
	pod, err := g.pods.Pods(victim.Namespace).Get(victim.Name)
	if err != nil || pod.UID != victim.UID {
		return nil
	}
	return pod
}

// evict evicts one guarded victim. A victim that is gone counts as evicted.
func (g *gate) evict(ctx context.Context, c upstream.Candidate, preemptor upstream.ExecutorPreemptor, pod *corev1.Pod, rules *rules) error {
	err := g.handle.ClientSet().PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Annotations: map[string]string{evictNowAnnotation: "preemption"}},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
	})
	switch {
	case err == nil:
		evictions.WithLabelValues(answerEvicted).Inc()
		g.remember(preemptor.UID(), pod)
		g.markAsPreempted(ctx, preemptor, pod)
		preemptedEvent(ctx, g.handle, preemptor, pod, c.Name())
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err) && g.isReplaced(ctx, pod):
		evictions.WithLabelValues(answerGone).Inc()
		return nil
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		evictions.WithLabelValues(answerBudget).Inc()
	case apierrors.IsForbidden(err):
		evictions.WithLabelValues(answerForbidden).Inc()
	default:
		evictions.WithLabelValues(answerError).Inc()
	}
	g.refuse(pod.UID, rules.heldOf([]*corev1.Pod{pod}).budgets)
	refusedEvent(ctx, g.handle, preemptor, pod, "The eviction API answered: "+err.Error())
	return fmt.Errorf("evict pod %s: %w", klog.KObj(pod), err)
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
	status := pod.Status.DeepCopy()
	apipod.UpdatePodCondition(status, &corev1.PodCondition{
		Type:               corev1.DisruptionTarget,
		ObservedGeneration: apipod.CalculatePodConditionObservedGeneration(&pod.Status, pod.Generation, corev1.DisruptionTarget),
		Status:             corev1.ConditionTrue,
		Reason:             corev1.PodReasonPreemptionByScheduler,
		Message:            fmt.Sprintf("%s: evicted within its budget for a %s of higher priority", preemptor.SchedulerName(), preemptor.Type()),
	})
	err := util.PatchPodStatus(ctx, g.handle.ClientSet(), pod.Name, pod.Namespace, &pod.Status, status)
	if err != nil && !apierrors.IsNotFound(err) {
		logger(ctx).Error(err, "Cannot set the condition DisruptionTarget of an evicted pod", "pod", klog.KObj(pod))
	}
}

// remember keeps which pods were evicted for a pending pod.
func (g *gate) remember(preemptor types.UID, victim *corev1.Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var victims []*corev1.Pod
	if known, ok := g.evicted.Get(preemptor); ok {
		victims = known.([]*corev1.Pod)
	}
	g.evicted.Add(preemptor, append(victims[:len(victims):len(victims)], victim))
}

// eligible reports whether a pending pod may look for victims, and if not, why.
func (g *gate) eligible(preemptor types.UID) (bool, string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until, ok := g.paused.Get(preemptor); ok {
		if g.clock.Now().Before(until.(time.Time)) {
			return false, "not eligible because its victims were refused a moment ago."
		}
		g.paused.Remove(preemptor)
	}
	known, ok := g.evicted.Get(preemptor)
	if !ok {
		return true, ""
	}
	for _, victim := range known.([]*corev1.Pod) {
		if pod, err := g.pods.Pods(victim.Namespace).Get(victim.Name); err == nil && pod.UID == victim.UID {
			return false, "not eligible because a pod that was evicted for it is not gone yet."
		}
	}
	g.evicted.Remove(preemptor)
	return true, ""
}

// pause keeps a pending pod from looking for victims for a moment, and wakes it then.
func (g *gate) pause(preemptor upstream.ExecutorPreemptor) {
	until := g.clock.Now().Add(pauseAfterRefusal)
	g.mu.Lock()
	g.paused.Add(preemptor.UID(), until)
	g.mu.Unlock()
	g.waiting.wakeAt(preemptor.UID(), slices.Collect(maps.Values(preemptor.Pods())), until)
}

// refuse holds a pod back that the Eviction API has refused.
func (g *gate) refuse(pod types.UID, budgets sets.Set[types.NamespacedName]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	if len(g.refused) >= maxRemembered {
		for uid, old := range g.refused {
			if now.After(old.until) {
				delete(g.refused, uid)
			}
		}
	}
	delay := refusalDelay
	if known, ok := g.refused[pod]; ok {
		delay = min(2*known.delay, maxRefusalDelay)
	}
	g.refused[pod] = &refusal{until: now.Add(delay), delay: delay, budgets: budgets.UnsortedList()}
}

func (g *gate) isRefused(pod types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	known, ok := g.refused[pod]
	return ok && g.clock.Now().Before(known.until)
}

// refusedUntil returns when the first of the pods that were refused may be tried again.
func (g *gate) refusedUntil(pods sets.Set[types.UID]) (first time.Time, refused bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid := range pods {
		known, ok := g.refused[uid]
		if !ok || !g.clock.Now().Before(known.until) {
			continue
		}
		if !refused || known.until.Before(first) {
			first, refused = known.until, true
		}
	}
	return first, refused
}

// forgiveBudget forgets the refusals of a budget that has opened since.
func (g *gate) forgiveBudget(name types.NamespacedName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid, known := range g.refused {
		for _, each := range known.budgets {
			if each == name {
				delete(g.refused, uid)
			}
		}
	}
}

// forgivePod forgets the refusals of a pod that is gone.
func (g *gate) forgivePod(pod types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.refused, pod)
	g.evicted.Remove(pod)
	g.paused.Remove(pod)
}
