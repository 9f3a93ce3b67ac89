// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/host/owners"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func meta(name string, controller ...metav1.OwnerReference) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID("uid-" + name), OwnerReferences: controller,
	}
}

func controlledBy(apiVersion, kind, name string) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID("uid-" + name), Controller: ptr.To(true),
	}
}

func statefulSet(name string, replicas int32) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: meta(name), Spec: appsv1.StatefulSetSpec{Replicas: &replicas}}
}

// deployment returns a Deployment and its two ReplicaSets. The second ReplicaSet has the pods.
func deployment(name string, replicas int32) []runtime.Object {
	by := controlledBy("apps/v1", "Deployment", name)
	return []runtime.Object{
		&appsv1.Deployment{ObjectMeta: meta(name), Spec: appsv1.DeploymentSpec{Replicas: &replicas}},
		&appsv1.ReplicaSet{ObjectMeta: meta(name+"-old", by), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](0)}},
		&appsv1.ReplicaSet{ObjectMeta: meta(name+"-new", by), Spec: appsv1.ReplicaSetSpec{Replicas: &replicas}},
	}
}

// podsOf returns n pods of a controller that do not run to completion.
func podsOf(controller metav1.OwnerReference, n int, mods ...func(*corev1.Pod)) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range n {
		pod := newPod(fmt.Sprintf("%s-%d", controller.Name, i))
		pod.Spec.RestartPolicy, pod.OwnerReferences = corev1.RestartPolicyAlways, []metav1.OwnerReference{controller}
		pods = append(pods, build.With(pod, mods...))
	}
	return pods
}

// turnsWorld returns a world in which the pods of an owner without a budget wait for each other. An
// evicted pod is deleted and not replaced. A webhook denies the eviction of the pods in denied.
func turnsWorld(t *testing.T, cfg worldConfig, denied ...string) *world {
	t.Helper()
	cfg.maxConcurrent, cfg.turns = 50, true
	var w *world
	if cfg.answer == nil {
		cfg.answer = func(pod string) error {
			if slices.Contains(denied, pod) {
				return deniedBy("virt", 429, "not now")
			}
			return w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), namespace, pod)
		}
	}
	w = newWorld(t, cfg)
	for _, pod := range cfg.pods {
		w.add(pod.Name)
	}
	w.settled()
	return w
}

func TestFirstShareOfPodsWithoutBudget(t *testing.T) {
	set, custom := controlledBy("apps/v1", "StatefulSet", "db"), controlledBy("example.com/v1", "Database", "db")
	pods := func(groups ...[]*corev1.Pod) (all []*corev1.Pod) {
		for _, group := range groups {
			all = append(all, group...)
		}
		return all
	}
	for name, tc := range map[string]struct {
		objects []runtime.Object
		pods    []*corev1.Pod
		budgets []*policyv1.PodDisruptionBudget
		off     bool
		want    int
	}{
		"one of three pods of a StatefulSet":     {objects: []runtime.Object{statefulSet("db", 3)}, pods: podsOf(set, 3), want: 1},
		"three of ten pods of a StatefulSet":     {objects: []runtime.Object{statefulSet("db", 10)}, pods: podsOf(set, 10), want: 3},
		"all, where the share is 100%":           {objects: []runtime.Object{statefulSet("db", 10)}, pods: podsOf(set, 10), off: true, want: 10},
		"none of a StatefulSet that lacks a pod": {objects: []runtime.Object{statefulSet("db", 4)}, pods: podsOf(set, 3), want: 0},
		"two of eight pods of a Deployment": {
			objects: deployment("web", 8), pods: podsOf(controlledBy("apps/v1", "ReplicaSet", "web-new"), 8), want: 2,
		},
		"two of eight pods of a Deployment with two ReplicaSets": {
			objects: deployment("web", 8),
			pods: pods(podsOf(controlledBy("apps/v1", "ReplicaSet", "web-new"), 4),
				podsOf(controlledBy("apps/v1", "ReplicaSet", "web-old"), 4)),
			want: 2,
		},
		"one of four pods of a ReplicaSet that is not in the cache": {
			pods: podsOf(controlledBy("apps/v1", "ReplicaSet", "gone"), 4), want: 1,
		},
		"one of four pods of another controller": {pods: podsOf(custom, 4), want: 1},
		"one of each of two owners": {
			objects: []runtime.Object{statefulSet("db", 3), statefulSet("kv", 3)},
			pods:    pods(podsOf(set, 3), podsOf(controlledBy("apps/v1", "StatefulSet", "kv"), 3)), want: 2,
		},
		"one pod is ready and the others are not": {
			objects: []runtime.Object{statefulSet("db", 5)},
			pods:    pods(podsOf(set, 4)[:3], podsOf(controlledBy("apps/v1", "StatefulSet", "db"), 5, notReady)[3:]),
			want:    2,
		},
		"all of a DaemonSet": {pods: podsOf(controlledBy("apps/v1", "DaemonSet", "log"), 4), want: 4},
		"all of a Job":       {pods: podsOf(controlledBy("batch/v1", "Job", "sum"), 4), want: 4},
		"all mirror pods":    {pods: podsOf(controlledBy("v1", "Node", "node"), 4), want: 4},
		"all pods that run to completion": {
			pods: podsOf(custom, 4, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }), want: 4,
		},
		"all pods without a controller": {pods: podsOf(custom, 4, func(p *corev1.Pod) { p.OwnerReferences = nil }), want: 4},
		"as many as a budget allows": {
			objects: []runtime.Object{statefulSet("db", 4)}, pods: podsOf(set, 4),
			budgets: []*policyv1.PodDisruptionBudget{newBudget("web", 3)}, want: 3,
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			cfg := worldConfig{objects: tc.objects, pods: tc.pods, budgets: tc.budgets, unprotected: 25}
			if tc.off {
				cfg.unprotected = 100
			}
			w := turnsWorld(t, cfg)
			if got := len(w.host.sent()); got != tc.want {
				t.Errorf("got %d evictions (%v), want %d", got, w.host.sent(), tc.want)
			}
		})
	}
}

func TestOwnerWhosePodsAreNotReplaced(t *testing.T) {
	for name, controller := range map[string]metav1.OwnerReference{
		"a StatefulSet":      controlledBy("apps/v1", "StatefulSet", "db"),
		"another controller": controlledBy("example.com/v1", "Database", "db"),
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := turnsWorld(t, worldConfig{objects: []runtime.Object{statefulSet("db", 3)}, pods: podsOf(controller, 3), unprotected: 25})
			for n := 1; n <= 3; n++ {
				if got := len(w.host.sent()); got != n {
					t.Fatalf("got %d evictions after %s, want %d", got, w.clock.Since(start), n)
				}
				w.pass(DefaultPolicy().UnprotectedPatience-time.Second, time.Second)
				if got := len(w.host.sent()); got != n {
					t.Fatalf("got %d evictions after %s, want %d until the patience ends", got, w.clock.Since(start), n)
				}
				w.pass(time.Second, time.Second)
			}
		})
	}
}

func TestNextPodIsEvictedWhenTheReplacementIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := podsOf(controlledBy("apps/v1", "StatefulSet", "db"), 4)
		w := turnsWorld(t, worldConfig{objects: []runtime.Object{statefulSet("db", 4)}, pods: pods, unprotected: 25})
		begun := w.clock.Now()
		for n := 1; n < 4; n++ {
			if got := len(w.host.sent()); got != n {
				t.Fatalf("got %d evictions, want %d", got, n)
			}
			back := podsOf(controlledBy("apps/v1", "StatefulSet", "db"), n, notReady)[n-1]
			back.Name, back.UID = fmt.Sprintf("db-new-%d", n), types.UID(fmt.Sprintf("new-%d", n))
			must.Do(w, w.client.Tracker().Add(back))
			w.settled()
			if got := len(w.host.sent()); got != n {
				t.Fatalf("got %d evictions while the replacement starts, want %d", got, n)
			}
			ready := back.DeepCopy()
			ready.Status.Conditions[0].Status = corev1.ConditionTrue
			w.updatePod(ready)
			w.until("the next eviction is sent immediately", 0, w.sentTo(n+1))
		}
		if waited := w.clock.Since(begun); waited > 0 {
			t.Errorf("the pods waited for %s", waited)
		}
	})
}

func TestEvictionCountsUntilTheCacheShowsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := podsOf(controlledBy("apps/v1", "StatefulSet", "db"), 8)
		w := turnsWorld(t,
			worldConfig{objects: []runtime.Object{statefulSet("db", 8)}, pods: pods, unprotected: 25, answer: success})
		w.pass(resendAfter-time.Second, time.Second)
		is.Equal(t, len(w.host.sent()), 2, "evictions while the cache shows all pods unchanged")
	})
}

// TestEvictionCountsUntilTheEventOfThePod: the cache no longer has an evicted pod and the
// Evacuation of the pod is complete, but the queue has not received the event yet.
func TestEvictionCountsUntilTheEventOfThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := podsOf(controlledBy("apps/v1", "StatefulSet", "db"), 8)
		ahead := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		for _, pod := range pods {
			must.Do(t, ahead.Add(pod))
		}
		var w *world
		w = newWorld(t, worldConfig{
			objects: []runtime.Object{statefulSet("db", 8)}, pods: pods, unprotected: 25, turns: true,
			answer: func(pod string) error {
				w.queue.Remove(evacuationOf(pod))
				return ahead.Delete(newPod(pod))
			},
		})
		w.queue.pods = corelisters.NewPodLister(ahead)
		for _, pod := range pods {
			w.add(pod.Name)
		}
		w.settled()
		is.Equal(t, len(w.host.sent()), 2, "evictions before the events of the first pods")
	})
}

func TestDeniedPodUsesNoShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := podsOf(controlledBy("apps/v1", "StatefulSet", "db"), 4)
		younger(time.Minute)(pods[2])
		w := turnsWorld(t, worldConfig{objects: []runtime.Object{statefulSet("db", 4)}, pods: pods, unprotected: 25},
			"db-2")
		if got := w.host.sent(); len(got) != 2 || !strings.HasPrefix(got[0], "db-2/") {
			t.Errorf("got %v, want the youngest, which is denied, and another one", got)
		}
		w.pass(4*DefaultPolicy().UnprotectedPatience, time.Second)
		tried := sets.New(w.host.sent()...)
		is.True(t, len(tried) == 4, "got %v tried, want all", tried)
	})
}

func TestWaitForOtherPodsOfTheOwnerIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := podsOf(controlledBy("apps/v1", "StatefulSet", "db"), 3)
		w := turnsWorld(t, worldConfig{objects: []runtime.Object{statefulSet("db", 3)}, pods: pods, unprotected: 25})
		waits := "db-0"
		if strings.HasPrefix(w.host.sent()[0], waits+"/") {
			waits = "db-1"
		}
		if got := w.state(waits).Message; got != "" {
			t.Errorf("got %q immediately, want no message about a short wait", got)
		}
		w.pass(blockedAfter, time.Second)
		got := w.state(waits)
		if want := "other pods of StatefulSet db to be available"; !strings.Contains(got.Message,
			want) || !strings.Contains(got.Message, "at most 1 of 3") || got.Blocker != nil {
			t.Errorf("got %+v, want no blocker and %q", got, want)
		}
		w.pass(DefaultPolicy().UnprotectedPatience-blockedAfter-time.Second, time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := w.changes[evacuationOf(waits).Name]; n != 1 {
			t.Errorf("got %d changes reported, want 1: each is a write", n)
		}
	})
}

func TestNoteNamesTheNextOwnerOfAPod(t *testing.T) {
	l := newOwnerLane(&ownerLanes{share: 25}, start)
	l.key, l.waitsSince = laneKey{owner: "uid-db"}, start
	l.Kind, l.Name = "StatefulSet", "db"
	it := &item{
		Request: &Request{}, added: start, phase: phaseWaiting,
		note: "The pod waits for other pods of StatefulSet web.", source: source{about: laneKey{owner: "uid-web"}, told: true},
	}
	got := l.judge(it, start.Add(blockedAfter)).note
	is.True(t, strings.Contains(got, "StatefulSet db"), "got %q, want the owner of the lane", got)
}

// TestNotesOfPodsWhoseBudgetsChangeCauseFewWrites: pods wait for each other, and a tenant creates
// and deletes a budget for all of them but one.
func TestNotesOfPodsWhoseBudgetsChangeCauseFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count, seconds = 150, 60
		pods := podsOf(controlledBy("apps/v1", "StatefulSet", "db"), count)
		ofApp("other")(pods[0])
		// More pods are missing than may be.
		w := turnsWorld(t, worldConfig{objects: []runtime.Object{statefulSet("db", 2*count)}, pods: pods, unprotected: 25})
		w.pass(2*blockedAfter, time.Second)
		is.True(t, w.state("db-1").Message != "", "got no note about a pod that waits")
		w.queue.pausedUntil = start.Add(time.Hour) // no probes of the budgets
		for n := range seconds {
			w.create(newBudget(fmt.Sprintf("guard-%d", n), 0))
			w.remove(fmt.Sprintf("guard-%d", n))
			w.pass(time.Second, time.Second)
		}
		w.checkWrites(count, seconds*time.Second)
		w.pass(2*count*changeEvery, time.Second)
		w.create(newBudget("first", 0))
		w.remove("first")
		w.create(newBudget("second", 0))
		w.until("the note is that of a pod with a budget", time.Second, func() bool {
			return w.state("db-1").Message == "The pod waits for its eviction."
		})
		w.remove("second")
		w.pass(count*changeEvery+2*blockedAfter, time.Second)
		if got, want := w.state("db-1").Message, "other pods of StatefulSet db to be available"; !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	})
}

func TestOwnersAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := podsOf(controlledBy("apps/v1", "ReplicaSet", "web-new"), 1)
		w := turnsWorld(t, worldConfig{objects: deployment("web", 1), pods: pods, unprotected: 25})
		w.queue.Remove(evacuationOf("web-new-0"))
		w.pass(time.Minute, time.Second)
		is.Equal(t, len(w.queue.lanes), 1, "lanes until the patience after the last eviction ends")
		w.pass(DefaultPolicy().UnprotectedPatience, time.Second)
		w.queue.wake()
		w.settled()
		if len(w.queue.lanes)+len(w.queue.ring)+len(w.queue.ownerLanes.byController)+len(w.queue.ownerLanes.byPod) > 0 {
			t.Errorf("got %v, want no owner left", w.queue.lanes)
		}
	})
}

// noPods are Owners of workloads without pods.
type noPods struct{ Owners }

func (noPods) Pods(string, types.UID) []*corev1.Pod { return nil }

// TestDroppedLaneIsForgotten: the lanes web and api are found by their ReplicaSets. One of these
// ReplicaSets no longer belongs to web, and another one has moved from web to api.
func TestDroppedLaneIsForgotten(t *testing.T) {
	all := &ownerLanes{owners: noPods{}, byController: map[laneKey]*ownerLane{}}
	web, api := newOwnerLane(all, start), newOwnerLane(all, start)
	web.read(owners.Workload{Controllers: []types.UID{"old", "moved"}}, &metav1.OwnerReference{}, start)
	web.read(owners.Workload{Controllers: []types.UID{"new", "moved"}}, &metav1.OwnerReference{}, start)
	api.read(owners.Workload{Controllers: []types.UID{"moved"}}, &metav1.OwnerReference{}, start)
	web.drop()
	if got := all.byController; len(got) != 1 || got[keyOfOwner("", "moved")] != api {
		t.Errorf("got %v after web was dropped, want the ReplicaSet of api", got)
	}
}

func ownerLaneWith(share Percent, patience time.Duration, desired, serving, writtenOff int) *ownerLane {
	l := newOwnerLane(&ownerLanes{share: share, patience: patience}, start)
	l.Desired, l.serving, l.writtenOff = desired, serving, writtenOff
	return l
}

func TestTurn(t *testing.T) {
	const patience = 5 * time.Minute
	for name, tc := range map[string]struct {
		desired, serving, writtenOff int
		after                        time.Duration
		// granted is set if the next pod may be evicted. Otherwise it waits until the time in
		// until; 0 if only an event can end the wait.
		granted        bool
		wantWrittenOff int
		until          time.Duration
	}{
		"one of one pod leaves":                               {1, 1, 0, 0, true, 0, 0},
		"one of three pods leaves":                            {3, 3, 0, 0, true, 0, 0},
		"a second one of three waits":                         {3, 2, 0, 0, false, 0, patience},
		"a third one of ten leaves: the share is rounded up":  {10, 8, 0, 0, true, 0, 0},
		"a fourth one of ten waits":                           {10, 7, 0, 0, false, 0, patience},
		"pods beyond the desired ones leave":                  {3, 5, 0, 0, true, 0, 0},
		"pods of a workload that was scaled to zero leave":    {0, 2, 0, 0, true, 0, 0},
		"pods wait until the patience ends":                   {3, 2, 0, patience - 1, false, 0, patience},
		"the next share leaves when the patience ends":        {3, 2, 0, patience, true, 1, 0},
		"the share after that waits for the next end":         {3, 1, 1, 0, false, 1, patience},
		"pods that were written off and replaced count again": {3, 2, 2, 0, true, 1, 0},
		"a complete workload has none written off":            {3, 3, 2, 0, true, 0, 0},
		"no patience ends while an eviction is in flight":     {3, 2, 0, patience, false, 0, 0},
		"a share leaves while an eviction is in flight":       {10, 9, 0, 0, true, 0, 0},
		"half of four pods":                                   {4, 3, 0, 0, true, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			share := Percent(25)
			if strings.HasPrefix(name, "half") {
				share = 50
			}
			l := ownerLaneWith(share, patience, tc.desired, tc.serving, tc.writtenOff)
			if strings.HasSuffix(name, "in flight") {
				l.sending[&item{}] = start
			}
			is.Equal(t, l.turn(start.Add(tc.after)), tc.granted)
			is.Equal(t, l.writtenOff, tc.wantWrittenOff, "written off")
			var until time.Time
			if tc.until > 0 {
				until = start.Add(tc.until)
			}
			is.Equal(t, l.waitsUntil, until, "the time of the next turn")
		})
	}
}

// The wait for other pods of an owner delays a drain but does not block it: if the pods are not
// replaced, the pods of the owner wait three times at most.
func TestOwnerWaitsThreeTimesAtMost(t *testing.T) {
	for desired := 1; desired <= 200; desired++ {
		l := ownerLaneWith(25, time.Minute, desired, desired, 0)
		now, waits := start, 0
		for l.serving > 0 {
			if !l.turn(now) {
				now = l.waitsUntil
				waits++
				continue
			}
			l.serving--
			l.since = now
			if missing := desired - l.serving - l.writtenOff; missing > l.share.of(desired) {
				t.Fatalf("%d pods: got %d missing pods, not counting the ones written off", desired, missing)
			}
		}
		if most := min(3, desired-1); waits > most {
			t.Errorf("%d pods: got %d waits, want at most %d", desired, waits, most)
		}
	}
}

func TestPercent(t *testing.T) {
	for s, want := range map[string]Percent{"25%": 25, "1%": 1, "100%": 100, "0%": 0, "101%": 0, "25": 0, "": 0, "%": 0, "-5%": 0, "a%": 0} {
		var p Percent
		err := p.Set(s)
		is.True(t, p == want && (err == nil) == (want != 0), "%q: got %d, %v", s, p, err)
		if err == nil && p.String() != s {
			t.Errorf("%q: String returned %q", s, p.String())
		}
	}
}
