// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/oracle"
)

// raceTime is how long the disruption controller may take to count a change. A budget may still
// allow a disruption just after it was closed, and the Eviction API does not know yet of a pod that
// was just deleted.
const raceTime = 5 * time.Second

// setting is a value of maxUnavailable of a budget, from the answer to the change on. sent is when
// the change was sent.
type setting struct {
	sent, answered time.Time
	maxUnavailable int
}

// loss is the loss of a healthy pod of a budget.
type loss struct {
	budget  string
	at      time.Time
	healthy int // healthy pods after the loss
	// age is how long the pod had been healthy.
	age time.Duration
}

// stormJudge counts the healthy pods of budgets from a watch of pods. oracle.Books cannot do this,
// because the budgets change.
type stormJudge struct {
	namespace string
	replicas  int

	mu       sync.Mutex
	budgets  sets.Set[string]
	healthy  map[types.UID]time.Time // start of health
	counts   map[string]int
	settings map[string][]setting
	// losses are the losses of guarded pods, by pod name.
	losses map[string]loss
	// granted are the pods whose eviction the Eviction API has counted in the budget. If the
	// scheduler dies during an eviction, the API may count the pod and not delete it; then a
	// deletion of the pod does not exceed the budget.
	granted   sets.Set[string]
	scheduled map[string]time.Time
	failed    error
}

func newStormJudge(namespace string, replicas int, budgets []string) *stormJudge {
	j := &stormJudge{
		namespace: namespace,
		replicas:  replicas,
		budgets:   sets.New(budgets...),
		healthy:   map[types.UID]time.Time{},
		counts:    map[string]int{},
		settings:  map[string][]setting{},
		losses:    map[string]loss{},
		granted:   sets.New[string](),
		scheduled: map[string]time.Time{},
	}
	for _, name := range budgets {
		j.settings[name] = []setting{{}}
	}
	return j
}

// judgeBudgets starts to count the pods of closed budgets, each with a number of replicas.
func (w world) judgeBudgets(t *testing.T, replicas int, budgets ...string) *stormJudge {
	t.Helper()
	j := newStormJudge(w.namespace, replicas, budgets)
	kube := cluster.As(t).Kube
	for _, resource := range []oracle.Resource{
		{Client: kube.CoreV1().RESTClient(), Name: "pods", See: j.see, Fail: j.fail},
		{Client: kube.PolicyV1().RESTClient(), Name: "poddisruptionbudgets", See: j.seeBudget, Fail: j.fail},
	} {
		must.Do(t, oracle.Follow(t.Context(), resource))
	}
	return j
}

func (j *stormJudge) seeBudget(event watch.Event) {
	budget, ok := event.Object.(*policyv1.PodDisruptionBudget)
	if !ok || budget.Namespace != j.namespace {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for pod := range budget.Status.DisruptedPods {
		j.granted.Insert(pod)
	}
}

// allowAndNote changes maxUnavailable of a budget, and notes it in the judge.
func (w world) allowAndNote(t *testing.T, j *stormJudge, budget string, maxUnavailable int) {
	t.Helper()
	before := time.Now()
	w.allow(t, budget, maxUnavailable)
	j.allowed(budget, maxUnavailable, before, time.Now())
}

// granted returns the granted calls of the scheduler about pods of the world.
func (w world) granted(t *testing.T) []oracle.Call {
	t.Helper()
	all := must.Get(w.log.Calls())(t)
	return slices.DeleteFunc(all, func(c oracle.Call) bool {
		return c.Namespace != w.namespace || c.User != scheduler || !c.Evicted() && !c.Deleted()
	})
}

func (j *stormJudge) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failed = err
}

func (j *stormJudge) see(event watch.Event) {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok || pod.Namespace != j.namespace {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	if _, known := j.scheduled[pod.Name]; !known && pod.Spec.NodeName != "" {
		j.scheduled[pod.Name] = now
	}
	budget := pod.Labels["app"]
	if !j.budgets.Has(budget) {
		return
	}
	healthy := event.Type != watch.Deleted && pod.DeletionTimestamp == nil && oracle.IsReady(pod)
	since, was := j.healthy[pod.UID]
	switch {
	case healthy == was:
	case healthy:
		j.counts[budget]++
		j.healthy[pod.UID] = now
	default:
		j.counts[budget]--
		j.losses[pod.Name] = loss{budget, now, j.counts[budget], now.Sub(since)}
		delete(j.healthy, pod.UID)
	}
}

// allowed notes a change of a budget by the test.
func (j *stormJudge) allowed(budget string, maxUnavailable int, sent, answered time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.settings[budget] = append(j.settings[budget], setting{sent, answered, maxUnavailable})
}

// missing returns the number of pods of a budget that are not healthy.
func (j *stormJudge) missing(budget string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.replicas - j.counts[budget]
}

// floor returns how many pods of a budget had to be healthy at a time: the minimum of all settings
// in the raceTime before.
func (j *stormJudge) floor(budget string, at time.Time) int {
	settings := j.settings[budget]
	allowed := 0
	for i, s := range settings {
		replaced := i+1 < len(settings) && settings[i+1].answered.Add(raceTime).Before(at)
		if !replaced && s.sent.Before(at) {
			allowed = max(allowed, s.maxUnavailable)
		}
	}
	return j.replicas - allowed
}

// placed returns how many of the pods were ever scheduled, and the time of the last.
func (j *stormJudge) placed(names []string) (count int, last time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, name := range names {
		if at, ok := j.scheduled[name]; ok {
			count++
			if at.After(last) {
				last = at
			}
		}
	}
	return count, last
}

// stormVerdict counts the effects of the scheduler's calls on budgets.
type stormVerdict struct {
	// evicted is the number of evicted guarded pods, deleted of guarded pods deleted although their
	// budget was closed, deletedBelow of those for a pod below the threshold.
	evicted, deleted, deletedBelow int
	broken, brokenBelow            sets.Set[string]
	// found describes violations by haulout-scheduler.
	found []string
}

// verdict judges the granted calls. priorityFor returns the priority of the preemptor of a victim.
func (j *stormJudge) verdict(t *testing.T, calls []oracle.Call, priorityFor func(victim string) int32) stormVerdict {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		t.Fatal(j.failed)
	}
	v := stormVerdict{broken: sets.New[string](), brokenBelow: sets.New[string]()}
	for i := range calls {
		call := &calls[i]
		lost, guarded := j.losses[call.Name]
		if !guarded {
			continue
		}
		floor := j.floor(lost.budget, lost.at)
		if call.Evicted() {
			v.evicted++
			if lost.healthy < floor && !j.deletedBefore(calls, lost) {
				v.found = append(v.found, fmt.Sprintf("the eviction of pod %s left %d healthy pods of budget %s, %d are needed",
					call.Name, lost.healthy, lost.budget, floor))
			}
			continue
		}
		if j.granted.Has(call.Name) {
			continue
		}
		priority := priorityFor(call.Name)
		if priority < stormThreshold {
			v.found = append(v.found, fmt.Sprintf("the guarded pod %s was deleted for a pod of priority %d, after %v of health", call.Name, priority, lost.age))
		}
		if lost.healthy >= floor {
			continue
		}
		v.deleted++
		v.broken.Insert(lost.budget)
		if priority < stormThreshold {
			v.deletedBelow++
			v.brokenBelow.Insert(lost.budget)
		}
	}
	return v
}

// deletedBefore reports whether a pod of the same budget was deleted shortly before a loss.
func (j *stormJudge) deletedBefore(calls []oracle.Call, lost loss) bool {
	return slices.ContainsFunc(calls, func(call oracle.Call) bool {
		other, ok := j.losses[call.Name]
		return ok && call.Deleted() && other.budget == lost.budget &&
			!other.at.After(lost.at) && lost.at.Sub(other.at) < raceTime
	})
}
