// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package owners

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/host/podcache"
)

// replicaSetsByDeployment is the index of ReplicaSets by the namespace and the name of their
// Deployment. A recreated Deployment has the same name and another UID.
const replicaSetsByDeployment = "haulout.dev/replicasets-by-deployment"

// Cached returns owners and their pods from the caches of informers. Its methods do not block. The
// caller must not change the objects.
type Cached struct {
	pods                                                      *podcache.Pods
	replicaSets, deployments, statefulSets, daemonSets, nodes cache.SharedIndexInformer
}

var _ protocol.Owners = &Cached{}

// NewCached returns the owners in the caches of the informers, which must not run yet.
func NewCached(pods *podcache.Pods, nodes coreinformers.NodeInformer, apps appsinformers.Interface) (*Cached, error) {
	c := &Cached{
		pods: pods, replicaSets: apps.ReplicaSets().Informer(), deployments: apps.Deployments().Informer(),
		statefulSets: apps.StatefulSets().Informer(), daemonSets: apps.DaemonSets().Informer(), nodes: nodes.Informer(),
	}
	if err := podcache.AddIndex(c.replicaSets, replicaSetsByDeployment, indexByDeployment); err != nil {
		return nil, fmt.Errorf("add index of ReplicaSets: %w", err)
	}
	return c, nil
}

func indexByDeployment(obj any) ([]string, error) {
	if set, ok := obj.(*appsv1.ReplicaSet); ok {
		if deployment := protocol.ControllerOf(set, "Deployment"); deployment != nil {
			return []string{set.Namespace + "/" + deployment.Name}, nil
		}
	}
	return nil, nil
}

// HasSynced reports whether the caches of the owners are synced. It does not check the cache of
// pods, since the users of that cache check their handlers.
func (c *Cached) HasSynced() bool {
	for _, informer := range []cache.SharedIndexInformer{c.replicaSets, c.deployments, c.statefulSets, c.daemonSets, c.nodes} {
		if !informer.HasSynced() {
			return false
		}
	}
	return true
}

// ReplicaSet implements protocol.Owners.
func (c *Cached) ReplicaSet(_ context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
	return inCache[appsv1.ReplicaSet](c.replicaSets, namespace+"/"+name)
}

// Deployment implements protocol.Owners.
func (c *Cached) Deployment(_ context.Context, namespace, name string) (*appsv1.Deployment, error) {
	return inCache[appsv1.Deployment](c.deployments, namespace+"/"+name)
}

// DaemonSet implements protocol.Owners.
func (c *Cached) DaemonSet(_ context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
	return inCache[appsv1.DaemonSet](c.daemonSets, namespace+"/"+name)
}

// Node implements protocol.Owners.
func (c *Cached) Node(_ context.Context, name string) (*corev1.Node, error) {
	return inCache[corev1.Node](c.nodes, name)
}

func inCache[T any](informer cache.SharedIndexInformer, key string) (*T, error) {
	object, _, err := informer.GetStore().GetByKey(key)
	found, _ := object.(*T)
	return found, err
}

// ReplicaSets returns the ReplicaSets of the Deployments that have or had this name. A recreated
// Deployment has the same name as before.
func (c *Cached) ReplicaSets(deployment types.NamespacedName) []*appsv1.ReplicaSet {
	objects, _ := c.replicaSets.GetIndexer().ByIndex(replicaSetsByDeployment, deployment.String())
	sets := make([]*appsv1.ReplicaSet, 0, len(objects))
	for _, object := range objects {
		sets = append(sets, object.(*appsv1.ReplicaSet))
	}
	return sets
}

// Pods returns the pods of a namespace whose controller has the UID.
func (c *Cached) Pods(namespace string, controller types.UID) []*corev1.Pod {
	return c.pods.Of(namespace, controller)
}

// Workload is the workload of a pod: its Deployment, or else its controller.
type Workload struct {
	UID        types.UID
	Kind, Name string
	// Desired is the desired number of pods; it is negative if it is not known.
	Desired int
	// Controllers are the UIDs of the controllers that pods of the workload may have.
	Controllers []types.UID
}

// Of returns the workload of pods with the given controller. It returns false if these pods do not
// wait for each other: pods of DaemonSets, Jobs and nodes. If the kind of the controller is not
// known, or the cache does not have the controller, Desired is negative.
func (c *Cached) Of(namespace string, controller *metav1.OwnerReference) (Workload, bool) {
	workload := Workload{UID: controller.UID, Kind: controller.Kind, Name: controller.Name, Desired: -1, Controllers: []types.UID{controller.UID}}
	switch protocol.GroupKindOf(controller) {
	case protocol.AppsKind("DaemonSet"), jobKind, nodeKind:
		return Workload{}, false
	case protocol.AppsKind("StatefulSet"):
		if set, err := inCache[appsv1.StatefulSet](c.statefulSets, namespace+"/"+controller.Name); err == nil && set != nil && set.UID == controller.UID {
			workload.Desired = int(ptr.Deref(set.Spec.Replicas, 1))
		}
	case protocol.AppsKind("ReplicaSet"):
		set, err := inCache[appsv1.ReplicaSet](c.replicaSets, namespace+"/"+controller.Name)
		if err != nil || set == nil || set.UID != controller.UID {
			break
		}
		workload.Desired = int(ptr.Deref(set.Spec.Replicas, 1))
		if by := protocol.ControllerOf(set, "Deployment"); by != nil {
			return c.ofDeployment(namespace, by, workload), true
		}
	}
	return workload, true
}

// ofDeployment returns the Deployment of a ReplicaSet as its workload, or replicaSet if the cache
// does not have the Deployment.
func (c *Cached) ofDeployment(namespace string, by *metav1.OwnerReference, replicaSet Workload) Workload {
	deployment, err := inCache[appsv1.Deployment](c.deployments, namespace+"/"+by.Name)
	if err != nil || deployment == nil || deployment.UID != by.UID {
		return replicaSet
	}
	workload := Workload{UID: by.UID, Kind: by.Kind, Name: by.Name, Desired: int(ptr.Deref(deployment.Spec.Replicas, 1))}
	for _, set := range c.ReplicaSets(types.NamespacedName{Namespace: namespace, Name: by.Name}) {
		if metav1.IsControlledBy(set, deployment) {
			workload.Controllers = append(workload.Controllers, set.UID)
		}
	}
	return workload
}
