// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/drain/surge"
)

// drainSimulation is a Deployment all of whose pods are asked to leave, with the other actors of a
// drain: the controllers of Deployments and budgets, which lag behind, kubelets of different
// speeds, the lane of the budget, and webhooks. It extends simulation, whose actors act in a random
// order, by the pace at which they act in a cluster.
type drainSimulation struct {
	simulation
	n int
	// limit is the budget, nil if there is none.
	limit *policyv1.PodDisruptionBudget
	// readyAt has, by name, the times at which started pods get ready.
	readyAt map[string]time.Time
	// refusedUntil has the time until which a webhook refuses pods, by name. blockedAfter is the
	// time after which the lane reports that.
	refusedUntil map[string]time.Time
	// answersPerSync is how many questions the API server answers in one sync, which then takes as
	// long as a sync may take to ask; 0 means that it answers all immediately.
	answersPerSync int
	slowest        int
	// pause is how long the ReplicaSet controller pauses before it acts, and actsAt the time at
	// which it acts next.
	pause    time.Duration
	actsAt   time.Time
	observed int64
	moved    int
	wake     time.Time
	dirty    bool
	// flaps is set if available pods become unready for some seconds. lost is 1 if such a pod is
	// missing, and available the last number of available pods.
	flaps           bool
	lost, available int
}

// drainCase describes a drainSimulation.
type drainCase struct {
	n                            int
	minAvailable, maxUnavailable string
	seed                         uint64
	refused                      int
	refusedFor                   time.Duration
	trickles                     bool
	answersPerSync, slowest      int
	minReadySeconds              int32
	flaps                        bool
}

func newDrainSimulation(t *testing.T, c drainCase) *drainSimulation {
	t.Helper()
	rng := rand.New(rand.NewPCG(c.seed, 2))
	w := &drainSimulation{
		simulation: simulation{t: t, rng: rng, now: start, wish: int32(c.n), lowered: map[string]bool{}, byUs: true},
		n:          c.n, readyAt: map[string]time.Time{}, refusedUntil: map[string]time.Time{},
		answersPerSync: c.answersPerSync, slowest: max(c.slowest, 1), dirty: true, flaps: c.flaps,
	}
	w.d = newDeployment(w.wish)
	w.d.Spec.MinReadySeconds = c.minReadySeconds
	if c.minAvailable != "" || c.maxUnavailable != "" {
		w.limit = &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: testName, Generation: 1}}
		w.limit.Status.ObservedGeneration = 1
		if value := intstr.Parse(c.minAvailable); c.minAvailable != "" {
			w.limit.Spec.MinAvailable = &value
		}
		if value := intstr.Parse(c.maxUnavailable); c.maxUnavailable != "" {
			w.limit.Spec.MaxUnavailable = &value
		}
	}
	for i := range c.n {
		w.pods = append(w.pods, w.newPod(true))
		w.pods[i].CreationTimestamp = metav1.NewTime(start.Add(-time.Hour))
		w.pods[i].Status.Conditions[0].LastTransitionTime = metav1.NewTime(start.Add(-time.Hour))
		if i < c.refused {
			w.refusedUntil[w.pods[i].Name] = start.Add(c.refusedFor)
		}
	}
	w.disruptionController()
	if !c.trickles {
		w.ask(c.n)
	}
	return w
}

// ask asks at most as many further pods to leave.
func (w *drainSimulation) ask(most int) {
	for i := range w.pods {
		if p := &w.pods[i]; most > 0 && p.evacuation == nil && p.CreationTimestamp.Time.Before(start) {
			leaves(ours)(p)
			p.evacuation.Status.ActiveEvacuatorSince = &metav1.Time{Time: w.now}
			w.moved, w.dirty = w.moved+1, true
			most--
		}
	}
}

// started returns how many pods were started since the drain began.
func (w *drainSimulation) started() int { return w.next - w.n }

func (w *drainSimulation) isRefused(p *pod) bool { return w.now.Before(w.refusedUntil[p.Name]) }

func (w *drainSimulation) disruptionController() {
	if w.limit == nil {
		return
	}
	b := w.limit.DeepCopy()
	healthy := 0
	for i := range w.pods {
		if p := &w.pods[i]; pdb.IsReady(p.Pod) && !p.isEvicting {
			healthy++
		}
	}
	b.Status.ExpectedPods, b.Status.CurrentHealthy = surge.Replicas(w.d), int32(healthy)
	b.Status.DesiredHealthy = pdb.DesiredHealthy(b, b.Status.ExpectedPods)
	b.Status.DisruptionsAllowed = max(0, b.Status.CurrentHealthy-b.Status.DesiredHealthy)
	w.dirty = w.dirty || b.Status.DisruptionsAllowed != w.limit.Status.DisruptionsAllowed || b.Status.CurrentHealthy != w.limit.Status.CurrentHealthy
	w.limit = b
}

func (w *drainSimulation) replicaSetController() {
	if w.observed == w.d.Generation && len(w.pods) == int(surge.Replicas(w.d)) {
		w.actsAt = w.now.Add(w.pause)
		return
	}
	if w.now.Before(w.actsAt) {
		return
	}
	w.actsAt = w.now.Add(w.pause)
	w.observed, w.dirty = w.d.Generation, true
	w.replicaSet()
	for i := range w.pods {
		if p := &w.pods[i]; !pdb.IsReady(p.Pod) && w.readyAt[p.Name].IsZero() {
			w.readyAt[p.Name] = w.now.Add(time.Duration(1+w.rng.IntN(w.slowest)) * time.Second)
		}
	}
}

func (w *drainSimulation) kubelets() {
	for i := range w.pods {
		if p := &w.pods[i]; !pdb.IsReady(p.Pod) && !w.now.Before(w.readyAt[p.Name]) {
			p.Pod = p.DeepCopy()
			p.Status.Conditions[0].Status = "True"
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.now)
			w.dirty = true
		}
	}
}

// flap makes an available pod unready for some seconds, unless another one is missing. After two
// scale-downs in a row that delete such a pod, the Deployment gets no surge for a while.
func (w *drainSimulation) flap() {
	if !w.flaps || w.lost > 0 || w.rng.IntN(20) > 0 || w.memory.misses > 0 && w.isClaimed() {
		return
	}
	if p := &w.pods[w.rng.IntN(len(w.pods))]; w.isAvailable(p) {
		p.Pod = p.DeepCopy()
		unready(p)
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.now)
		w.readyAt[p.Name] = w.now.Add(time.Duration(1+w.rng.IntN(5)) * time.Second)
		w.log = append(w.log, p.Name+" flaps")
		w.lost, w.dirty = 1, true
	}
}

func (w *drainSimulation) isAvailable(p *pod) bool {
	return (&situation{now: w.now, deployment: w.d}).isAvailable(p)
}

// lane finishes the evictions that were granted in the last second, and sends others.
func (w *drainSimulation) lane() {
	kept := w.pods[:0]
	for i := range w.pods {
		if w.pods[i].isEvicting {
			w.dirty = true
			continue
		}
		kept = append(kept, w.pods[i])
	}
	clear(w.pods[len(kept):])
	w.pods = kept
	if w.isClaimed() {
		return
	}
	for i := range w.pods {
		p := &w.pods[i]
		if p.evacuation == nil || p.evacuation.Status.ActiveEvacuatorClass != lanes {
			continue
		}
		if w.isRefused(p) {
			if !w.now.Before(p.evacuation.Status.ActiveEvacuatorSince.Add(5 * time.Minute)) {
				p.evacuation = p.evacuation.DeepCopy()
				blocked(p)
				p.evacuation.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.now)
			}
			continue
		}
		if w.limit != nil && pdb.IsReady(p.Pod) {
			if w.limit.Status.DisruptionsAllowed <= 0 {
				continue
			}
			w.limit = w.limit.DeepCopy()
			w.limit.Status.DisruptionsAllowed--
		}
		p.isEvicting, w.dirty = true, true
		if w.limit == nil {
			return
		}
	}
}

// sync runs one sync of our controller.
func (w *drainSimulation) sync() {
	if !w.dirty && (w.wake.IsZero() || w.now.Before(w.wake)) {
		return
	}
	w.dirty, w.wake = false, time.Time{}
	pods := append([]pod(nil), w.pods...)
	for i := range pods {
		if w.limit != nil {
			pods[i].budgets = []*policyv1.PodDisruptionBudget{w.limit}
		}
	}
	s := at(0, w.d, pods...)
	s.now, s.memory = w.now, w.memory
	d := decide(s)
	w.judge(d)
	w.wake = d.wake
	if len(d.ask) > 0 {
		d.memory.answers, w.dirty = w.answer(s, d.ask), true
	}
	for _, p := range d.restore {
		w.annotate(p.Name, false)
	}
	for _, p := range d.lower {
		w.annotate(p.Name, true)
	}
	w.dirty = w.dirty || len(d.lower)+len(d.restore) > 0
	if d.scale != nil {
		if len(d.ask) > 0 {
			w.fail("we ask before we scale")
		}
		if len(d.removed) > 0 {
			for i := range w.pods {
				if w.pods[i].isEvicting {
					w.dirty = true
					return
				}
			}
			for _, p := range d.removed {
				if w.isRefused(p) {
					w.fail("%s is removed although a webhook refuses it", p.Name)
				}
			}
		}
		w.scale(d.scale)
		w.remember(d.removed)
		w.dirty = true
	}
	for _, r := range d.reports {
		w.hear(r)
		w.dirty = w.dirty || r.completed
	}
	w.memory = d.memory
}

// judge fails if a decision lets available pods leave although too few pods would stay that are
// available at that moment, or if a scale-down deletes more ready pods than the budget allows. A
// surge without progress waits for half of its timeout for pods that flap.
func (w *drainSimulation) judge(d decision) {
	leave, ready := uidsOf(d.removed), int32(0)
	for _, p := range d.removed {
		if pdb.IsReady(p.Pod) {
			ready++
		}
	}
	if w.limit != nil && surge.Removable(w.limit, surge.Replicas(w.d), ready) < ready {
		w.fail("%d ready pods are deleted under %+v", ready, w.limit.Status)
	}
	for _, r := range d.reports {
		if r.completed {
			leave[r.evacuation.Spec.PodRef.UID] = struct{}{}
		}
	}
	available := 0
	for i := range w.pods {
		if _, is := leave[w.pods[i].UID]; is && w.isAvailable(&w.pods[i]) {
			available++
		}
	}
	// A pod that a webhook refuses for long gives its extra replica away.
	if stay := w.staying(leave); available > 0 && stay < w.n && len(w.refusedUntil) == 0 {
		if !w.now.Before(d.memory.movedAt().Add(150 * time.Second)) {
			w.lost = max(w.lost, w.n-stay)
			return
		}
		w.report()
		w.fail("%d available pods leave, and %d stay, want %d", available, stay, w.n)
	}
}

// staying counts the available pods that stay, except the given ones.
func (w *drainSimulation) staying(except map[types.UID]struct{}) int {
	stay, isClaimed := 0, w.isClaimed()
	for i := range w.pods {
		p := &w.pods[i]
		if _, is := except[p.UID]; !is && w.isAvailable(p) && !p.mayGo() && !(isClaimed && slices.Contains(w.removed, p.UID)) {
			stay++
		}
	}
	return stay
}

// answer answers questions whether pods may leave.
func (w *drainSimulation) answer(s situation, pods []*pod) map[types.UID]consent {
	answers := map[types.UID]consent{}
	for uid, known := range s.memory.answers {
		answers[uid] = known
	}
	for i, p := range pods {
		if w.answersPerSync > 0 && i == w.answersPerSync {
			w.now = w.now.Add(askFor)
			break
		}
		answer := consent{Consent: eviction.ConsentGiven, at: w.now}
		switch {
		case w.isRefused(p):
			answer.Consent, answer.text = eviction.ConsentDenied, "no"
		case w.limit != nil && pdb.IsReady(p.Pod) && w.limit.Status.DisruptionsAllowed <= 0:
			answer.Consent = eviction.ConsentLater
		}
		answers[p.UID] = answer
	}
	return answers
}

// run simulates at most a number of seconds, until the drain has ended.
func (w *drainSimulation) run(seconds int) {
	w.t.Helper()
	for range seconds {
		w.now = w.now.Add(time.Second)
		if w.moved < w.n {
			w.ask(w.rng.IntN(2 + w.n/4))
		}
		w.kubelets()
		w.flap()
		w.controllers()
		w.check()
		if w.moved == w.n && w.isOver() {
			return
		}
	}
	w.report()
	w.fail("the drain does not end")
}

// controllers lets the controllers act for a second. Those of Kubernetes sometimes lag behind.
func (w *drainSimulation) controllers() {
	w.lane()
	if w.rng.IntN(3) > 0 {
		w.replicaSetController()
	}
	if w.rng.IntN(3) > 0 {
		w.disruptionController()
	}
	w.sync()
}

// availablePods returns the number of available pods.
func (w *drainSimulation) availablePods() int {
	available := 0
	for i := range w.pods {
		if w.isAvailable(&w.pods[i]) {
			available++
		}
	}
	return available
}

// check fails if the budget is broken, or if fewer pods are available than the users want. A pod
// that flaps may be missing until as many pods are available that stay.
func (w *drainSimulation) check() {
	ready, available := 0, w.availablePods()
	for i := range w.pods {
		if pdb.IsReady(w.pods[i].Pod) {
			ready++
		}
	}
	// The deployment controller writes the number to the status.
	w.available, w.dirty = available, w.dirty || available != w.available
	if w.staying(nil) >= w.n {
		w.lost = 0
	}
	// A pod that a webhook refuses for long gives its extra replica away.
	if available+w.lost < w.n && len(w.refusedUntil) == 0 {
		w.report()
		w.fail("%d pods are available, want %d", available, w.n)
	}
	if w.limit != nil && ready+w.lost < int(pdb.DesiredHealthy(w.limit, w.wish)) {
		w.report()
		w.fail("the budget is broken: %d pods are ready", ready)
	}
}

func (w *drainSimulation) isOver() bool {
	if len(w.pods) != w.n || surge.Replicas(w.d) != w.wish || w.d.Annotations != nil {
		return false
	}
	for i := range w.pods {
		if w.pods[i].evacuation != nil || deletioncost.IsLowered(w.pods[i].Pod) {
			return false
		}
	}
	return true
}

func (w *drainSimulation) report() {
	for i := range w.pods {
		if p := &w.pods[i]; p.evacuation != nil {
			w.t.Logf("%s of %s, %d of %d pods: %s", p.Name, p.evacuation.Status.ActiveEvacuatorClass, len(w.pods), surge.Replicas(w.d), p.evacuation.Status.Message)
			break
		}
	}
	w.log = w.log[max(0, len(w.log)-40):]
}

// budgets are the budgets of the simulations of drains, by name.
func drainCases(n int) map[string]drainCase {
	return map[string]drainCase{
		"no budget": {n: n}, "minAvailable 1": {n: n, minAvailable: "1"}, "minAvailable of all": {n: n, minAvailable: fmt.Sprint(n)},
		"minAvailable 75%": {n: n, minAvailable: "75%"}, "minAvailable 90%": {n: n, minAvailable: "90%"},
		"maxUnavailable 10%": {n: n, maxUnavailable: "10%"}, "maxUnavailable 25%": {n: n, maxUnavailable: "25%"},
		"maxUnavailable 1": {n: n, maxUnavailable: "1"},
	}
}

// isDeclined reports whether the Deployment gets no surge, since even with one its budget never
// allows an eviction, or whether the budget needs more extra replicas than pods.
func (c drainCase) needsMore() bool {
	if c.minAvailable == "" || c.minAvailable[len(c.minAvailable)-1] != '%' {
		return false
	}
	value := intstr.Parse(c.minAvailable)
	b := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &value}}
	d := newDeployment(int32(c.n))
	_, never := surge.NeverAllows(b, int32(c.n), surge.Most(d, int32(c.n)), 0)
	return never || surge.ExtraFor(b, int32(c.n), surge.Most(d, int32(c.n))) > 1
}

// limitIsMet reports whether the case has no budget, or one that requires all pods.
func (c drainCase) limitIsMet() bool {
	return c.maxUnavailable == "" && (c.minAvailable == "" || c.minAvailable == fmt.Sprint(c.n))
}

// TestDrainStartsOnePodForEachThatLeaves simulates drains of all pods of a Deployment. Exactly as
// many pods must be started as leave, no budget may be broken, and at all times at least as many
// pods must be ready as before.
func TestDrainStartsOnePodForEachThatLeaves(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 100, 600} {
		seeds := uint64(max(1, 30/n))
		for name, c := range drainCases(n) {
			if c.needsMore() {
				continue
			}
			t.Run(fmt.Sprintf("%d pods, %s", n, name), func(t *testing.T) {
				for seed := range seeds {
					for _, trickles := range []bool{false, true} {
						if n == 600 && trickles {
							continue
						}
						c.seed, c.trickles, c.slowest = seed, trickles, min(8, 1+600/n)
						w := newDrainSimulation(t, c)
						w.run(40 * 600)
						if w.started() != n {
							w.report()
							w.fail("seed %d, trickles %v: %d pods were started for %d", seed, trickles, w.started(), n)
						}
					}
				}
			})
		}
	}
}

// TestExchangeWaitsForRefusedPods simulates drains in which a webhook refuses some of the pods for
// some time. The other pods must not wait for these, and only the refused pods may cost a pod more.
// The simulation has no second surge for pods that are up for eviction, so the budgets are those
// that let the refused pods go without one.
func TestExchangeWaitsForRefusedPods(t *testing.T) {
	for _, n := range []int{1, 10, 100} {
		for name, c := range drainCases(n) {
			if c.needsMore() || c.limitIsMet() {
				continue
			}
			t.Run(fmt.Sprintf("%d pods, %s", n, name), func(t *testing.T) {
				for _, refusedFor := range []time.Duration{time.Minute, 20 * time.Minute} {
					for seed := range uint64(10) {
						c.seed, c.refused, c.refusedFor, c.slowest = seed, 1+int(seed)%max(1, n/3), refusedFor, 20
						w := newDrainSimulation(t, c)
						w.run(4 * 3600)
						if w.started() < n || w.started() > n+5*c.refused {
							w.report()
							w.fail("seed %d: %d pods were started for %d, of which %d were refused", seed, w.started(), n, c.refused)
						}
					}
				}
			})
		}
	}
}

// TestExchangeWithASlowReplicaSet simulates drains in which the ReplicaSet controller needs longer
// than evictions wait for it, since it deletes pods of other Deployments as well.
func TestExchangeWithASlowReplicaSet(t *testing.T) {
	for name, c := range drainCases(10) {
		if c.needsMore() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				c.seed, c.slowest = seed, 8
				w := newDrainSimulation(t, c)
				w.pause = 6 * replaceTime
				w.run(4 * 3600)
			}
		})
	}
}

// TestExchangeWithFlappingPods simulates drains of pods that become unready for some seconds and
// are available only after minReadySeconds.
func TestExchangeWithFlappingPods(t *testing.T) {
	for _, n := range []int{2, 3, 10} {
		for name, c := range drainCases(n) {
			if c.needsMore() {
				continue
			}
			t.Run(fmt.Sprintf("%d pods, %s", n, name), func(t *testing.T) {
				for seed := range uint64(20) {
					c.seed, c.slowest, c.minReadySeconds, c.flaps = seed, 8, 30, true
					newDrainSimulation(t, c).run(4 * 3600)
				}
			})
		}
	}
}

// TestExchangeWithSlowAnswers simulates drains in which the API server needs so long to answer that
// its first answers no longer count after the last one.
func TestExchangeWithSlowAnswers(t *testing.T) {
	for name, c := range drainCases(100) {
		if c.needsMore() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			c.answersPerSync, c.slowest = 4, 8
			w := newDrainSimulation(t, c)
			w.run(4 * 3600)
			if w.started() != 100 {
				w.report()
				w.fail("%d pods were started for 100", w.started())
			}
		})
	}
}
