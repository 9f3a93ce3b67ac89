// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
)

// downAfter is the time between the departure of a pod and the check of its app: a replacement
// needs time to start.
const downAfter = time.Minute

// hasLeft reports whether the pod of an Evacuation left its node so long ago that the replacement
// should be ready. The server keeps such Evacuations for some minutes.
func hasLeft(e *v1alpha1.Evacuation, now time.Time) bool {
	at, left := protocol.LeftAt(e)
	return left && now.Sub(at) >= downAfter
}

// appsDown returns the Deployments and StatefulSets that have lost a pod to a maintenance and have
// no ready pod. It omits workloads that the user may not read. With an error it returns what it has
// found before.
func appsDown(ctx context.Context, c clients, left []v1alpha1.Evacuation) ([]show.AppDown, error) {
	byNamespace := map[string][]labels.Set{}
	for i := range left {
		if e := &left[i]; len(e.Labels) > 0 {
			byNamespace[e.Namespace] = append(byNamespace[e.Namespace], e.Labels)
		}
	}
	var down []show.AppDown
	for _, namespace := range sets.List(sets.KeySet(byNamespace)) {
		add := func(kind, name string, selector *metav1.LabelSelector, replicas *int32, ready int32) {
			parsed, err := metav1.LabelSelectorAsSelector(selector)
			if err != nil || ready > 0 || replicas != nil && *replicas == 0 {
				return
			}
			if slices.ContainsFunc(byNamespace[namespace], func(pod labels.Set) bool { return parsed.Matches(pod) }) {
				down = append(down, show.AppDown{Kind: kind, Namespace: namespace, Name: name})
			}
		}
		deployments, err := c.kube.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
		if err != nil && !apierrors.IsForbidden(err) {
			return down, err
		}
		if err == nil {
			for i := range deployments.Items {
				d := &deployments.Items[i]
				add("Deployment", d.Name, d.Spec.Selector, d.Spec.Replicas, d.Status.ReadyReplicas)
			}
		}
		statefulSets, err := c.kube.AppsV1().StatefulSets(namespace).List(ctx, metav1.ListOptions{})
		if err != nil && !apierrors.IsForbidden(err) {
			return down, err
		}
		if err == nil {
			for i := range statefulSets.Items {
				s := &statefulSets.Items[i]
				add("StatefulSet", s.Name, s.Spec.Selector, s.Spec.Replicas, s.Status.ReadyReplicas)
			}
		}
	}
	return down, nil
}
