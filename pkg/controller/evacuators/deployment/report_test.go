// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	versioned "haulout.dev/haulout/pkg/generated/clientset/versioned"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	typed "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// hangs is part of the names of pods for whose Evacuations a webhook takes 10 s, and slow is part
// of those for which it takes 100 ms.
const hangs, slow = "hangs-", "slow-"

// sentReports counts the reports to each Evacuation, by name.
type sentReports struct {
	sync.Mutex
	to map[string]int
}

func (s *sentReports) add(name string) {
	s.Lock()
	defer s.Unlock()
	s.to[name]++
}

// hangingReports is a client that counts the reports to each Evacuation.
type hangingReports struct {
	versioned.Interface
	sent *sentReports
}

type hangingGroup struct {
	typed.MaintenanceV1alpha1Interface
	sent *sentReports
}

type hangingEvacuations struct {
	typed.EvacuationInterface
	sent *sentReports
}

func (h hangingReports) MaintenanceV1alpha1() typed.MaintenanceV1alpha1Interface {
	return hangingGroup{h.Interface.MaintenanceV1alpha1(), h.sent}
}

func (h hangingGroup) Evacuations(namespace string) typed.EvacuationInterface {
	return hangingEvacuations{h.MaintenanceV1alpha1Interface.Evacuations(namespace), h.sent}
}

func (h hangingEvacuations) UpdateStatus(
	ctx context.Context, e *v1alpha1.Evacuation, o metav1.UpdateOptions,
) (*v1alpha1.Evacuation, error) {
	h.sent.add(e.Name)
	if strings.Contains(e.Name, slow) {
		<-time.After(100 * time.Millisecond)
	}
	if !strings.Contains(e.Name, hangs) {
		return h.EvacuationInterface.UpdateStatus(ctx, e, o)
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
	}
	return nil, apierrors.NewInternalError(errors.New(`failed calling webhook "policy.example.com": context deadline exceeded`))
}

// TestHangingReportsDoNotHoldBackOthers covers hanging reports for 20 syncs before one report that
// does not hang.
func TestHangingReportsDoNotHoldBackOthers(t *testing.T) {
	const syncs = 20
	const broken = syncs * maxReporting
	synctest.Test(t, func(t *testing.T) {
		var d decision
		for i := range broken {
			p := newTestPod(fmt.Sprintf("%s%d", hangs, i), leaves(ours))
			d.reports = append(d.reports, report{evacuation: p.evacuation, message: "Waits.", progress: true})
		}
		sound := newTestPod("web-0", leaves(ours)).evacuation
		d.reports = append(d.reports, report{evacuation: sound, message: "Waits.", progress: true})
		client, own := fake.NewClientset(), versionedfake.NewClientset(sound)
		c := newIdle(t, client, own)
		defer c.queue.ShutDown()
		counts := &sentReports{to: map[string]int{}}
		c.Maintenance = hangingReports{own, counts}
		sent := counts.to
		key := types.NamespacedName{Namespace: testNamespace, Name: testName}
		sync := func() {
			t.Helper()
			begun := time.Now()
			c.known.noteSync(key, begun, broken+1, 0)
			if _, err := c.act(t.Context(), key, situation{now: begun}, d); err == nil {
				t.Error("got no error")
			}
			if took := time.Since(begun); took > loop.StuckAfter/10 {
				t.Errorf("a sync took %s", took)
			}
		}
		for range syncs {
			sync()
		}
		if got := c.queue.Len(); got != 1 {
			t.Errorf("%d items are to be synced immediately, want 1: one report was not tried", got)
		}
		// After this sync, each report was tried once.
		sync()
		if sent[sound.Name] != 1 || len(sent) != broken+1 {
			t.Errorf("%d reports to %d Evacuations were written: %v", sent[sound.Name], len(sent), sent)
		}
		all, _ := c.queue.Get()
		c.queue.Done(all)
		for range syncs {
			sync()
		}
		if got := c.queue.Len(); got != 0 {
			t.Errorf("%d items are to be synced immediately, want 0: all reports that are left have failed before", got)
		}
		for name, times := range sent {
			if want := map[bool][2]int{true: {2, 3}, false: {syncs + 1, syncs + 1}}[name != sound.Name]; times < want[0] || times > want[1] {
				t.Errorf("%d reports to %s, want %v", times, name, want)
			}
		}
	})
}

// TestReportsToManyReachAll covers reports of which one sync writes a quarter. Each sync decides
// about all of them again, as while pods leave, and about the completion of the last one.
func TestReportsToManyReachAll(t *testing.T) {
	const pods = 200 * maxReporting
	synctest.Test(t, func(t *testing.T) {
		var stored []runtime.Object
		var last string
		for i := range pods {
			e := newTestPod(fmt.Sprintf("%s%04d", slow, i), leaves(ours)).evacuation
			e.Status.ActiveEvacuatorSince = &metav1.Time{Time: time.Now().Add(-time.Minute)}
			stored, last = append(stored, e), e.Name
		}
		client, own := fake.NewClientset(), versionedfake.NewClientset(stored...)
		c := newIdle(t, client, own)
		defer c.queue.ShutDown()
		counts := &sentReports{to: map[string]int{}}
		c.Maintenance = hangingReports{own, counts}
		sent := counts.to
		key := types.NamespacedName{Namespace: testNamespace, Name: testName}
		for i := range 4 {
			list := must.Get(own.MaintenanceV1alpha1().Evacuations(testNamespace).List(t.Context(), metav1.ListOptions{}))(t)
			d := decision{}
			for j := range list.Items {
				e := &list.Items[j]
				d.reports = append(d.reports, report{evacuation: e, message: fmt.Sprintf("%d have left.", i), progress: true, completed: e.Name == last})
			}
			_, err := c.act(t.Context(), key, situation{now: time.Now()}, d)
			must.Do(t, err)
			is.True(t, sent[last] == i+1, "after sync %d, the completion was written %d times", i+1, sent[last])
		}
		for name, times := range sent {
			is.True(t, name == last || times == 1, "%d reports to %s, want 1", times, name)
		}
		is.True(t, len(sent) >= pods-4, "only %d of %d Evacuations had a report", len(sent), pods)
	})
}

func TestSyncsOfLargeAndOfManyDeploymentsPause(t *testing.T) {
	key, now := types.NamespacedName{Namespace: testNamespace, Name: testName}, start
	for name, tc := range map[string]struct {
		pods, others  int
		startDeadline time.Duration
		want          time.Duration
	}{
		"one pod is reconciled again immediately":              {pods: 1, want: 400 * time.Microsecond},
		"hundreds of pods are reconciled a few times a second": {pods: 600, want: 240 * time.Millisecond},
		"the pause is bounded":                                 {pods: 100000, want: 2 * time.Second},
		"Deployments share the time of the syncs":              {pods: 20, others: 29, want: 240 * time.Millisecond},
		"the pause because of others is bounded":               {pods: 20, others: 5000, want: 2 * time.Second},
		"the pause leaves time for the first report":           {pods: 100000, startDeadline: 2 * time.Second, want: 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			var known tracked
			is.True(t, known.get(key).nextSync.IsZero(), "the first sync is delayed")
			known.change(key, func(*state) {})
			for i := range tc.others {
				known.change(types.NamespacedName{Namespace: testNamespace, Name: fmt.Sprint("other-", i)}, func(*state) {})
			}
			known.noteSync(key, now, tc.pods, tc.startDeadline)
			is.Equal(t, known.get(key).nextSync.Sub(now), tc.want, "a pause of")
		})
	}
}

// TestWhatADrainWaitsForDoesNotWaitForThePause covers decisions after which the next one makes
// progress without an event of another object.
func TestWhatADrainWaitsForDoesNotWaitForThePause(t *testing.T) {
	const later, never = time.Minute, -time.Minute
	replacement := newTestPod("web-1", fresh)
	lowers := at(later, newDeployment(2, recorded(1, 2, web0)), newTestPod("web-0", leaves(ours)), replacement)
	for name, tc := range map[string]struct {
		s    situation
		want string
		wake time.Duration
	}{
		"pods join a surge": {
			s: at(later, newDeployment(3, recorded(2, 3, "gone")), newTestPod("web-0", leaves(ours), minOne(3, 3)),
				newTestPod("web-2", leaves(ours), minOne(3, 3)), replacement),
			want: "scale to 3 for 3;", wake: writeRetry,
		},
		"pods fill the record of a surge": {
			s: at(later, newDeployment(2, recorded(1, 2, slices.Repeat([]string{"gone"}, maxRecorded-1)...)),
				newTestPod("web-0", leaves(ours), minOne(2, 2)), replacement),
			want: "scale to 2 for 200;", wake: never,
		},
		"a scale-down waits for costs that were just written": {s: lowers, want: "lower web-0;", wake: writeRetry},
		"costs that fail are not written again and again": {
			s:    changed(lowers, func(s *situation) { s.memory.costsSince = s.now.Add(-writeRetry) }),
			want: "lower web-0;", wake: costTimeout,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := decide(tc.s)
			is.Equal(t, summary(d), tc.want)
			if tc.wake == never {
				is.True(t, d.wake.IsZero() || d.wake.After(tc.s.now.Add(longestPause)), "the next decision does not wait for the pause")
				return
			}
			is.Equal(t, d.wake.Sub(tc.s.now), tc.wake, "the next decision")
		})
	}
}

// BenchmarkLook runs one sync of a Deployment whose pods all have to leave, during a surge for a
// part of them whose replacements are not created yet, or are available.
func BenchmarkLook(b *testing.B) {
	for _, pods := range []int{600, 5625} {
		for name, replacements := range map[string]int{"waits": 0, "replaced": 150} {
			b.Run(fmt.Sprintf("pods=%d/%s", pods, name), func(b *testing.B) { benchmarkLook(b, pods, replacements) })
		}
	}
}

func benchmarkLook(b *testing.B, pods, replacements int) {
	b.Helper()
	evacuations := make([]runtime.Object, 0, pods)
	host := []runtime.Object{newReplicaSet(), newBudget(), newNode("drained", true), newNode("good", false)}
	names := make([]string, 0, pods)
	for i := range pods {
		p := newTestPod(fmt.Sprintf("web-%d", i), leaves(ours), on("drained"))
		evacuations, host = append(evacuations, p.evacuation), append(host, p.Pod)
		names = append(names, p.evacuation.Name)
	}
	for i := range replacements {
		host = append(host, newTestPod(fmt.Sprintf("web-new-%d", i), fresh, on("good")).Pod)
	}
	host = append(host, newDeployment(int32(pods)+150, recorded(int32(pods), int32(pods)+150, names[:150]...)))
	c := newKnowing(b, evacuations, host)
	key := types.NamespacedName{Namespace: testNamespace, Name: testName}
	for b.Loop() {
		s := must.Get(c.gather(b.Context(), key))(b)
		must.True(b, len(s.pods) == pods+replacements, "got %d pods, want %d", len(s.pods), pods+replacements)
		decide(s)
	}
}

// newIdle returns a controller that does not run, with empty caches.
func newIdle(tb testing.TB, client kubernetes.Interface, own versioned.Interface) *Controller {
	tb.Helper()
	cluster := must.Get(host.NewCluster(host.Clients{Client: client, Maintenance: own, Recorder: events.NewFakeRecorder(10)}, 0))(tb)
	return must.Get(New(Config{Cluster: cluster, Selection: selectionOf(tb, cluster)}))(tb)
}

// newKnowing returns a controller that does not run, with the objects in its caches.
func newKnowing(tb testing.TB, evacuations, host []runtime.Object) *Controller {
	tb.Helper()
	c := newIdle(tb, fake.NewClientset(host...), versionedfake.NewClientset(evacuations...))
	c.Start(tb.Context())
	tb.Cleanup(c.Shutdown)
	cache.WaitForCacheSync(tb.Context().Done(), c.synced...)
	return c
}

// TestOtherDeploymentsAreCounted covers what the time of the first reports depends on.
func TestOtherDeploymentsAreCounted(t *testing.T) {
	c := newKnowing(t, nil, []runtime.Object{newDeployment(1)})
	for _, name := range []string{testName, "db", "cache"} {
		c.known.change(types.NamespacedName{Namespace: testNamespace, Name: name}, func(*state) {})
	}
	s := must.Get(c.gather(t.Context(), types.NamespacedName{Namespace: testNamespace, Name: testName}))(t)
	is.Equal(t, s.tracked, 3, "tracked Deployments")
}

// TestContainersThatWaitAreRead: a pod is not read while it may still start.
func TestContainersThatWaitAreRead(t *testing.T) {
	for age, want := range map[time.Duration]string{0: "", sayEvery - time.Second: "", sayEvery: "container app waits (ErrImagePull)", -time.Hour: "container app waits (ErrImagePull)"} {
		t.Run(age.String(), func(t *testing.T) {
			p := newTestPod("web-1", fresh, unready)
			p.CreationTimestamp = metav1.NewTime(start.Add(time.Minute - age))
			live := p.DeepCopy()
			live.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}},
			}}
			c := newIdle(t, fake.NewClientset(live), versionedfake.NewClientset())
			s := at(time.Minute, newDeployment(2, recorded(1, 2, "uid-web-0-web-0")), newTestPod("web-0", leaves(ours)), p)
			must.Do(t, c.readWaiting(t.Context(), &s))
			is.Equal(t, s.memory.waiting["web-1"], want, "what the pod waits for")
		})
	}
}

// TestFailedSurgesAreTriedAgain covers reasons to decline that end only when time passes.
func TestFailedSurgesAreTriedAgain(t *testing.T) {
	refusedFor := func(declined int) func(*situation) {
		return func(s *situation) {
			s.refused = refusal{since: start, text: "a webhook refuses it", declined: declined}
		}
	}
	missed := func(times int) func(*situation) {
		return func(s *situation) { s.memory.misses, s.memory.missedAt = times, start.Add(5*time.Minute) }
	}
	for name, tc := range map[string]struct {
		mod  func(*situation)
		rest time.Duration
	}{
		"scaling was refused for the whole timeout": {refusedFor(0), 5 * time.Minute},
		"scaling was refused again":                 {refusedFor(1), 10 * time.Minute},
		"scaling was refused all day":               {refusedFor(50), time.Hour},
		"two scale-downs removed other pods":        {missed(2), 5 * time.Minute},
		"three scale-downs removed other pods":      {missed(3), 10 * time.Minute},
	} {
		for state, mods := range map[string][]podMod{
			"blocked":         {leaves(lanes), blocked, minOne(1, 1)},
			"up for eviction": {leaves(lanes), minOne(1, 1)},
			"in our turn":     {leaves(ours), minOne(1, 1)},
		} {
			t.Run(name+", "+state, func(t *testing.T) {
				end := 5*time.Minute + tc.rest
				s := at(end-time.Second, newDeployment(1), newTestPod("web-0", mods...))
				tc.mod(&s)
				d := decide(s)
				if d.scale != nil || d.idle || len(d.reports) > 0 && d.reports[0].takesUp || !d.wake.Equal(start.Add(end)) {
					t.Errorf("before the end of the rest: got %q, %+v, wake %s; want it to wait until %s", summary(d), d.reports, d.wake, start.Add(end))
				}
				s = at(end, newDeployment(1), newTestPod("web-0", mods...))
				tc.mod(&s)
				d = decide(s)
				if state == "blocked" && (len(d.reports) != 1 || !d.reports[0].takesUp) || state == "still our evacuator" && summary(d) != "scale to 2 for 1;" {
					t.Errorf("after the rest: got %q, %+v", summary(d), d.reports)
				}
				if state == "blocked" && d.memory.misses != s.memory.misses {
					t.Errorf("%d misses are left of %d", d.memory.misses, s.memory.misses)
				}
			})
		}
	}
	t.Run("a further refusal doubles the rest", func(t *testing.T) {
		var known tracked
		key := types.NamespacedName{Namespace: testNamespace, Name: testName}
		for _, tc := range []struct{ at, retry time.Duration }{
			{0, 10 * time.Minute}, {time.Minute, 10 * time.Minute}, {10 * time.Minute, 20 * time.Minute},
			{11 * time.Minute, 20 * time.Minute}, {21 * time.Minute, 41 * time.Minute},
		} {
			known.scaleFailed(key, "a webhook refuses it", start.Add(tc.at), 5*time.Minute)
			if got := known.get(key).refused.retryAt(5 * time.Minute); !got.Equal(start.Add(tc.retry)) {
				t.Errorf("failed after %s: tried again at %s, want %s", tc.at, got, start.Add(tc.retry))
			}
		}
	})
}
