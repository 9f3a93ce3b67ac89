// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	hostinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestPreviewsUseCachesFromTheirSyncToTheirEnd(t *testing.T) {
	for name, fails := range map[string]bool{"caches that sync": false, "pods that cannot be listed": true} {
		bubble.Run(t, name, func(t *testing.T) {
			kube := kubefake.NewClientset()
			if fails {
				kube.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
				})
			}
			p := &previewCaches{}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				p.fill(ctx, kube, 0)
			}()
			synctest.Wait()
			is.True(t, (p.synced.Load() == nil) == fails, "before the end, the caches are %v", p.synced.Load())
			end := time.Now()
			cancel()
			<-ended
			is.True(t, time.Since(end) == 0, "it ended after %v", time.Since(end))
			is.True(t, p.synced.Load() == nil, "previews still use the caches after their end")
			// After an error client-go sleeps, by the time of the last error of the whole process.
			<-time.After(100 * 365 * 24 * time.Hour)
		})
	}
}

func TestCachesAreFilledAfterTheDelay(t *testing.T) {
	bubble.Run(t, "a replica that leads before", func(t *testing.T) {
		kube := kubefake.NewClientset()
		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Second)
		defer cancel()
		(&previewCaches{}).fill(ctx, kube, 12*time.Second)
		is.True(t, len(kube.Actions()) == 0, "got %v, want no request", kube.Actions())
	})
}

// TestEndOfCachesKeepsTheNextOnes ends the caches of a replica that leads now, after those of its
// controllers are there.
func TestEndOfCachesKeepsTheNextOnes(t *testing.T) {
	bubble.Run(t, "two caches", func(t *testing.T) {
		p := &previewCaches{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.fill(ctx, kubefake.NewClientset(), 0)
		}()
		synctest.Wait()
		next := &host.Caches{}
		p.synced.Store(next)
		cancel()
		<-ended
		is.True(t, p.synced.Load() == next, "the next caches are gone")
	})
}

func TestReplicasKeepNoImagesOfNodes(t *testing.T) {
	kube := kubefake.NewClientset(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", Annotations: map[string]string{"a": "b"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{}}, Phase: corev1.NodeRunning},
	})
	factory := hostinformers.NewSharedInformerFactory(kube, 0)
	nodes := must.Get(slimNodes(factory))(t)
	factory.StartWithContext(t.Context())
	factory.WaitForCacheSyncWithContext(t.Context())
	node := must.Get(nodes.Lister().Get("n"))(t)
	is.True(t, node.Status.Images == nil && node.ManagedFields == nil, "got images %v, managed fields %v", node.Status.Images, node.ManagedFields)
	is.True(t, node.Annotations["a"] == "b" && node.Status.Phase == corev1.NodeRunning, "got %+v, want all other fields", node)
}
