// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
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
		"a conflict":        {replicas: 2, err: apierrors.NewConflict(resource, testName, errors.New("changed"))},
		"a policy refuses":  {replicas: 2, err: apierrors.NewForbidden(resource, testName, errors.New("no"))},
		"too many requests": {replicas: 2, err: apierrors.NewTooManyRequests("busy", 1)},
		"not sent":          {replicas: 2, err: notSent{context.DeadlineExceeded}},
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
	for name, tc := range map[string]struct {
		d    *appsv1.Deployment
		pods []pod
		late bool
		want bool
	}{
		"the scale-down is not written":          {d: newDeployment(2), pods: []pod{doomed, other}},
		"the pod exists":                         {d: newDeployment(1, generation(2)), pods: []pod{doomed, other}},
		"the pod is deleted":                     {d: newDeployment(1, generation(2)), pods: []pod{other}, want: true},
		"another pod is deleted":                 {d: newDeployment(1, generation(2)), pods: []pod{doomed}, want: true},
		"a user has scaled up":                   {d: newDeployment(2, generation(3)), pods: []pod{doomed, other}, want: true},
		"the pod is not deleted after that time": {d: newDeployment(1, generation(2)), pods: []pod{doomed, other}, late: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []runtime.Object{tc.d, newReplicaSet()}
			for _, p := range tc.pods {
				objects = append(objects, p.Pod)
			}
			c := newKnowing(t, nil, objects)
			s := situation{deployment: newDeployment(2)}
			is.Equal(t, c.claim(testKey, s, []*pod{&doomed}), 0, "the first claim waits")
			if tc.late {
				r := c.removals.byDeployment[testKey]
				r.until = c.clock.Now()
				c.removals.byDeployment[testKey] = r
			} else {
				is.True(t, c.removals.byDeployment[testKey].until.Sub(c.clock.Now()) > time.Minute, "the removal ends soon")
			}
			waits := c.StandingOfEvicted(other.Pod).Reason == v1alpha1.ReasonPodWaits
			is.Equal(t, waits, !tc.want, "other pods wait")
			is.Equal(t, c.claim(testKey, s, []*pod{&other}) == 0, tc.want, "a further claim is granted")
		})
	}
}

// TestUnknownOutcomeKeepsTheClaim: the API server answers the write of a scale-down with an error.
func TestUnknownOutcomeKeepsTheClaim(t *testing.T) {
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
				w.host.PrependReactor("patch", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
					tried.Add(1)
					return true, nil, tc.err
				})
				w.create(newTestPod("web-1", on("good"), fresh))
				<-time.After(removeTime / 2)
				synctest.Wait()
				_, claimed := w.c.removals.byDeployment[testKey]
				is.Equal(t, claimed, tc.want, "the claim stays")
				is.Equal(t, tried.Load() == 1, tc.want, "the write is tried once")
			})
		})
	}
}

// TestNewLeaderAwaitsAScaleDown: the previous leader may have written it.
func TestNewLeaderAwaitsAScaleDown(t *testing.T) {
	for ago, want := range map[time.Duration]string{replaceTime / 2: v1alpha1.ReasonPodWaits, 2 * replaceTime: ""} {
		c := knowing(t, newDeployment(2, func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = 3, 3 }))
		c.servingSince.Store(ptr.To(c.clock.Now().Add(-ago)))
		is.Equal(t, c.StandingOfEvicted(newTestPod("web-0").Pod).Reason, want, "the reason to stay")
	}
}
