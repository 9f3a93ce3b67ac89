// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	hostinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/read"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestPreviewsUseTheCachesOfATerm(t *testing.T) {
	for name, fails := range map[string]bool{"caches that sync": false, "pods that cannot be listed": true} {
		bubble.Run(t, name, func(t *testing.T) {
			kube := kubefake.NewClientset()
			if fails {
				kube.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
				})
			}
			cluster := must.Get(host.NewCluster(host.Clients{Client: kube, Maintenance: maintenancefake.NewClientset()}, 0))(t)
			d := controllerDependencies{caches: &atomic.Pointer[read.Caches]{}}
			ctx, cancel := context.WithCancel(t.Context())
			cluster.Start(ctx)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				d.lend(ctx, cluster)
			}()
			synctest.Wait()
			is.True(t, (d.caches.Load() == nil) == fails, "during the term, the caches are %v", d.caches.Load())
			cancel()
			<-ended
			is.True(t, d.caches.Load() == nil, "previews still use the caches after the term")
			cluster.Shutdown()
		})
	}
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
