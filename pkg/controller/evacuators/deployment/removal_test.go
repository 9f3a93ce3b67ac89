// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/inflight"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

var testKey = types.NamespacedName{Namespace: testNamespace, Name: testName}

// TestClaimStaysIfTheWriteMayBeApplied covers the answers to the write of a scale-down.
func TestClaimStaysIfTheWriteMayBeApplied(t *testing.T) {
	resource := appsv1.Resource("deployments")
	for name, tc := range map[string]struct {
		replicas int32
		err      error
		want     bool
	}{
		"written":           {replicas: 1, want: true},
		"kept for a user":   {replicas: 2},
		"a conflict":        {replicas: 2, err: apierrors.NewConflict(resource, testName, errors.New("changed")), want: true},
		"a webhook fails":   {replicas: 2, err: apierrors.NewInternalError(errors.New(`failed calling webhook "quota.example.com": refused`))},
		"a policy refuses":  {replicas: 2, err: apierrors.NewForbidden(resource, testName, errors.New("no"))},
		"too many requests": {replicas: 2, err: apierrors.NewTooManyRequests("busy", 1)},
		"not sent":          {replicas: 2, err: unsentError{context.DeadlineExceeded}},
		"a gateway timeout": {replicas: 2, err: apierrors.NewTimeoutError("slow", 1), want: true},
		"an internal error": {replicas: 2, err: apierrors.NewInternalError(errors.New("etcd")), want: true},
		"no answer":         {replicas: 2, err: context.DeadlineExceeded, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := knowing(t, newDeployment(tc.replicas))
			is.Equal(t, c.mayShrink(testKey, 1, tc.err == nil, tc.err), tc.want, "the scale-down may be applied")
		})
	}
}

// TestRemovalIsConfirmed covers the scale-down from 2 to 1 that deletes web-0.
func TestRemovalIsConfirmed(t *testing.T) {
	doomed, other := newTestPod("web-0"), newTestPod("web-1")
	generation := func(n int64) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { d.Generation = n }
	}
	newer := func(d *appsv1.Deployment) { d.ResourceVersion = "2" }
	for name, tc := range map[string]struct {
		d    *appsv1.Deployment
		pods []pod
		late bool
		want bool
	}{
		"the scale-down is not written":          {d: newDeployment(2), pods: []pod{doomed, other}},
		"the write can only fail":                {d: newDeployment(2, newer), pods: []pod{doomed, other}, want: true},
		"the pod exists":                         {d: newDeployment(1, generation(2)), pods: []pod{doomed, other}},
		"the pod is deleted":                     {d: newDeployment(1, generation(2)), pods: []pod{other}, want: true},
		"another pod is deleted":                 {d: newDeployment(1, generation(2)), pods: []pod{doomed}, want: true},
		"the Deployment is deleted":              {pods: []pod{doomed, other}},
		"a user has scaled up":                   {d: newDeployment(2, generation(3)), pods: []pod{doomed, other}, want: true},
		"the pod is not deleted after that time": {d: newDeployment(1, generation(2)), pods: []pod{doomed, other}, late: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []runtime.Object{newReplicaSet()}
			if tc.d != nil {
				objects = append(objects, tc.d)
			}
			for _, p := range tc.pods {
				objects = append(objects, p.Pod)
			}
			c := newKnowing(t, nil, objects)
			s := situation{deployment: newDeployment(2)}
			is.Equal(t, c.claim(testKey, s, []*pod{&doomed}), answerRetry, "the retry of the first claim")
			is.Equal(t, c.claim(testKey, s, []*pod{&doomed}), 0, "the retry of the next claim")
			if tc.late {
				r := c.removals.byDeployment[testKey]
				r.until = c.clock.Now()
				c.removals.byDeployment[testKey] = r
			} else {
				is.True(t, c.removals.byDeployment[testKey].until.Sub(c.clock.Now()) > time.Minute, "the removal ends soon")
			}
			waits := c.StandingOfEvicted(other.Pod).Reason == v1alpha1.ReasonPodWaits
			is.Equal(t, waits, !tc.want, "other pods wait")
			s.deployment.ResourceVersion = "3"
			awaits := c.removalBeside(testKey, s.deployment, []*pod{&other})
			is.Equal(t, strings.HasPrefix(awaits, "the pods of the last scale-down"), !tc.want, "a further scale-down waits")
			is.Equal(t, c.claim(testKey, s, []*pod{&other}) == answerRetry, tc.want, "a further claim is accepted")
		})
	}
}

// TestRemovalCountsUntilBudgetsReflectIt: web-0 is deleted, and only web-1 is left. The disruption
// controller has not observed that yet.
func TestRemovalCountsUntilBudgetsReflectIt(t *testing.T) {
	doomed, other := newTestPod("web-0", minOne(2, 2)), newTestPod("web-1")
	doomed.budgets[0].ResourceVersion = "1"
	budget := func(version string, healthy int32, mods ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
		b := newBudget()
		b.ResourceVersion, b.Status.CurrentHealthy = version, healthy
		return build.With(b, mods...)
	}
	for name, tc := range map[string]struct {
		budget *policyv1.PodDisruptionBudget
		// first is set if the other pod waits at first, later if it waits after statusTime.
		first, later bool
	}{
		"the status still counts the pod":           {budget: budget("1", 2), first: true, later: true},
		"the status has changed for another reason": {budget: budget("2", 2), first: true, later: true},
		"another pod had been unready":              {budget: budget("1", 1), first: true},
		"the status no longer counts the pod":       {budget: budget("2", 1)},
		"the spec has changed":                      {budget: budget("1", 2, func(b *policyv1.PodDisruptionBudget) { b.Generation = 1 })},
		"the budget is deleted":                     {},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []runtime.Object{newDeployment(1, func(d *appsv1.Deployment) { d.Generation = 2 }), newReplicaSet(), other.Pod}
			if tc.budget != nil {
				objects = append(objects, tc.budget)
			}
			c := newKnowing(t, nil, objects)
			s := situation{deployment: newDeployment(2)}
			for range 2 {
				c.claim(testKey, s, []*pod{&doomed})
			}
			waits := func() bool { return c.StandingOfEvicted(other.Pod).Reason == v1alpha1.ReasonPodWaits }
			is.Equal(t, waits(), tc.first, "the other pod waits at first")
			if !tc.first {
				return
			}
			c.removals.change(testKey, func(r *removal) { r.deletedAt = r.deletedAt.Add(-statusTime) })
			is.Equal(t, waits(), tc.later, "the other pod waits after statusTime")
			if !tc.later {
				return
			}
			c.removals.change(testKey, func(r *removal) { r.until = c.clock.Now() })
			is.True(t, !waits(), "the other pod waits after removeTime")
		})
	}
}

// TestScaleDownIsTriedAgain: the API server answers the write of a scale-down with an error. If the
// outcome is unknown, evictions wait until it is known.
func TestScaleDownIsTriedAgain(t *testing.T) {
	resource := appsv1.Resource("deployments")
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"a gateway timeout": {apierrors.NewTimeoutError("slow", 1), true},
		"a policy refuses":  {apierrors.NewForbidden(resource, testName, errors.New("no")), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				evacuations, host := scene()
				w := newWorld(t, evacuations, host...)
				w.scaled(2, true)
				var tried atomic.Int32
				var works atomic.Bool
				w.host.PrependReactor("patch", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
					tried.Add(1)
					return !works.Load(), nil, tc.err
				})
				w.create(newTestPod("web-1", on("good"), fresh))
				w.until("the write is tried several times", func() (bool, string) { return tried.Load() > 3, fmt.Sprint(tried.Load()) })
				synctest.Wait()
				_, claimed := w.c.removals.byDeployment[testKey]
				is.Equal(t, claimed, tc.want, "the claim stays")
				works.Store(true)
				w.scaled(1, false)
			})
		})
	}
}

// TestEvictionsAwaitAClaim: a budget of many pods may always have an eviction in flight. As soon as
// a scale-down is about to be written, no other eviction begins.
func TestEvictionsAwaitAClaim(t *testing.T) {
	doomed, other := newTestPod("web-0", minOne(3, 3)), newTestPod("db-0", func(p *pod) { p.OwnerReferences = nil })
	c := newKnowing(t, nil, []runtime.Object{newDeployment(2), newReplicaSet(), newBudget(), doomed.Pod, other.Pod})
	waits := func() bool { return c.StandingOfEvicted(other.Pod).Reason == v1alpha1.ReasonPodWaits }
	s := situation{deployment: newDeployment(2)}
	c.InFlight.Add(inflight.Eviction{Evacuation: types.NamespacedName{Namespace: testNamespace, Name: "e"}, Pod: "db-0", UID: other.UID})
	for range 2 {
		is.Equal(t, c.claim(testKey, s, []*pod{&doomed}), answerRetry, "the retry with an eviction in flight")
		is.True(t, waits(), "another eviction begins")
	}
	beside := types.NamespacedName{Namespace: testNamespace, Name: "other"}
	is.Equal(t, c.claim(beside, s, []*pod{&doomed}), removeRetry, "the retry of another Deployment")
	is.True(t, strings.HasPrefix(c.removalBeside(beside, s.deployment, []*pod{&doomed}), "the scale-down of Deployment web, which has"), "another Deployment does not wait")
	is.Equal(t, c.removalBeside(beside, s.deployment, []*pod{&other}), "", "what a Deployment without the budget waits for")
	is.Equal(t, c.removalBeside(testKey, s.deployment, []*pod{&doomed}), "", "what the Deployment waits for before its write")
	c.InFlight.Remove(other.UID)
	s.deployment.ResourceVersion = "2"
	is.Equal(t, c.claim(testKey, s, []*pod{&doomed}), answerRetry, "the retry after a decision with an eviction in flight")
	is.Equal(t, c.claim(testKey, s, []*pod{&doomed}), 0, "the retry without an eviction in flight")
	is.Equal(t, c.removalBeside(testKey, s.deployment, []*pod{&doomed}), "", "what the Deployment waits for before it repeats its write")
	c.removals.drop(testKey, 1)
	c.claim(testKey, s, []*pod{&doomed})
	c.removals.drop(testKey, 0)
	is.True(t, !waits(), "evictions wait although the scale-down is no longer intended")
}

// TestCostsOfRemovedPodsStay covers a drain that is cancelled before the ReplicaSet controller has
// deleted the pod.
func TestCostsOfRemovedPodsStay(t *testing.T) {
	doomed := newTestPod("web-0", cheapest)
	c := newKnowing(t, nil, []runtime.Object{newDeployment(2), newReplicaSet(), doomed.Pod})
	s := situation{deployment: newDeployment(2)}
	c.claim(testKey, s, []*pod{&doomed})
	c.claim(testKey, s, []*pod{&doomed})
	is.True(t, c.IsSurplus(doomed.Pod), "the cost of the pod is restored")
	is.True(t, !c.IsSurplus(newTestPod("web-1").Pod), "the cost of another pod is not restored")
}

// TestIsSurging covers the Deployments whose pods keep their deletion costs.
func TestIsSurging(t *testing.T) {
	for name, tc := range map[string]struct {
		d    *appsv1.Deployment
		want bool
	}{
		"scaled up":                   {newDeployment(3, recorded(2, 3, web0)), true},
		"its ReplicaSet deletes pods": {newDeployment(2, func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = 3, 3 }), true},
		"neither":                     {newDeployment(2), false},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, knowing(t, tc.d).IsSurging(newTestPod("web-0").Pod), tc.want, "surges")
		})
	}
}

// TestQuestionsAreLimited: a webhook that hangs must not hold all workers.
func TestQuestionsAreLimited(t *testing.T) {
	c := knowing(t, newDeployment(1))
	c.evictions = &webhook{}
	p := newTestPod("web-0")
	s := at(0, newDeployment(1), p)
	for range maxAsking {
		c.asking <- struct{}{}
	}
	_, asked := c.askFirst(t.Context(), s, []*pod{&p})
	is.True(t, !asked, "another worker asks")
	<-c.asking
	answers, asked := c.askFirst(t.Context(), s, []*pod{&p})
	is.True(t, asked && len(answers) == 1 && len(c.asking) == maxAsking-1, "got the answers %v", answers)
}

// TestNewLeaderAwaitsAScaleDown: the previous leader may have written it.
func TestNewLeaderAwaitsAScaleDown(t *testing.T) {
	early := knowing(t, newDeployment(2, func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = 3, 3 }))
	is.Equal(t, early.StandingOfEvicted(newTestPod("web-0").Pod).Reason, v1alpha1.ReasonPodWaits, "the reason to stay before the controller has started")
	for ago, want := range map[time.Duration]string{removeTime / 2: v1alpha1.ReasonPodWaits, removeTime: ""} {
		c := knowing(t, newDeployment(2, func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = 3, 3 }))
		c.servingSince.Store(ptr.To(c.clock.Now().Add(-ago)))
		is.Equal(t, c.StandingOfEvicted(newTestPod("web-0").Pod).Reason, want, "the reason to stay")
	}
}

// TestScaleDownAwaitsTheStatusOfItsBudget: db-1, under the same budget, was evicted a moment ago,
// and the status of the budget still counts it. Without it the budget allows no scale-down.
func TestScaleDownAwaitsTheStatusOfItsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stray := func(p *pod) { p.OwnerReferences = nil }
		db := newTestPod("db-1", on("good"), stray)
		b := newBudget()
		b.Spec.MinAvailable = ptrTo(2)
		b.Status = policyv1.PodDisruptionBudgetStatus{ExpectedPods: 4, CurrentHealthy: 3, DesiredHealthy: 2, DisruptionsAllowed: 1}
		evacuations, host := scene(b, newTestPod("db-0", on("good"), stray, unready).Pod, db.Pod)
		w := newUnstartedWorld(t, evacuations, host...)
		w.inFlight.Add(inflight.Eviction{Evacuation: types.NamespacedName{Namespace: testNamespace, Name: "e"}, Pod: db.Name, UID: db.UID})
		w.run()
		isClaimed := func() bool {
			w.c.removals.Lock()
			defer w.c.removals.Unlock()
			_, is := w.c.removals.byDeployment[testKey]
			return is
		}
		w.scaled(2, true)
		w.create(newTestPod("web-1", on("good"), fresh))
		w.until("the scale-down is claimed", func() (bool, string) { return isClaimed(), "" })
		must.Do(t, w.host.CoreV1().Pods(testNamespace).Delete(t.Context(), db.Name, metav1.DeleteOptions{}))
		w.inFlight.Remove(db.UID)
		<-time.After(claimTime / 2)
		is.True(t, isClaimed(), "evictions may begin while the status is old")
		w.reported("web-0", false, "waits until the status of PodDisruptionBudget web no longer counts pods")
		is.Equal(t, *w.deployment().Spec.Replicas, int32(2), "replicas while the status is old")
		w.create(newTestPod("db-2", on("good"), stray))
		w.scaled(1, false)
	})
}

// TestHealthyUnder counts as the disruption controller does.
func TestHealthyUnder(t *testing.T) {
	now := start.Add(time.Hour)
	granted := func(ago time.Duration) func(*policyv1.PodDisruptionBudget) {
		return func(b *policyv1.PodDisruptionBudget) {
			b.Status.DisruptedPods = map[string]metav1.Time{"web-0": metav1.NewTime(now.Add(-ago))}
		}
	}
	none := func(*policyv1.PodDisruptionBudget) {}
	for name, tc := range map[string]struct {
		pod    podMod
		budget func(*policyv1.PodDisruptionBudget)
		want   int32
	}{
		"a ready pod":                     {func(*pod) {}, none, 1},
		"a pod of another workload":       {func(p *pod) { p.OwnerReferences = nil }, none, 1},
		"a pod that is not ready":         {unready, none, 0},
		"a pod that ends":                 {func(p *pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }, none, 0},
		"a pod that has completed":        {func(p *pod) { p.Status.Phase = corev1.PodSucceeded }, none, 0},
		"a pod that is not selected":      {func(p *pod) { p.Labels = nil }, none, 0},
		"a pod whose eviction is granted": {func(*pod) {}, granted(time.Minute), 0},
		"a pod that was not deleted":      {func(*pod) {}, granted(time.Hour), 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPod("web-0", tc.pod)
			c := newKnowing(t, nil, []runtime.Object{p.Pod})
			is.Equal(t, must.Get(c.healthyUnder(build.With(newBudget(), tc.budget), now))(t), tc.want)
		})
	}
}
