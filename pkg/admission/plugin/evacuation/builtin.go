/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package evacuation

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"haulout.dev/haulout/pkg/apis/maintenance/evacuators"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// BuiltInClasses are the evacuators that pods get by their owner, without an annotation.
var BuiltInClasses = []string{v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassDaemonSet, v1alpha1.EvacuatorClassKubelet}

// liveOwners reads the owners of a pod from the host cluster, for one Evacuation at a time.
type liveOwners struct {
	client kubernetes.Interface
}

var _ evacuators.Owners = liveOwners{}

// ReplicaSet implements evacuators.Owners.
func (o liveOwners) ReplicaSet(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
	object, err := o.client.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
	return found(object, err, "ReplicaSet", name)
}

// Deployment implements evacuators.Owners.
func (o liveOwners) Deployment(ctx context.Context, namespace, name string) (*appsv1.Deployment, error) {
	object, err := o.client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	return found(object, err, "Deployment", name)
}

// DaemonSet implements evacuators.Owners.
func (o liveOwners) DaemonSet(ctx context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
	object, err := o.client.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
	return found(object, err, "DaemonSet", name)
}

// Node implements evacuators.Owners.
func (o liveOwners) Node(ctx context.Context, name string) (*corev1.Node, error) {
	object, err := o.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	return found(object, err, "Node", name)
}

// found turns the answer to a get into that of Owners.
func found[T any](object *T, err error, kind, name string) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("get %s %s from the host cluster: %w", kind, name, err))
	}
	return object, nil
}
