// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/drain/surge"
)

// simulation is a Deployment with all actors that change it: its controllers, the kubelets, the
// evictions, its users, and our controller, which may crash after any write. It uses the decisions
// of the real controller.
type simulation struct {
	t   *testing.T
	rng *rand.Rand
	log []string

	now  time.Time
	d    *appsv1.Deployment
	pods []pod
	next int
	// wish is the replica count that the users want. byUs is set if our controller has set the
	// current replica count.
	wish int32
	byUs bool
	// budget is the number of pods that must be ready after an eviction; 0 means no budget.
	budget int
	// never is set if the budget never allows an eviction, but the Deployment has surge: Always.
	never  bool
	memory memory
	// surplus and scaledDown are kept as in the state of the controller.
	surplus    map[types.UID]struct{}
	scaledDown time.Time
	// removed are the pods that the last scale-down has to delete.
	removed []types.UID
	// lowered has the pods whose deletion cost was lowered, each with the class that was active.
	lowered map[string]bool
	// stale is an earlier cached state of the Deployment.
	stale *appsv1.Deployment
	// calm is set if users change nothing. Then at least wish pods must always be ready.
	calm bool
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	w := &simulation{t: t, rng: rng, now: start, wish: 1 + rng.Int32N(4), calm: rng.IntN(3) == 0, lowered: map[string]bool{}}
	w.d = newDeployment(w.wish, surging([]string{"1", "2", "50%", "100%"}[rng.IntN(4)]))
	if rng.IntN(2) == 0 {
		w.budget = 1 + rng.IntN(int(w.wish))
	}
	for range w.wish {
		w.pods = append(w.pods, w.newPod(true))
	}
	return w
}

func (w *simulation) newPod(ready bool) pod {
	w.next++
	p := newTestPod(fmt.Sprintf("web-%d", w.next), func(p *pod) {
		p.Spec.NodeName = fmt.Sprintf("node-%d", w.rng.IntN(3))
		p.CreationTimestamp = metav1.NewTime(w.now)
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.now)
	})
	if !ready {
		unready(&p)
	}
	return p
}

func (w *simulation) ready() int {
	n := 0
	for i := range w.pods {
		if (&situation{}).isAvailable(&w.pods[i]) {
			n++
		}
	}
	return n
}

// write changes the Deployment as the API does.
func (w *simulation) write(what string, mod func(*appsv1.Deployment)) {
	w.log = append(w.log, what)
	d := w.d.DeepCopy()
	mod(d)
	d.Generation++
	d.ResourceVersion = fmt.Sprint(d.Generation)
	w.d = d
}

// replicaSet creates or deletes pods up to the replica count. As in a cluster, it first deletes
// unready pods, then pods with a lower cost, then pods on nodes with more ready pods of the
// ReplicaSet, then younger pods.
func (w *simulation) replicaSet() {
	want, siblings := int(surge.Replicas(w.d)), map[string]int{}
	for i := range w.pods {
		if p := &w.pods[i]; (&situation{}).isAvailable(p) {
			siblings[p.Spec.NodeName]++
		}
	}
	slices.SortStableFunc(w.pods, func(a, b pod) int {
		return cmp.Or(w.rank(&b)-w.rank(&a), siblings[a.Spec.NodeName]-siblings[b.Spec.NodeName], a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
	for len(w.pods) > want {
		w.log = append(w.log, "replica set removes "+w.pods[len(w.pods)-1].Name)
		w.pods = w.pods[:len(w.pods)-1]
	}
	for len(w.pods) < want {
		w.pods = append(w.pods, w.newPod(false))
		w.log = append(w.log, "replica set makes "+w.pods[len(w.pods)-1].Name)
	}
	w.d = w.d.DeepCopy()
	w.d.Status.ObservedGeneration = w.d.Generation
	w.d.Status.Replicas, w.d.Status.UpdatedReplicas = int32(want), int32(want)
}

// rank returns the position of a pod in the order of deletion. Pods with a higher rank are deleted
// later.
func (w *simulation) rank(p *pod) int {
	rank := 0
	if (&situation{}).isAvailable(p) {
		rank += 2
	}
	if !deletioncost.IsLowered(p.Pod) {
		rank++
	}
	return rank
}

// kubelet makes one of the unready pods ready, and each of them within the surge timeout.
func (w *simulation) kubelet() {
	var waiting []*pod
	for i := range w.pods {
		if p := &w.pods[i]; !(&situation{}).isAvailable(p) {
			waiting = append(waiting, p)
		}
	}
	if len(waiting) == 0 {
		return
	}
	p := waiting[w.rng.IntN(len(waiting))]
	p.Status.Conditions[0].Status = "True"
	p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.now)
	w.log = append(w.log, p.Name+" is ready")
}

// eviction sends the eviction of a pod, which its budget allows or refuses, or deletes a pod whose
// eviction was allowed.
func (w *simulation) eviction() {
	for i := range w.pods {
		p := &w.pods[i]
		switch {
		case p.isEvicting:
			w.log = append(w.log, p.Name+" is evicted")
			w.pods = slices.Delete(w.pods, i, i+1)
		case p.evacuation == nil || p.evacuation.Status.ActiveEvacuatorClass != lanes || w.never:
			continue
		case (&situation{}).isAvailable(p) && (w.ready() <= w.budget || w.isClaimed()):
			continue
		default:
			p.isEvicting = true
			w.log = append(w.log, "the eviction of "+p.Name+" is granted")
		}
		return
	}
}

// isClaimed reports whether the last scale-down has not deleted its pods yet.
func (w *simulation) isClaimed() bool {
	return w.now.Before(w.scaledDown.Add(removeTime)) && len(w.pods) > int(surge.Replicas(w.d)) &&
		slices.ContainsFunc(w.pods, func(p pod) bool { return slices.Contains(w.removed, p.UID) })
}

// costs simulates the deletion-cost controller.
func (w *simulation) costs() {
	r, _ := readRecord(w.d, 1)
	for i := range w.pods {
		switch p := &w.pods[i]; {
		case p.evacuation == nil && deletioncost.IsLowered(p.Pod):
			if _, is := w.surplus[p.UID]; !is {
				w.annotate(p.Name, false)
			}
		case r.isUp() || p.evacuation == nil || w.now.Before(p.evacuation.Status.ActiveEvacuatorSince.Add(10*time.Second)):
		default:
			if turn := p.Name + p.evacuation.Status.ActiveEvacuatorClass; !w.lowered[turn] {
				w.lowered[turn] = true
				w.annotate(p.Name, true)
			}
		}
	}
}

func (w *simulation) askToLeave() {
	if len(w.pods) == 0 {
		return
	}
	if p := &w.pods[w.rng.IntN(len(w.pods))]; p.evacuation == nil {
		leaves(ours)(p)
		p.evacuation.Status.ActiveEvacuatorSince = &metav1.Time{Time: w.now}
		w.log = append(w.log, p.Name+" is asked to leave")
	}
}

func (w *simulation) cancel() {
	if len(w.pods) == 0 {
		return
	}
	if p := &w.pods[w.rng.IntN(len(w.pods))]; p.evacuation != nil {
		p.evacuation, p.staysUp = nil, true
		w.log = append(w.log, p.Name+" may stay")
	}
}

// user simulates the users. Writing the current replica count changes nothing.
func (w *simulation) user() {
	switch n := 1 + w.rng.Int32N(5); w.rng.IntN(4) {
	case 0:
		if n != surge.Replicas(w.d) {
			w.wish = n
			w.byUs = false
			w.write(fmt.Sprintf("user scales to %d", n), func(d *appsv1.Deployment) { d.Spec.Replicas = &n })
		}
	case 1:
		wish := w.wish
		w.byUs = w.byUs && wish == surge.Replicas(w.d)
		w.write(fmt.Sprintf("manifest is applied: %d", wish), func(d *appsv1.Deployment) { d.Spec.Replicas = &wish })
	case 2:
		if len(w.pods) > 0 {
			p := &w.pods[w.rng.IntN(len(w.pods))]
			p.Pod = p.DeepCopy()
			unready(p)
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.now)
			w.log = append(w.log, p.Name+" is sick")
		}
		w.write("paused or resumed", func(d *appsv1.Deployment) { d.Spec.Paused = !d.Spec.Paused })
	case 3:
		wish := w.wish
		w.byUs = w.byUs && wish == surge.Replicas(w.d)
		w.write(fmt.Sprintf("manifest is replaced: %d", wish),
			func(d *appsv1.Deployment) { d.Spec.Replicas, d.Annotations = &wish, nil })
	}
}

// us runs one sync of the controller, which may crash after each write.
func (w *simulation) us(mayCrash bool) {
	d := w.d
	if mayCrash && w.stale != nil && w.rng.IntN(4) == 0 {
		d = w.stale
	}
	pods := make([]pod, len(w.pods))
	for i := range w.pods {
		pods[i] = w.pods[i]
		if w.budget > 0 {
			minAvailable := int32(w.budget)
			under(ptrTo(minAvailable), nil, int32(len(w.pods)), int32(w.ready()))(&pods[i])
		}
		if w.never {
			under(nil, ptrTo(0), int32(len(w.pods)), int32(w.ready()))(&pods[i])
		}
	}
	s := at(0, d, pods...)
	s.now, s.memory = w.now, w.memory
	decided := decide(s)
	for range 3 {
		if len(decided.ask) > 0 {
			s.memory.answers = w.answers(s.memory.answers, decided.ask)
			decided = decide(s)
		}
	}
	if decided.surplus != nil || !w.now.Before(deletesUntil(w.scaledDown, d)) {
		w.surplus = decided.surplus
	}
	isEvicting := slices.ContainsFunc(w.pods, func(p pod) bool { return p.isEvicting })
	crash := func() bool {
		if !mayCrash || w.rng.IntN(12) > 0 {
			return false
		}
		w.memory, w.surplus = memory{}, nil
		return true
	}
	for _, p := range decided.restore {
		w.annotate(p.Name, false)
	}
	for _, p := range decided.lower {
		w.annotate(p.Name, true)
	}
	if crash() {
		return
	}
	if change := decided.scale; change != nil {
		if len(decided.ask) > 0 {
			w.fail("we ask before we scale")
		}
		if d.ResourceVersion != w.d.ResourceVersion || len(decided.removed) > 0 && isEvicting {
			return
		}
		w.scale(change)
		w.remember(decided.removed)
	}
	if crash() {
		return
	}
	for _, r := range decided.reports {
		w.hear(r)
		if crash() {
			return
		}
	}
	w.memory = decided.memory
}

// remember records the pods that a scale-down has to delete.
func (w *simulation) remember(removed []*pod) {
	w.removed = nil
	for _, p := range removed {
		w.removed = append(w.removed, p.UID)
	}
}

// answers adds the answers of the API server to the question whether pods may leave.
func (w *simulation) answers(known map[types.UID]consent, pods []*pod) map[types.UID]consent {
	answers := maps.Clone(known)
	if answers == nil {
		answers = map[types.UID]consent{}
	}
	for _, p := range pods {
		answer := eviction.ConsentGiven
		if (&situation{}).isAvailable(p) && !w.never && w.ready() <= w.budget {
			answer = eviction.ConsentLater
		}
		answers[p.UID] = consent{Consent: answer, at: w.now}
	}
	return answers
}

// scale applies the scaling of a decision.
func (w *simulation) scale(change *scaling) {
	if r, _ := readRecord(w.d, 1); r.isUp() && change.value != nil && !w.byUs {
		change = &scaling{}
	}
	value := change.value
	text := "record changes"
	if value != nil {
		text = fmt.Sprintf("we scale to %d", *value)
		w.byUs = true
		if *value < surge.Replicas(w.d) {
			w.scaledDown = w.now
		}
		if *value < w.wish {
			w.fail("we scale to %d, the users want %d", *value, w.wish)
		}
	}
	w.write(text, func(d *appsv1.Deployment) {
		if value != nil {
			d.Spec.Replicas = value
		}
		d.Annotations = nil
		if change.record != nil {
			annotated(*change.record)(d)
		}
	})
}

func (w *simulation) annotate(name string, lowered bool) {
	for i := range w.pods {
		if p := &w.pods[i]; p.Name == name {
			p.Pod = p.DeepCopy()
			p.Annotations = nil
			if lowered {
				cheapest(p)
			}
			w.log = append(w.log, fmt.Sprintf("cost of %s lowered: %v", name, lowered))
		}
	}
}

// hear applies a report. If it reports completion, hear makes the next class active, as the
// evacuation controller does.
func (w *simulation) hear(r report) {
	for i := range w.pods {
		e := w.pods[i].evacuation
		if e == nil || e.Name != r.evacuation.Name {
			continue
		}
		e = e.DeepCopy()
		e.Status.Message = r.message
		if r.progress {
			e.Status.EvacuationProgressTimestamp = &metav1.Time{Time: w.now}
		}
		if r.completed {
			e.Status.ActiveEvacuatorClass = lanes
			w.log = append(w.log, e.Spec.PodRef.Name+" is handed over: "+r.message)
		}
		w.pods[i].evacuation = e
	}
}

func (w *simulation) step() {
	w.now = w.now.Add(time.Second)
	before := w.d
	switch w.rng.IntN(10) {
	case 0, 1:
		w.replicaSet()
	case 2, 3:
		w.kubelet()
	case 4:
		w.eviction()
		w.costs()
	case 5:
		if w.rng.IntN(3) == 0 {
			w.askToLeave()
		}
	case 6:
		if !w.calm && w.rng.IntN(4) == 0 {
			w.user()
		} else if w.rng.IntN(4) == 0 {
			w.cancel()
		}
	default:
		w.us(true)
	}
	w.stale = before
	if w.calm && w.ready() < int(w.wish) {
		w.fail("%d pods are ready, %d should be", w.ready(), w.wish)
	}
}

// settle runs all actors except the users until nothing changes.
func (w *simulation) settle() {
	if w.d.Spec.Paused {
		w.write("resumed", func(d *appsv1.Deployment) { d.Spec.Paused = false })
	}
	for range 400 {
		w.now = w.now.Add(10 * time.Second)
		w.replicaSet()
		w.kubelet()
		w.eviction()
		w.costs()
		w.us(false)
		if w.calm && w.ready() < int(w.wish) {
			w.fail("%d pods are ready, %d should be", w.ready(), w.wish)
		}
	}
}

func (w *simulation) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.log {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

// TestWhateverHappensTheUsersNumberStands simulates random events of a Deployment whose pods are
// asked to leave. In the end it must have the replica count of its users, and neither the
// Deployment nor its pods may have our annotations, except the count of reverts while a pod is
// still asked to leave. All pods that were asked to leave must have left, and in calm runs no
// replica may have been missing.
func TestWhateverHappensTheUsersNumberStands(t *testing.T) {
	for seed := range uint64(1000) {
		w := newSimulation(t, seed)
		for range 150 {
			w.step()
		}
		w.settle()
		if got := surge.Replicas(w.d); got != w.wish {
			w.fail("seed %d: ends with %d replicas, the users want %d", seed, got, w.wish)
		}
		if r, _ := readRecord(w.d, 1); len(w.d.Annotations) > 0 && !(r != nil && !r.isUp() && slices.ContainsFunc(w.pods, func(p pod) bool { return p.evacuation != nil })) {
			w.fail("seed %d: ends with %v", seed, w.d.Annotations)
		}
		for i := range w.pods {
			p := &w.pods[i]
			if deletioncost.IsLowered(p.Pod) && p.evacuation == nil {
				w.fail("seed %d: %s ends with a lowered cost", seed, p.Name)
			}
			if p.evacuation != nil && !(w.budget > 0 && w.ready() <= w.budget) {
				w.fail("seed %d: %s has not left: %s", seed, p.Name, p.evacuation.Status.Message)
			}
		}
	}
}

// TestPodsOfACancelledDrainStay cancels the drain of a simulation at a random moment. The
// scale-down that takes the surge back then removes none of the ready pods that were asked to
// leave and are older than the surge.
func TestPodsOfACancelledDrainStay(t *testing.T) {
	for seed := range uint64(1000) {
		w := newSimulation(t, seed)
		w.calm = true
		for range 100 {
			w.step()
		}
		// A scale-down that was written before takes effect.
		w.replicaSet()
		r, _ := readRecord(w.d, 1)
		stay := w.names(func(p *pod) bool {
			return p.evacuation != nil && !p.isEvicting && (&situation{}).isAvailable(p) && !(r.isUp() && r.Since.Before(&p.CreationTimestamp))
		})
		for i := range w.pods {
			if p := &w.pods[i]; !p.isEvicting {
				p.evacuation, p.staysUp = nil, true
			}
		}
		w.log = append(w.log, "the drain is cancelled")
		for range 60 {
			w.now = w.now.Add(time.Second)
			w.us(false)
			w.costs()
			w.replicaSet()
			w.kubelet()
			w.eviction()
		}
		w.mustHave("after the end of its drain", stay)
		w.settle()
		for i := range w.pods {
			if p := &w.pods[i]; deletioncost.IsLowered(p.Pod) {
				w.fail("seed %d: %s ends with a lowered cost", seed, p.Name)
			}
		}
	}
}
