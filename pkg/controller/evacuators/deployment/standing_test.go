// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
)

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
		"a webhook refuses pods":    {d: newDeployment(2, failing(webhook, 1)), pod: newTestPod("web-0").Pod, stays: true},
		"maxSurge is 0":             {d: newDeployment(2, surging("0"), failing(webhook, 1)), pod: newTestPod("web-0").Pod, stays: true},
		"the surge has no pod yet":  {d: newDeployment(2, recorded(1, 2, web0), failing(webhook, 1)), pod: newTestPod("web-0").Pod, stays: true},
		"its replacement is there":  {d: newDeployment(2, recorded(1, 2, web0), failing(webhook, 2)), pod: newTestPod("web-0").Pod},
		"it does not serve":         {d: newDeployment(2, failing(webhook, 1)), pod: newTestPod("web-0", unready).Pod},
		"a quota, which it is in":   {d: newDeployment(2, failing("exceeded quota: small", 1)), pod: newTestPod("web-0").Pod},
		"pods cannot be deleted":    {d: newDeployment(2, failing(webhook, 1), toDelete), pod: newTestPod("web-0").Pod},
		"pods can be created":       {d: newDeployment(2), pod: newTestPod("web-0").Pod},
		"the evacuator is disabled": {d: newDeployment(2, failing(webhook, 1)), pod: newTestPod("web-0").Pod, off: true},
		"surge: Disabled": {
			d: newDeployment(2, failing(webhook, 1), func(d *appsv1.Deployment) {
				d.Annotations = map[string]string{maintenancev1alpha1.AnnotationSurge: maintenancev1alpha1.SurgeDisabled}
			}),
			pod: newTestPod("web-0").Pod,
		},
		"a pod of something else": {
			d: newDeployment(2, failing(webhook, 1)), pod: newTestPod("web-0", func(p *pod) { p.OwnerReferences = nil }).Pod,
		},
	} {
		t.Run(name, func(t *testing.T) {
			deployments := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			sets := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			must.Do(t, errors.Join(deployments.Add(tc.d), sets.Add(newReplicaSet())))
			c := &Controller{
				deploymentLister: appslisters.NewDeploymentLister(deployments), replicaSetLister: appslisters.NewReplicaSetLister(sets), off: tc.off,
			}
			got := c.StandingOfEvicted(tc.pod)
			if stays := got.Reason == maintenancev1alpha1.ReasonReplicaFailure; stays != tc.stays || stays != strings.Contains(got.Message, webhook) {
				t.Errorf("got %+v, want it to stay: %t", got, tc.stays)
			}
		})
	}
}
