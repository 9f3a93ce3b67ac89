// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

// knowing returns a controller whose caches have a Deployment and the ReplicaSet of its pods.
func knowing(t *testing.T, d *appsv1.Deployment) *Controller {
	t.Helper()
	return newKnowing(t, nil, []runtime.Object{d, newReplicaSet()})
}

func TestSurgeTimeout(t *testing.T) {
	with := func(timeout string) *appsv1.Deployment {
		return newDeployment(1, func(d *appsv1.Deployment) {
			d.Annotations = map[string]string{v1alpha1.AnnotationSurgeTimeout: timeout}
		})
	}
	owner := func(mod func(*metav1.OwnerReference)) podMod { return func(p *pod) { mod(&p.OwnerReferences[0]) } }
	const fallback = 5 * time.Minute
	for name, tc := range map[string]struct {
		d    *appsv1.Deployment
		mods []podMod
		want time.Duration
	}{
		"the annotation of the Deployment":             {d: with("20m"), want: 20 * time.Minute},
		"the flag if the Deployment has no annotation": {d: newDeployment(1), want: fallback},
		"the flag if the annotation is invalid":        {d: with("soon"), want: fallback},
		"the flag if the ReplicaSet is unknown":        {d: with("20m"), mods: []podMod{owner(func(o *metav1.OwnerReference) { o.Name = "web-2" })}, want: fallback},
		"the flag if another ReplicaSet has the name":  {d: with("20m"), mods: []podMod{owner(func(o *metav1.OwnerReference) { o.UID = "uid-web-2" })}, want: fallback},
		"the flag for other owners":                    {d: with("20m"), mods: []podMod{owner(func(o *metav1.OwnerReference) { o.Kind = "StatefulSet" })}, want: fallback},
	} {
		t.Run(name, func(t *testing.T) {
			c := knowing(t, tc.d)
			c.timeout = fallback
			if got := c.SurgeTimeout(newTestPod("web-0", tc.mods...).Pod); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestPodUpForEvictionStaysWhileNoneCanBeCreated(t *testing.T) {
	failing := func(message string, available int32) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Status.AvailableReplicas = available
			d.Status.Conditions = []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: failedCreate, Message: message},
			}
		}
	}
	toDelete := func(d *appsv1.Deployment) { d.Status.Conditions[0].Reason = "FailedDelete" }
	const webhook = `admission webhook "w.example.com" does not answer`
	for name, tc := range map[string]struct {
		d     *appsv1.Deployment
		pod   *corev1.Pod
		off   bool
		stays bool
	}{
		"a webhook refuses pods":       {d: newDeployment(2, failing(webhook, 1)), pod: newTestPod("web-0").Pod, stays: true},
		"maxSurge is 0":                {d: newDeployment(2, surging("0"), failing(webhook, 1)), pod: newTestPod("web-0").Pod, stays: true},
		"the surge has no pod yet":     {d: newDeployment(2, recorded(1, 2, web0), failing(webhook, 1)), pod: newTestPod("web-0").Pod, stays: true},
		"its replacement is available": {d: newDeployment(2, recorded(1, 2, web0), failing(webhook, 2)), pod: newTestPod("web-0").Pod},
		"the pod is not ready":         {d: newDeployment(2, failing(webhook, 1)), pod: newTestPod("web-0", unready).Pod},
		"a quota that counts the pod":  {d: newDeployment(2, failing("exceeded quota: small", 1)), pod: newTestPod("web-0").Pod},
		"pods cannot be deleted":       {d: newDeployment(2, failing(webhook, 1), toDelete), pod: newTestPod("web-0").Pod},
		"pods can be created":          {d: newDeployment(2), pod: newTestPod("web-0").Pod},
		"the evacuator is disabled":    {d: newDeployment(2, failing(webhook, 1)), pod: newTestPod("web-0").Pod, off: true},
		"surge: Disabled": {
			d: newDeployment(2, failing(webhook, 1), func(d *appsv1.Deployment) {
				d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
			}),
			pod: newTestPod("web-0").Pod,
		},
		"a pod of another controller": {
			d: newDeployment(2, failing(webhook, 1)), pod: newTestPod("web-0", func(p *pod) { p.OwnerReferences = nil }).Pod,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := knowing(t, tc.d)
			c.off = tc.off
			got := c.StandingOfEvicted(tc.pod)
			if stays := got.Reason == v1alpha1.ReasonReplicaFailure; stays != tc.stays || stays != strings.Contains(got.Message, webhook) {
				t.Errorf("got %+v, want it to stay: %t", got, tc.stays)
			}
		})
	}
}

func TestPodUpForEvictionStaysDuringAScaleDown(t *testing.T) {
	has := func(pods, updated int32) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = pods, updated }
	}
	disabled := func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
	}
	for name, tc := range map[string]struct {
		d *appsv1.Deployment
		// from is the replica count before this evacuator wrote the present one, and ago the time
		// since then.
		from int32
		ago  time.Duration
		// user is the replica count before a user set the present one.
		user int32
		want string
	}{
		"a pod has to be deleted":                  {d: newDeployment(2, has(3, 3)), from: 3, want: v1alpha1.ReasonPodWaits},
		"a pod has to be deleted, surge: Disabled": {d: newDeployment(2, has(3, 3), disabled), from: 3, want: v1alpha1.ReasonPodWaits},
		"a pod has to be deleted for a while":      {d: newDeployment(2, has(3, 3)), from: 3, ago: 2 * replaceTime, want: v1alpha1.ReasonPodWaits},
		"a pod has to be deleted for too long":     {d: newDeployment(2, has(3, 3)), from: 3, ago: removeTime},
		"a user has scaled down":                   {d: newDeployment(2, has(3, 3)), from: 2, user: 3, want: v1alpha1.ReasonPodWaits},
		"a user has scaled down and up again":      {d: newDeployment(3, has(3, 3)), from: 2, user: 2},
		"a user scaled down before this leader":    {d: newDeployment(2, has(3, 3)), from: 2},
		"the event has not been handled": {
			d: newDeployment(2, has(3, 3), func(d *appsv1.Deployment) { d.Generation++ }), from: 2, want: v1alpha1.ReasonPodWaits,
		},
		"the pod is deleted":         {d: newDeployment(2, has(2, 2)), from: 3},
		"a rollout has an extra pod": {d: newDeployment(2, has(3, 1)), from: 3},
		"all pods of a surge exist":  {d: newDeployment(2, recorded(1, 2, web0), has(2, 2)), from: 1},
		"the Deployment is being deleted": {d: newDeployment(2, has(3, 3), func(d *appsv1.Deployment) {
			d.DeletionTimestamp = &metav1.Time{Time: start}
		}), from: 3},
	} {
		t.Run(name, func(t *testing.T) {
			c := knowing(t, tc.d)
			key := types.NamespacedName{Namespace: testNamespace, Name: testName}
			c.servingSince.Store(ptr.To(c.clock.Now().Add(-removeTime)))
			c.known.wrote(key, scaling{value: tc.d.Spec.Replicas}, tc.from, c.clock.Now().Add(-tc.ago))
			if tc.user > 0 {
				c.deploymentChanged(newDeployment(tc.user, has(3, 3)), tc.d)
			}
			if got := c.StandingOfEvicted(newTestPod("web-0").Pod); got.Reason != tc.want {
				t.Errorf("got %+v, want reason %q", got, tc.want)
			}
		})
	}
}

// TestEvictionsAwaitTheBudgetAfterAScaleDown: a user has scaled down, and the ReplicaSet has
// deleted a pod.
func TestEvictionsAwaitTheBudgetAfterAScaleDown(t *testing.T) {
	has := func(replicas, pods int32) *appsv1.Deployment {
		return newDeployment(replicas, func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = pods, pods })
	}
	for name, tc := range map[string]struct {
		healthy int32
		ago     time.Duration
		want    string
	}{
		"a budget counts the pod":          {healthy: 3, want: v1alpha1.ReasonPodWaits},
		"it has counted it for a while":    {healthy: 3, ago: statusTime},
		"it does not count the pod":        {healthy: 2},
		"it does not count another either": {healthy: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b, first := newBudget(), newTestPod("web-0")
			b.Status.CurrentHealthy = tc.healthy
			c := newKnowing(t, nil, []runtime.Object{has(2, 2), newReplicaSet(), b, first.Pod, newTestPod("web-1").Pod})
			c.deploymentChanged(has(3, 3), has(2, 3))
			c.deploymentChanged(has(2, 3), has(2, 2))
			c.lowered.Change(testKey, func(l lowering, _ bool) (lowering, bool) { return lowering{l.since, l.deleted.Add(-tc.ago)}, true })
			is.Equal(t, c.StandingOfEvicted(first.Pod).Reason, tc.want, "the reason to stay")
		})
	}
}

// TestEventsOfAScaleDownComeLate covers a scale-down of a user whose last event is not handled.
func TestEventsOfAScaleDownComeLate(t *testing.T) {
	has := func(replicas, pods int32) *appsv1.Deployment {
		return newDeployment(replicas, func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = pods, pods })
	}
	t.Run("the pods are deleted", func(t *testing.T) {
		b, first := newBudget(), newTestPod("web-0")
		b.Status.CurrentHealthy = 3
		c := newKnowing(t, nil, []runtime.Object{has(2, 2), newReplicaSet(), b, first.Pod, newTestPod("web-1").Pod})
		c.deploymentChanged(has(3, 3), has(2, 3))
		is.Equal(t, c.StandingOfEvicted(first.Pod).Reason, v1alpha1.ReasonPodWaits, "the reason to stay")
	})
	t.Run("a second scale-down has begun", func(t *testing.T) {
		c := knowing(t, has(2, 3))
		c.lowered.Set(testKey, lowering{since: c.clock.Now().Add(-removeTime)})
		c.deploymentChanged(has(3, 3), has(2, 3))
		is.Equal(t, c.StandingOfEvicted(newTestPod("web-0").Pod).Reason, v1alpha1.ReasonPodWaits, "the reason to stay")
	})
}

// TestScaleDownCountsFromItsWrite writes a scale-down that the cache does not have yet.
func TestScaleDownCountsFromItsWrite(t *testing.T) {
	d := newDeployment(3, func(d *appsv1.Deployment) {
		d.ResourceVersion, d.Status.Replicas, d.Status.UpdatedReplicas = "7", 3, 3
	})
	c := knowing(t, d)
	if got := c.StandingOfEvicted(newTestPod("web-0").Pod); got != (Standing{}) {
		t.Fatalf("got %+v before the scale-down", got)
	}
	written := d.DeepCopy()
	written.ResourceVersion, written.Spec.Replicas = "8", ptr.To[int32](2)
	c.latestDeployments.Wrote(written)
	c.known.wrote(types.NamespacedName{Namespace: testNamespace, Name: testName}, scaling{value: written.Spec.Replicas}, 3, c.clock.Now())
	if got := c.StandingOfEvicted(newTestPod("web-0").Pod); got.Reason != v1alpha1.ReasonPodWaits {
		t.Errorf("got %+v after the scale-down", got)
	}
}

// TestScaleDownIsRememberedForAWhile syncs a Deployment that needs no action after its scale-down.
func TestScaleDownIsRememberedForAWhile(t *testing.T) {
	key := types.NamespacedName{Namespace: testNamespace, Name: testName}
	for name, tc := range map[string]struct {
		ago  time.Duration
		pods int32
		want bool
	}{
		"a moment ago":                            {pods: 1, want: true},
		"ten seconds ago":                         {pods: 1, ago: replaceTime},
		"ten seconds ago, and pods are left":      {pods: 2, ago: replaceTime, want: true},
		"five minutes ago, and pods are left too": {pods: 2, ago: removeTime},
	} {
		t.Run(name, func(t *testing.T) {
			c := knowing(t, newDeployment(1, func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = tc.pods, tc.pods }))
			c.known.wrote(key, scaling{value: ptr.To[int32](1)}, 2, c.clock.Now().Add(-tc.ago))
			c.known.change(key, func(s *state) { s.surplus = map[types.UID]struct{}{"surplus": {}} })
			if err := c.syncDeployment(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			if got := c.known.isTracked(key); got != tc.want {
				t.Errorf("remembered: %t, want %t", got, tc.want)
			}
			if got := c.known.get(key).surplus != nil; got != tc.want {
				t.Errorf("the surplus is remembered: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestWhyPodsAreNotReplaced covers the reason that the advice about a budget needs.
func TestWhyPodsAreNotReplaced(t *testing.T) {
	for name, tc := range map[string]struct {
		d    *appsv1.Deployment
		last string
		want string
	}{
		"it is scaled up": {d: newDeployment(2)},
		"surge: Disabled": {d: newDeployment(2, func(d *appsv1.Deployment) {
			d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
		}), want: "has the annotation " + v1alpha1.AnnotationSurge + ": " + v1alpha1.SurgeDisabled},
		"maxSurge 0":                            {d: newDeployment(2, surging("0")), want: "has maxSurge 0: it does not allow more pods than its replicas"},
		"a reason that the last sync has found": {d: newDeployment(2), last: "cannot be scaled up: no", want: "cannot be scaled up: no"},
	} {
		t.Run(name, func(t *testing.T) {
			c := knowing(t, tc.d)
			if tc.last != "" {
				c.known.change(types.NamespacedName{Namespace: tc.d.Namespace, Name: tc.d.Name}, func(s *state) { s.notReplaced = tc.last })
			}
			deployment, why := c.NotReplaced(newTestPod("web-0").Pod)
			if why != tc.want || (deployment == tc.d.Name) != (why != "") {
				t.Errorf("got Deployment %q %q, want %q", deployment, why, tc.want)
			}
		})
	}
}

// TestScaleDownStandsInTheWay: a pod is not evicted while the ReplicaSet has to delete pods, also
// after this evacuator was disabled.
func TestScaleDownStandsInTheWay(t *testing.T) {
	shrinking := newDeployment(1, func(d *appsv1.Deployment) {
		d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = 2, 2, 2
	})
	for name, change := range map[string]func(*Controller){
		"a scale-down of this leader": func(c *Controller) { c.known.wrote(testKey, scaling{value: new(int32(1))}, 2, c.clock.Now()) },
		"before it is disabled": func(c *Controller) {
			c.known.wrote(testKey, scaling{value: new(int32(1))}, 2, c.clock.Now())
			c.off = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := knowing(t, shrinking)
			change(c)
			got := c.StandingOfEvicted(newTestPod("web-0", minOne(2, 2)).Pod).Reason
			if got != v1alpha1.ReasonPodWaits {
				t.Errorf("got the reason %q", got)
			}
		})
	}
}

// TestNumberOfAUserIsNotOurs: the number of replicas that a user has set is not taken for that of a
// surge, whichever way it was set.
func TestNumberOfAUserIsNotOurs(t *testing.T) {
	for name, tc := range map[string]struct {
		manager, subresource string
		want                 bool
	}{
		"kubectl scale": {"kubectl", "scale", false},
		"kubectl edit":  {"kubectl-edit", "", false},
		"the surge":     {fieldManager, "", true},
		"its status":    {"kube-controller-manager", "status", true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDeployment(2, recorded(1, 2, web0), func(d *appsv1.Deployment) {
				d.ManagedFields = []metav1.ManagedFieldsEntry{{
					Manager: tc.manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: tc.subresource, APIVersion: "apps/v1",
					FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`),
				}}
			})
			c := knowing(t, d)
			if got, err := c.isOurs(t.Context(), d, "replicas"); err != nil || got != tc.want {
				t.Errorf("got %t, %v, want %t", got, err, tc.want)
			}
			kept, err := c.scale(t.Context(), testKey, at(0, d), scaling{value: ptr.To[int32](1)})
			is.True(t, err == nil && kept == !tc.want, "the number is kept: %t, %v", kept, err)
		})
	}
}
