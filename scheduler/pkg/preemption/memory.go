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
	// A refused pod is held back for refusalDelay, and after each further refusal for twice as
	// long, up to maxRefusalDelay. A pod that was free for maxRefusalDelay starts again.
	refusalDelay    = 10 * time.Second
	maxRefusalDelay = 5 * time.Minute

	// maxRefusals is the maximum number of refused pods that are remembered. Beyond it, the one
	// that is free first is forgotten, and may be refused again.
	maxRefusals = 10_000

	// A node whose victims were refused is left out of the search of that pending pod for
	// leaveOutDelay, and after each further refusal for twice as long, up to maxRefusalDelay.
	leaveOutDelay = time.Second
	// everyCandidate, as a candidate that is left out, stands for all of them.
	everyCandidate = ""
	// noPreemptor stands for a victim that no pending pod or group waits for.
	noPreemptor types.UID = ""
)

// memory is what the gate remembers of pods that exist. It is lost with the process.
type memory struct {
	pods  corelisters.PodLister
	clock clock.PassiveClock

	mu sync.Mutex
	// leaving has the victims that were evicted and are not gone yet.
	leaving map[types.UID]leavingPod
	// claimed has the victims that a candidate evicts at this moment. Another preemptor may find
	// the same ones before the answer.
	claimed sets.Set[types.UID]
	// leftOut has the candidates of each pending pod or group whose victims were refused: the
	// names of nodes, and for groups that of upstream's domain.
	leftOut map[types.UID]map[string]*refusal
	// refused has the pods that the Eviction API has refused.
	refused map[types.UID]*refusal
}

// leavingPod is a victim that was evicted.
type leavingPod struct {
	*corev1.Pod
	// preemptors are the pending pods or groups that got its place.
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

// addLeaving remembers a victim until it is gone. The lister changes before the handlers are
// called, so that a victim that is in it now is forgotten by forgetPod.
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

// hasEvicted reports whether a pod was evicted and is not gone yet. The watch may be behind.
func (m *memory) hasEvicted(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, leaving := m.leaving[pod]
	return leaving
}

// claim keeps other candidates from evicting the victims until they are released. It returns a
// victim that another one evicts or has evicted; then none is claimed.
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

// release ends a claim.
func (m *memory) release(victims []*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, pod := range victims {
		m.claimed.Delete(pod.UID)
	}
}

// current returns the pod as it is now, or nil if it is gone.
func (m *memory) current(known *corev1.Pod) *corev1.Pod {
	pod, err := m.pods.Pods(known.Namespace).Get(known.Name)
	if err != nil || pod.UID != known.UID {
		return nil
	}
	return pod
}

// awaitsVictims reports whether a victim is leaving a node for which its preemptor is nominated. As
// upstream has it, the preemptor does not look for others then.
func (m *memory) awaitsVictims(preemptor types.UID, nominated func(node string) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.leaving {
		// The handler that forgets the pod may come after the one that tries the preemptor again.
		if l.preemptors.Has(preemptor) && nominated(l.Spec.NodeName) && m.current(l.Pod) != nil {
			return true
		}
	}
	return false
}

// leaveOut keeps a candidate out of the searches of a pending pod or group, so that its next search
// takes another one. It ends with its time, which is returned, or when one of the budgets opens.
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

// isLeftOut reports whether a candidate is left out of the searches of a pending pod or group.
func (m *memory) isLeftOut(preemptor types.UID, candidate string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	candidates := m.leftOut[preemptor]
	return m.lasts(candidates[candidate]) || m.lasts(candidates[everyCandidate])
}

// again returns the next refusal of what was refused before, or never.
func (m *memory) again(known *refusal, delay time.Duration, budgets sets.Set[types.NamespacedName]) *refusal {
	if m.counts(known) {
		delay = min(2*known.delay, maxRefusalDelay)
	}
	return &refusal{until: m.clock.Now().Add(delay), delay: delay, budgets: budgets}
}

// counts reports whether a refusal makes the next one longer.
func (m *memory) counts(known *refusal) bool {
	return known != nil && m.clock.Now().Before(known.until.Add(maxRefusalDelay))
}

// lasts reports whether something is refused now.
func (m *memory) lasts(known *refusal) bool { return known != nil && m.clock.Now().Before(known.until) }

// nextTry returns when the first candidate of a pending pod or group, or the first of the pods,
// returns to its searches. It is zero if none is refused.
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

// refuse holds a pod back that the Eviction API has refused.
func (m *memory) refuse(pod types.UID, budgets sets.Set[types.NamespacedName]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.refused[pod]
	if !m.counts(known) && len(m.refused) >= maxRefusals {
		m.forgetOldestRefusals()
	}
	m.refused[pod] = m.again(known, refusalDelay, budgets)
}

// forgetOldestRefusals makes room for one more.
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

// forgetRefusals forgets the refusals of pods of a budget that has opened since.
func (m *memory) forgetRefusals(budget types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, known := range m.refused {
		if known.budgets.Has(budget) {
			delete(m.refused, uid)
		}
	}
	for _, candidates := range m.leftOut {
		// The delay stays: what was refused repeatedly is tried less often.
		for _, known := range candidates {
			if known.budgets.Has(budget) {
				known.until = m.clock.Now()
			}
		}
	}
}

// forgetPod forgets a pod that is gone.
func (m *memory) forgetPod(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leaving, pod)
	delete(m.leftOut, pod)
	delete(m.refused, pod)
}
