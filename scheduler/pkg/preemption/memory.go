// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"
)

const (
	// After a refusal, a pod must not become a victim for refusalDelay. The delay doubles with each
	// further refusal, up to maxRefusalDelay. After maxRefusalDelay without a refusal, it starts
	// again at refusalDelay.
	refusalDelay    = 10 * time.Second
	maxRefusalDelay = 5 * time.Minute

	// maxRefusals is the maximum number of remembered refusals. When it is exceeded, the refusal
	// that ends first is dropped, and the pod may become a victim again.
	maxRefusals = 10_000

	// After a refusal, a node is excluded from the searches of the pending pod for leaveOutDelay;
	// the delay doubles with each further refusal, up to maxRefusalDelay.
	leaveOutDelay = time.Second
	// everyCandidate excludes all candidates.
	everyCandidate = ""
	// noPreemptor records a victim for which no pod or group waits.
	noPreemptor types.UID = ""
)

// memory has what the gate knows about existing pods. It is lost when the process ends.
type memory struct {
	pods  corelisters.PodLister
	clock clock.PassiveClock

	mu sync.Mutex
	// leaving has the victims that were evicted but are not gone yet.
	leaving map[types.UID]leavingPod
	// claimed has the victims that the gate is evicting now for a candidate. Another preemptor may
	// choose the same victims before the API server responds.
	claimed sets.Set[types.UID]
	// leftOut has the excluded candidates of each pending pod or group: names of nodes or, for
	// groups, the name of upstream's domain. The eviction of a victim of these candidates was
	// refused.
	leftOut map[types.UID]map[string]*refusal
	// refused has the latest refusal of each pod whose eviction was refused.
	refused map[types.UID]*refusal
}

type leavingPod struct {
	*corev1.Pod
	// preemptors are the pending pods or groups for which the pod was evicted.
	preemptors sets.Set[types.UID]
}

type refusal struct {
	until   time.Time
	delay   time.Duration
	budgets sets.Set[types.NamespacedName]
}

func newMemory(pods corelisters.PodLister) *memory {
	return &memory{
		pods:    pods,
		clock:   clock.RealClock{},
		leaving: map[types.UID]leavingPod{},
		claimed: sets.New[types.UID](),
		leftOut: map[types.UID]map[string]*refusal{},
		refused: map[types.UID]*refusal{},
	}
}

// addLeaving records a victim until it is gone. The lister is updated before the handlers are
// called, so if the victim is still in the lister, forgetPod will be called for it later.
func (m *memory) addLeaving(preemptor types.UID, victim *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, known := m.leaving[victim.UID]
	if !known {
		l = leavingPod{victim, sets.New[types.UID]()}
	}
	l.preemptors.Insert(preemptor)
	if m.current(victim) != nil {
		m.leaving[victim.UID] = l
	}
}

// hasEvicted reports whether the gate has evicted the pod and the pod is not gone yet. The lister
// may not show the eviction yet.
func (m *memory) hasEvicted(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, leaving := m.leaving[pod]
	return leaving
}

// claim prevents other candidates from evicting the victims until release is called. If a victim is
// already claimed or evicted, claim returns that victim and claims no victims.
func (m *memory) claim(victims []*corev1.Pod) *corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, pod := range victims {
		if _, leaving := m.leaving[pod.UID]; leaving || m.claimed.Has(pod.UID) {
			return pod
		}
	}
	for _, pod := range victims {
		m.claimed.Insert(pod.UID)
	}
	return nil
}

func (m *memory) release(victims []*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, pod := range victims {
		m.claimed.Delete(pod.UID)
	}
}

// current returns the pod in the lister that has the same UID, or nil if it is gone.
func (m *memory) current(known *corev1.Pod) *corev1.Pod {
	pod, err := m.pods.Pods(known.Namespace).Get(known.Name)
	if err != nil || pod.UID != known.UID {
		return nil
	}
	return pod
}

// awaitsVictims reports whether a victim of the preemptor is terminating on a node for which the
// preemptor is nominated. As in upstream, the preemptor then does not search for other victims.
func (m *memory) awaitsVictims(preemptor types.UID, nominated func(node string) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.leaving {
		// Check the lister: the handler that forgets the pod may run after the handler that
		// activates the preemptor.
		if l.preemptors.Has(preemptor) && nominated(l.Spec.NodeName) && m.current(l.Pod) != nil {
			return true
		}
	}
	return false
}

// leaveOut excludes a candidate from the searches of a pending pod or group, so that its next
// search uses another candidate. The exclusion ends at the returned time, or when one of the
// budgets allows more disruptions.
func (m *memory) leaveOut(preemptor types.UID, candidate string, budgets sets.Set[types.NamespacedName]) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	again := m.again(m.leftOut[preemptor][candidate], leaveOutDelay, budgets)
	for uid, candidates := range m.leftOut {
		maps.DeleteFunc(candidates, func(_ string, known *refusal) bool { return !m.counts(known) })
		if len(candidates) == 0 {
			delete(m.leftOut, uid)
		}
	}
	if m.leftOut[preemptor] == nil {
		m.leftOut[preemptor] = map[string]*refusal{}
	}
	m.leftOut[preemptor][candidate] = again
	return again.until
}

// isLeftOut reports whether a candidate is excluded from the searches of a pending pod or group.
func (m *memory) isLeftOut(preemptor types.UID, candidate string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	candidates := m.leftOut[preemptor]
	return m.lasts(candidates[candidate]) || m.lasts(candidates[everyCandidate])
}

// again returns the refusal that follows a known refusal. The delay is twice the known delay if the
// known refusal still lengthens the next delay.
func (m *memory) again(known *refusal, delay time.Duration, budgets sets.Set[types.NamespacedName]) *refusal {
	if m.counts(known) {
		delay = min(2*known.delay, maxRefusalDelay)
	}
	return &refusal{until: m.clock.Now().Add(delay), delay: delay, budgets: budgets}
}

// counts reports whether a known refusal lengthens the delay of the next refusal.
func (m *memory) counts(known *refusal) bool {
	return known != nil && m.clock.Now().Before(known.until.Add(maxRefusalDelay))
}

// lasts reports whether a known refusal is still in effect.
func (m *memory) lasts(known *refusal) bool { return known != nil && m.clock.Now().Before(known.until) }

// nextTry returns the time at which the first excluded candidate or refused pod may be used again,
// or zero if there is none.
func (m *memory) nextTry(preemptor types.UID, pods sets.Set[types.UID]) (first time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	candidates := m.leftOut[preemptor]
	if every := candidates[everyCandidate]; m.lasts(every) {
		return every.until
	}
	refusals := slices.Collect(maps.Values(candidates))
	for uid := range pods {
		refusals = append(refusals, m.refused[uid])
	}
	for _, known := range refusals {
		if m.lasts(known) && (first.IsZero() || known.until.Before(first)) {
			first = known.until
		}
	}
	return first
}

// refuse excludes a pod as a victim, because its eviction was refused.
func (m *memory) refuse(pod types.UID, budgets sets.Set[types.NamespacedName]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.refused[pod]
	if !m.counts(known) && len(m.refused) >= maxRefusals {
		m.forgetOldestRefusals()
	}
	m.refused[pod] = m.again(known, refusalDelay, budgets)
}

// forgetOldestRefusals removes the refusals that lengthen no further delay. If there is none, it
// removes the refusal that ends first.
func (m *memory) forgetOldestRefusals() {
	var first types.UID
	for uid, known := range m.refused {
		if !m.counts(known) {
			delete(m.refused, uid)
		} else if first == "" || known.until.Before(m.refused[first].until) {
			first = uid
		}
	}
	if len(m.refused) >= maxRefusals {
		delete(m.refused, first)
	}
}

func (m *memory) isRefused(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lasts(m.refused[pod])
}

// wasRefused reports whether a refusal of the pod, which may have ended, still lengthens the delay
// of the next one.
func (m *memory) wasRefused(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts(m.refused[pod])
}

// forgetRefusals ends the refusals of pods whose budget allows more disruptions.
func (m *memory) forgetRefusals(budget types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, known := range m.refused {
		if known.budgets.Has(budget) {
			delete(m.refused, uid)
		}
	}
	for _, candidates := range m.leftOut {
		// Keep the delay: repeated refusals must make attempts less frequent.
		for _, known := range candidates {
			if known.budgets.Has(budget) {
				known.until = m.clock.Now()
			}
		}
	}
}

func (m *memory) forgetPod(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leaving, pod)
	delete(m.leftOut, pod)
	delete(m.refused, pod)
}
