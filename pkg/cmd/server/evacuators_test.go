// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestSurgeTimeoutOf(t *testing.T) {
	const fallback = 5 * time.Minute
	app := map[string]string{"app": "web"}
	deployment := func(annotations map[string]string) *appsv1.Deployment {
		return &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-shop", Annotations: annotations},
			Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: app}},
		}
	}
	slow := deployment(map[string]string{v1alpha1.AnnotationSurgeTimeout: "20m"})
	nonsense := deployment(map[string]string{v1alpha1.AnnotationSurgeTimeout: "soon"})
	for name, tt := range map[string]struct {
		deployment  *appsv1.Deployment
		kind, owner string
		labels      map[string]string
		want        time.Duration
	}{
		"what its Deployment says":              {slow, "ReplicaSet", "web-shop-6b59d9cb88", app, 20 * time.Minute},
		"the flag if the Deployment says none":  {deployment(nil), "ReplicaSet", "web-shop-6b59d9cb88", app, fallback},
		"the flag if it says nonsense":          {nonsense, "ReplicaSet", "web-shop-6b59d9cb88", app, fallback},
		"the flag if the Deployment is unknown": {slow, "ReplicaSet", "api-6b59d9cb88", app, fallback},
		"the flag if it only looks like its": {
			deployment: slow, kind: "ReplicaSet", owner: "web-shop-6b59d9cb88", labels: map[string]string{"app": "api"},
			want: fallback,
		},
		"the flag for a ReplicaSet by itself": {slow, "ReplicaSet", "web", app, fallback},
		"the flag for other owners":           {slow, "StatefulSet", "web-shop-0", app, fallback},
	} {
		t.Run(name, func(t *testing.T) {
			indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{
				cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
			})
			must.Do(t, indexer.Add(tt.deployment))
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "web-x", Labels: tt.labels,
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "apps/v1", Kind: tt.kind, Name: tt.owner, Controller: ptr.To(true)},
				},
			}}
			is.Equal(t, surgeTimeoutOf(appslisters.NewDeploymentLister(indexer), fallback)(pod), tt.want)
		})
	}
}
