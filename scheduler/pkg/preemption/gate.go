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
	// evictNowAnnotation tells Haulout's admission of evictions that the caller needs the pod gone
	// and does not wait for an Evacuation.
	evictNowAnnotation = "maintenance.haulout.dev/evict-now"

	// evictionTimeout ends a call without an answer: the pending pod, and without
	// SchedulerAsyncPreemption all other pods, wait for it. It is the longest that a webhook may
	// take.
	evictionTimeout = 30 * time.Second

	// dryRunTimeout ends a question without an answer, which counts as a refusal. It is shorter
	// than evictionTimeout: all victims of a node are asked for before the first one goes.
	dryRunTimeout = 5 * time.Second
	// dryRunsAtOnce is how many victims of a node are asked for at the same time, as many as
	// upstream deletes at the same time.
	dryRunsAtOnce = 16
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
	// evictPod asks the Eviction API once, in a dry run if the delete options say so. Any answer
	// but success is an error.
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
	// leaving has the victims that upstream must not delete: those that the gate has evicted, and
	// those that had to leave before.
	leaving sets.Set[types.UID]
	// last is the victim that the executor hands over last.
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
	// Upstream deletes by name. Where another pod has the name, that one was not chosen.
	if !r.restricted || !r.leaving.Has(victim.UID) && g.current(victim) != nil {
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
		pod := g.current(victim)
		switch {
		case pod == nil || g.isUnbound(victim):
		case pod.DeletionTimestamp != nil || g.hasEvicted(pod.UID):
			// The search had not seen yet that it leaves.
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
		return fmt.Errorf("pod %s is evicted for another pod at this moment", klog.KObj(pod))
	}
	defer g.release(guarded)
	if err := g.ask(ctx, c, preemptor, guarded, rules); err != nil {
		return err
	}
	var evicted []*corev1.Pod
	for _, pod := range guarded {
		found, err := g.evict(ctx, c, preemptor, pod, rules)
		if err != nil {
			// What was evicted so far is no reason to wait for it: it makes too little room.
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

// ask has the Eviction API answer in a dry run for each of several guarded victims, so that none is
// evicted in vain because a webhook or a budget refuses another one. A single victim needs no
// question: if its eviction is refused, nothing has happened. Dry runs use up no budget;
// rules.breaks has compared the number of victims with what each budget allows before.
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

// evict evicts one guarded victim, once. It returns false without an error if the victim is gone.
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

// evictionOf returns the eviction of exactly this pod. It is marked for Haulout's admission.
func evictionOf(pod *corev1.Pod, dryRun ...string) *policyv1.Eviction {
	return &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Annotations: map[string]string{evictNowAnnotation: "preemption"}},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID)), DryRun: dryRun},
	}
}

// judge reads an answer of the Eviction API. A refusal is an error; it keeps the pod from being
// chosen for a while. judge returns false without an error if the pod is gone.
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
	refusedEvent(ctx, g.handle, preemptor, pod, "The eviction API answered: "+answer.Error())
	g.refuse(pod.UID, rules.heldOf([]*corev1.Pod{pod}).budgets)
	return false, fmt.Errorf("evict pod %s: %w", klog.KObj(pod), answer)
}

// refuseCandidate leaves a candidate out of the searches of this preemptor for a while, and has the
// preemptor tried again immediately, so that it takes the next candidate. If other victims were
// evicted in vain it leaves out all candidates: the next one could cost as much.
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
