// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

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
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	apipod "k8s.io/kubernetes/pkg/api/v1/pod"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"haulout.dev/haulout/pkg/host/evict"
)

const (
	// evictNowAnnotation marks an Eviction for which only the budget decides. A webhook that turns
	// evictions into Evacuations must not apply to it: the pending pod does not wait for an
	// evacuator.
	evictNowAnnotation = "maintenance.haulout.dev/evict-now"

	// evictionTimeout limits an eviction call. The pending pod waits for the call and, without
	// SchedulerAsyncPreemption, all other pods do, too. It is the maximum timeout of a webhook.
	evictionTimeout = 30 * time.Second

	// dryRunTimeout limits a dry run; a timeout counts as a refusal. It is shorter than
	// evictionTimeout, because the dry runs for all victims of a node come before the first
	// eviction.
	dryRunTimeout = 5 * time.Second
	// dryRunsAtOnce is the number of concurrent dry runs for the victims of a node, equal to the
	// number of concurrent deletions in upstream.
	dryRunsAtOnce = 16
)

// preemptPod removes one victim. It returns true if the victim was not bound yet and was only
// removed from the scheduler's memory.
type preemptPod func(context.Context, upstream.Candidate, upstream.ExecutorPreemptor, *corev1.Pod, string) (bool, error)

// gate removes victims. The victims were chosen with cached budgets, which may be out of date; only
// the Eviction API has the current ones. So the gate evicts the guarded victims first, and upstream
// deletes the other victims only if all evictions succeed.
type gate struct {
	*memory
	handle   fwk.Handle
	rules    func(priority int32) (*rules, error)
	upstream preemptPod
	waiting  *waitingRoom
	// evictPod calls the Eviction API once, with a dry run if the delete options request it. It
	// returns an error unless the call succeeds.
	evictPod func(context.Context, *policyv1.Eviction) error

	mu sync.Mutex
	// runs has the removals in progress: the executor calls the gate for each victim of a
	// candidate, and for several victims at the same time.
	runs map[upstream.Candidate]*run
}

// run is the removal of one candidate's victims.
type run struct {
	once sync.Once
	err  error
	// restricted is set if the gate checks each victim. Otherwise upstream removes all victims.
	restricted bool
	// leaving has the victims that upstream must not delete, because the gate has evicted them or
	// they were already terminating.
	leaving sets.Set[types.UID]
	// last is the victim for which the executor calls the gate last.
	last types.UID
}

func newGate(handle fwk.Handle, rules func(int32) (*rules, error), original preemptPod, waiting *waitingRoom) *gate {
	return &gate{
		memory:   waiting.memory,
		handle:   handle,
		rules:    rules,
		upstream: original,
		waiting:  waiting,
		evictPod: evict.Client{Host: handle.ClientSet()}.Evict,
		runs:     map[upstream.Candidate]*run{},
	}
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
	// Upstream deletes by name. Check that the pod with this name is still the chosen one.
	if !r.restricted || !r.leaving.Has(victim.UID) && g.current(victim) != nil {
		return g.upstream(ctx, c, preemptor, victim, plugin)
	}
	// The executor expects that its last victim is removed during this call: until the call
	// returns, the queue drops all events for the pending pod. If the victim is already gone, its
	// event was dropped, so the pod has to be activated.
	if victim.UID == r.last && g.isLeaving(victim) {
		g.handle.Activate(klog.FromContext(ctx), preemptor.Pods())
	}
	return false, nil
}

// runOf returns the run of the candidate. The executor cancels ctx when all victims of the
// candidate are removed and when a call fails; later calls return an error.
func (g *gate) runOf(ctx context.Context, c upstream.Candidate) (*run, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if known, ok := g.runs[c]; ok {
		return known, nil
	}
	r := &run{leaving: sets.New[types.UID]()}
	g.runs[c] = r
	context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.runs, c)
	})
	return r, nil
}

func (g *gate) isLeaving(victim *corev1.Pod) bool {
	pod := g.current(victim)
	return pod == nil || pod.DeletionTimestamp != nil
}

// isUnbound reports whether upstream removes the victim only from its memory, because the victim is
// not bound yet.
func (g *gate) isUnbound(victim *corev1.Pod) bool {
	return g.handle.GetWaitingPod(victim.UID) != nil || g.handle.GetPodInPreBind(victim.UID) != nil
}

// open checks all victims of a candidate against the current budgets, because an extender may have
// changed the victims. Then it evicts the guarded ones. If it returns an error, no victim may be
// deleted.
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
		pod := g.current(victim)
		switch {
		case pod == nil || g.isUnbound(victim):
		case pod.DeletionTimestamp != nil || g.hasEvicted(pod.UID):
			// During the search, this pod was not yet terminating.
			r.leaving.Insert(pod.UID)
			g.addLeaving(preemptor.UID(), pod)
		default:
			victims = append(victims, pod)
		}
	}
	if pod, why := rules.breaks(victims); pod != nil {
		refusedEvent(ctx, g.handle, preemptor, pod, why)
		g.refuseCandidate(ctx, c, preemptor, pod, rules, false)
		return fmt.Errorf("pod %s must not be preempted: %s", klog.KObj(pod), why)
	}
	guarded := slices.DeleteFunc(victims, func(pod *corev1.Pod) bool {
		p := rules.protectionOf(pod)
		return !p.guarded && !p.starts
	})
	if pod := g.claim(guarded); pod != nil {
		g.refuseCandidate(ctx, c, preemptor, pod, rules, false)
		return fmt.Errorf("pod %s is already being evicted for another pod", klog.KObj(pod))
	}
	defer g.release(guarded)
	rules.sortByDoubt(guarded, g.wasRefused)
	if err := g.ask(ctx, c, preemptor, guarded, rules); err != nil {
		return err
	}
	var evicted []*corev1.Pod
	for _, pod := range guarded {
		found, err := g.evict(ctx, c, preemptor, pod, rules)
		if err != nil {
			// Do not wait for the pods that were already evicted: they do not make enough room.
			for _, pod := range evicted {
				g.addLeaving(noPreemptor, pod)
			}
			g.refuseCandidate(ctx, c, preemptor, pod, rules, len(evicted) > 0)
			return err
		}
		r.leaving.Insert(pod.UID)
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

// ask calls the Eviction API with a dry run for each guarded victim if there are several. If a
// webhook or a budget refuses one of them, no victim is evicted. A single victim needs no dry run:
// a refusal of its eviction has no side effect. Dry runs do not use up the budget; rules.breaks has
// already compared the number of victims with each budget.
func (g *gate) ask(ctx context.Context, c upstream.Candidate, preemptor upstream.ExecutorPreemptor, guarded []*corev1.Pod, rules *rules) error {
	if len(guarded) < 2 {
		return nil
	}
	answers := make([]error, len(guarded))
	workqueue.ParallelizeUntil(ctx, dryRunsAtOnce, len(guarded), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, dryRunTimeout)
		defer cancel()
		answers[i] = g.evictPod(ctx, evictionOf(guarded[i], metav1.DryRunAll))
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	for i, pod := range guarded {
		if _, err := g.judge(ctx, preemptor, pod, rules, answers[i]); err != nil {
			g.refuseCandidate(ctx, c, preemptor, pod, rules, false)
			return err
		}
	}
	return nil
}

// evict calls the Eviction API once for a guarded victim. It returns false without an error if the
// victim is gone.
func (g *gate) evict(ctx context.Context, c upstream.Candidate, preemptor upstream.ExecutorPreemptor, pod *corev1.Pod, rules *rules) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, evictionTimeout)
	defer cancel()
	found, err := g.judge(ctx, preemptor, pod, rules, g.evictPod(ctx, evictionOf(pod)))
	switch {
	case err != nil:
	case found:
		evictions.WithLabelValues(answerEvicted).Inc()
		preemptedEvent(ctx, g.handle, preemptor, pod, c.Name())
	default:
		evictions.WithLabelValues(answerGone).Inc()
	}
	return found, err
}

// evictionOf returns the eviction of exactly this pod, with the annotation for Haulout's admission.
func evictionOf(pod *corev1.Pod, dryRun ...string) *policyv1.Eviction {
	return &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Annotations: map[string]string{evictNowAnnotation: "preemption"}},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID)), DryRun: dryRun},
	}
}

// judge interprets a response of the Eviction API. A refusal is an error, and excludes the pod as a
// victim for a while. judge returns false without an error if the pod is gone.
func (g *gate) judge(ctx context.Context, preemptor upstream.ExecutorPreemptor, pod *corev1.Pod, rules *rules, answer error) (bool, error) {
	switch {
	case answer == nil:
		return true, nil
	case apierrors.IsNotFound(answer), apierrors.IsConflict(answer) && g.isReplaced(ctx, pod):
		return false, nil
	case apierrors.HasStatusCause(answer, policyv1.DisruptionBudgetCause):
		evictions.WithLabelValues(answerBudget).Inc()
	case apierrors.IsForbidden(answer):
		evictions.WithLabelValues(answerForbidden).Inc()
	default:
		evictions.WithLabelValues(answerError).Inc()
	}
	refusedEvent(ctx, g.handle, preemptor, pod, "The Eviction API responded: "+answer.Error())
	g.refuse(pod.UID, rules.heldOf([]*corev1.Pod{pod}).budgets)
	return false, fmt.Errorf("evict pod %s: %w", klog.KObj(pod), answer)
}

// refuseCandidate excludes a candidate from the searches of this preemptor for a while, and
// activates the preemptor immediately, so that it uses the next candidate. If other victims were
// already evicted (inVain), it excludes all candidates: the next one could cause as many evictions.
func (g *gate) refuseCandidate(ctx context.Context, c upstream.Candidate, preemptor upstream.ExecutorPreemptor, pod *corev1.Pod, rules *rules, inVain bool) {
	attempts.WithLabelValues(resultRefused).Inc()
	budgets := rules.heldOf([]*corev1.Pod{pod}).budgets
	g.leaveOut(preemptor.UID(), c.Name(), budgets)
	if !inVain {
		g.handle.Activate(logger(ctx), preemptor.Pods())
		return
	}
	who := waiter{uid: preemptor.UID(), priority: preemptor.Priority(), pods: slices.Collect(maps.Values(preemptor.Pods()))}
	g.waiting.wakeAt(who, g.leaveOut(preemptor.UID(), everyCandidate, budgets))
}

// isReplaced distinguishes the two causes of a conflict: another pod has the name (true), or the
// pod has changed during the eviction (false).
func (g *gate) isReplaced(ctx context.Context, pod *corev1.Pod) bool {
	now, err := g.handle.ClientSet().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID
}

// markAsPreempted sets the reason of the condition DisruptionTarget by which upstream recognizes
// victims. The Eviction API sets a different reason. The pod is evicted even if this fails.
func (g *gate) markAsPreempted(ctx context.Context, preemptor upstream.ExecutorPreemptor, pod *corev1.Pod) {
	condition := corev1.PodCondition{
		Type:               corev1.DisruptionTarget,
		ObservedGeneration: apipod.CalculatePodConditionObservedGeneration(&pod.Status, pod.Generation, corev1.DisruptionTarget),
		Status:             corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(g.clock.Now()),
		Reason:             corev1.PodReasonPreemptionByScheduler,
		Message:            fmt.Sprintf("%s: evicted within its budget for a %s of higher priority", preemptor.SchedulerName(), preemptor.Type()),
	}
	// With the UID, the patch cannot change another pod of the same name.
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
