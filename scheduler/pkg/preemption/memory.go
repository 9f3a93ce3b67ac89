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
)

// memory is what the gate remembers of pods that exist. It is lost with the process.
type memory struct {
	pods  corelisters.PodLister
	clock clock.PassiveClock

	mu sync.Mutex
	// leaving has the victims that were evicted and are not gone yet.
	leaving map[types.UID]leavingPod
	// paused has the time until which a pending pod or group does not look for victims.
	paused map[types.UID]time.Time
	// refused has the pods that the Eviction API has refused.
	refused map[types.UID]*refusal
}

// leavingPod is a victim that was evicted.
type leavingPod struct {
	types.NamespacedName
	node string
	// preemptor is the pending pod or group for which it was evicted.
	preemptor types.UID
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
		paused:  map[types.UID]time.Time{},
		refused: map[types.UID]*refusal{},
	}
}

// addLeaving remembers a victim until it is gone. The lister changes before the handlers are
// called, so that a victim that is in it now is forgotten by forgetPod.
func (m *memory) addLeaving(preemptor types.UID, victim *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := leavingPod{types.NamespacedName{Namespace: victim.Namespace, Name: victim.Name}, victim.Spec.NodeName, preemptor}
	if m.exists(victim.UID, l.NamespacedName) {
		m.leaving[victim.UID] = l
	}
}

func (m *memory) exists(uid types.UID, name types.NamespacedName) bool {
	pod, err := m.pods.Pods(name.Namespace).Get(name.Name)
	return err == nil && pod.UID == uid
}

// eligible reports whether a pending pod or group may look for victims, and if not, why. It does
// not while a victim of its own is leaving a node for which it is nominated, as upstream has it.
func (m *memory) eligible(preemptor types.UID, nominated func(node string) bool) (bool, string) {
	if m.isPaused(preemptor) {
		return false, "not eligible because its victims were refused a moment ago."
	}
	if m.awaitsVictims(preemptor, nominated) {
		return false, "not eligible because a pod that was evicted for it is not gone yet."
	}
	return true, ""
}

// awaitsVictims reports whether a victim is leaving a node for which its preemptor is nominated.
func (m *memory) awaitsVictims(preemptor types.UID, nominated func(node string) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, l := range m.leaving {
		// The handler that forgets the pod may come after the one that tries the preemptor again.
		if l.preemptor == preemptor && nominated(l.node) && m.exists(uid, l.NamespacedName) {
			return true
		}
	}
	return false
}

// pause keeps a pending pod or group from looking for victims.
func (m *memory) pause(preemptor types.UID, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, old := range m.paused {
		if !m.clock.Now().Before(old) {
			delete(m.paused, uid)
		}
	}
	m.paused[preemptor] = until
}

func (m *memory) isPaused(preemptor types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	until, paused := m.paused[preemptor]
	return paused && m.clock.Now().Before(until)
}

// refuse holds a pod back that the Eviction API has refused.
func (m *memory) refuse(pod types.UID, budgets sets.Set[types.NamespacedName]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	delay := refusalDelay
	if known, ok := m.refused[pod]; ok && now.Before(known.until.Add(maxRefusalDelay)) {
		delay = min(2*known.delay, maxRefusalDelay)
	} else if len(m.refused) >= maxRefusals {
		m.forgetOldestRefusals(now)
	}
	m.refused[pod] = &refusal{until: now.Add(delay), delay: delay, budgets: budgets}
}

// forgetOldestRefusals makes room for one more.
func (m *memory) forgetOldestRefusals(now time.Time) {
	var first types.UID
	for uid, known := range m.refused {
		if !now.Before(known.until.Add(maxRefusalDelay)) {
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
	_, refused := m.refusedUntil(sets.New(pod))
	return refused
}

// refusedUntil returns when the first of the pods that are refused may be tried again.
func (m *memory) refusedUntil(pods sets.Set[types.UID]) (first time.Time, refused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range pods {
		known, ok := m.refused[uid]
		if !ok || !m.clock.Now().Before(known.until) {
			continue
		}
		if !refused || known.until.Before(first) {
			first, refused = known.until, true
		}
	}
	return first, refused
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
}

// forgetPod forgets a pod that is gone.
func (m *memory) forgetPod(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leaving, pod)
	delete(m.paused, pod)
	delete(m.refused, pod)
}
