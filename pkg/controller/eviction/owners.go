// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/host/podcache"
)

// Owners tells which workload a pod belongs to. Its methods read caches: they must not block.
type Owners interface {
	// Of returns the workload of the pods of a namespace that have the given controller; false if
	// such pods need no turns.
	Of(namespace string, controller *metav1.OwnerReference) (Owner, bool)
	// Pods returns the pods of a namespace whose controller has the UID.
	Pods(namespace string, controller types.UID) []*corev1.Pod
	// HasSynced reports whether the caches have been filled.
	HasSynced() bool
}

// Owner is the workload that pods belong to: the Deployment, else their controller.
type Owner struct {
	UID        types.UID
	Kind, Name string
	// Desired is how many pods there should be; negative if only the number of its pods tells.
	Desired int
	// Controllers are the UIDs that its pods may have as their controller's.
	Controllers []types.UID
}

const (
	podsByController        = "haulout.dev/pods-by-controller"
	replicaSetsByController = "haulout.dev/replicasets-by-controller"
)

type hostOwners struct {
	pods, replicaSets     cache.Indexer
	replicaSetLister      appslisters.ReplicaSetLister
	deploymentLister      appslisters.DeploymentLister
	statefulSetLister     appslisters.StatefulSetLister
	informersThatMustSync []cache.InformerSynced
}

// NewOwners returns the workloads that informers of the host cluster know. The informers must not
// run yet.
func NewOwners(host informers.SharedInformerFactory) (Owners, error) {
	pods, apps := host.Core().V1().Pods().Informer(), host.Apps().V1()
	if err := podcache.AddIndex(pods, podsByController, func(obj any) ([]string, error) {
		if pod := podcache.UnpackPod(obj); pod != nil {
			return controllerOf(pod), nil
		}
		return nil, nil
	}); err != nil {
		return nil, fmt.Errorf("add index of pods: %w", err)
	}
	if err := podcache.AddIndex(apps.ReplicaSets().Informer(), replicaSetsByController, func(obj any) ([]string, error) {
		if set, ok := obj.(*appsv1.ReplicaSet); ok {
			return controllerOf(set), nil
		}
		return nil, nil
	}); err != nil {
		return nil, fmt.Errorf("add index of ReplicaSets: %w", err)
	}
	return &hostOwners{
		pods: pods.GetIndexer(), replicaSets: apps.ReplicaSets().Informer().GetIndexer(),
		replicaSetLister: apps.ReplicaSets().Lister(), deploymentLister: apps.Deployments().Lister(), statefulSetLister: apps.StatefulSets().Lister(),
		informersThatMustSync: []cache.InformerSynced{
			apps.ReplicaSets().Informer().HasSynced, apps.Deployments().Informer().HasSynced, apps.StatefulSets().Informer().HasSynced,
		},
	}, nil
}

func controllerOf(o metav1.Object) []string {
	if controller := metav1.GetControllerOfNoCopy(o); controller != nil {
		return []string{o.GetNamespace() + "/" + string(controller.UID)}
	}
	return nil
}

func (o *hostOwners) HasSynced() bool {
	for _, synced := range o.informersThatMustSync {
		if !synced() {
			return false
		}
	}
	return true
}

func (o *hostOwners) Pods(namespace string, controller types.UID) []*corev1.Pod {
	objects, err := o.pods.ByIndex(podsByController, namespace+"/"+string(controller))
	if err != nil {
		return nil
	}
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, obj := range objects {
		if pod := podcache.UnpackPod(obj); pod != nil {
			pods = append(pods, pod)
		}
	}
	return pods
}

func (o *hostOwners) Of(namespace string, controller *metav1.OwnerReference) (Owner, bool) {
	// A workload whose controller is not known, or not in the cache, has as many pods as it has
	// had.
	owner := Owner{UID: controller.UID, Kind: controller.Kind, Name: controller.Name, Desired: -1, Controllers: []types.UID{controller.UID}}
	gv, err := schema.ParseGroupVersion(controller.APIVersion)
	if err != nil {
		return owner, true
	}
	switch (schema.GroupKind{Group: gv.Group, Kind: controller.Kind}) {
	case schema.GroupKind{Group: "apps", Kind: "DaemonSet"}, schema.GroupKind{Group: "batch", Kind: "Job"}, schema.GroupKind{Kind: "Node"}:
		return Owner{}, false
	case schema.GroupKind{Group: "apps", Kind: "StatefulSet"}:
		if set, err := o.statefulSetLister.StatefulSets(namespace).Get(controller.Name); err == nil && set.UID == controller.UID {
			owner.Desired = int(ptr.Deref(set.Spec.Replicas, 1))
		}
	case schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}:
		set, err := o.replicaSetLister.ReplicaSets(namespace).Get(controller.Name)
		if err != nil || set.UID != controller.UID {
			break
		}
		owner.Desired = int(ptr.Deref(set.Spec.Replicas, 1))
		if by := metav1.GetControllerOfNoCopy(set); by != nil && by.Kind == "Deployment" {
			return o.deployment(namespace, by, owner), true
		}
	}
	return owner, true
}

// deployment returns the Deployment of a ReplicaSet, or the ReplicaSet as the owner if the cache
// has no such Deployment.
func (o *hostOwners) deployment(namespace string, by *metav1.OwnerReference, replicaSet Owner) Owner {
	deployment, err := o.deploymentLister.Deployments(namespace).Get(by.Name)
	if err != nil || deployment.UID != by.UID {
		return replicaSet
	}
	sets, err := o.replicaSets.ByIndex(replicaSetsByController, namespace+"/"+string(by.UID))
	if err != nil {
		return replicaSet
	}
	owner := Owner{UID: by.UID, Kind: by.Kind, Name: by.Name, Desired: int(ptr.Deref(deployment.Spec.Replicas, 1))}
	for _, obj := range sets {
		if set, ok := obj.(*appsv1.ReplicaSet); ok {
			owner.Controllers = append(owner.Controllers, set.UID)
		}
	}
	return owner
}
