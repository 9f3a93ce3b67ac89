// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// BuiltInClasses are the classes of the evacuators that pods get because of their owner, without an
// annotation.
var BuiltInClasses = []string{v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassDaemonSet, v1alpha1.EvacuatorClassKubelet}

// liveOwners reads the owners of a pod from the host cluster, for one Evacuation at a time.
type liveOwners struct {
	client kubernetes.Interface
}

var _ protocol.Owners = liveOwners{}

// ReplicaSet implements protocol.Owners.
func (o liveOwners) ReplicaSet(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
	object, err := o.client.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
	return found(object, err, "ReplicaSet", name)
}

// Deployment implements protocol.Owners.
func (o liveOwners) Deployment(ctx context.Context, namespace, name string) (*appsv1.Deployment, error) {
	object, err := o.client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	return found(object, err, "Deployment", name)
}

// DaemonSet implements protocol.Owners.
func (o liveOwners) DaemonSet(ctx context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
	object, err := o.client.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
	return found(object, err, "DaemonSet", name)
}

// Node implements protocol.Owners.
func (o liveOwners) Node(ctx context.Context, name string) (*corev1.Node, error) {
	object, err := o.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	return found(object, err, "Node", name)
}

const (
	// recentTTL is how long an owner is cached, which many pods may share. A wave creates
	// Evacuations of thousands of pods within seconds.
	recentTTL = 2 * time.Second
	// optedOutTTL is the same for a Deployment that has opted out of surges. An evacuator that a
	// pod got by mistake declines; a missing one is never added.
	optedOutTTL = 500 * time.Millisecond
	recentSize  = 1024
	// readTimeout limits the read of an owner, which does not end with the request that started it:
	// other requests may wait for it, too.
	readTimeout = 30 * time.Second
)

// recentOwners caches the existing owners for a short time, with the fields that BuiltInOf reads.
// It does not cache that an owner is missing, since it may have been created in the meantime.
type recentOwners struct {
	protocol.Owners
	memo *ownerMemo
}

// ownerMemo is the cache of recentOwners.
type ownerMemo struct {
	found *utilcache.LRUExpireCache
	// reads are the reads in progress. The requests for the pods of a wave need the same owner at
	// the same time.
	reads singleflight.Group
}

func newOwnerMemo() *ownerMemo {
	return &ownerMemo{found: utilcache.NewLRUExpireCache(recentSize)}
}

// ownerKey identifies an owner.
type ownerKey struct {
	kind, namespace, name string
}

func (k ownerKey) String() string { return k.kind + " " + k.namespace + "/" + k.name }

// ReplicaSet implements protocol.Owners.
func (o recentOwners) ReplicaSet(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
	return recent(ctx, o.memo, ownerKey{"ReplicaSet", namespace, name}, func(ctx context.Context) (*appsv1.ReplicaSet, error) {
		full, err := o.Owners.ReplicaSet(ctx, namespace, name)
		if full == nil || err != nil {
			return nil, err
		}
		return &appsv1.ReplicaSet{ObjectMeta: identityOf(&full.ObjectMeta), Spec: appsv1.ReplicaSetSpec{Selector: full.Spec.Selector}}, nil
	})
}

// Deployment implements protocol.Owners.
func (o recentOwners) Deployment(ctx context.Context, namespace, name string) (*appsv1.Deployment, error) {
	return recent(ctx, o.memo, ownerKey{"Deployment", namespace, name}, func(ctx context.Context) (*appsv1.Deployment, error) {
		full, err := o.Owners.Deployment(ctx, namespace, name)
		if full == nil || err != nil {
			return nil, err
		}
		return protocol.DecidesOf(full), nil
	})
}

// DaemonSet implements protocol.Owners.
func (o recentOwners) DaemonSet(ctx context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
	return recent(ctx, o.memo, ownerKey{"DaemonSet", namespace, name}, func(ctx context.Context) (*appsv1.DaemonSet, error) {
		full, err := o.Owners.DaemonSet(ctx, namespace, name)
		if full == nil || err != nil {
			return nil, err
		}
		return &appsv1.DaemonSet{ObjectMeta: identityOf(&full.ObjectMeta), Spec: appsv1.DaemonSetSpec{Selector: full.Spec.Selector}}, nil
	})
}

func identityOf(meta *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID, OwnerReferences: meta.OwnerReferences}
}

// ttlOf returns how long an owner is cached.
func ttlOf(object any) time.Duration {
	if d, ok := object.(*appsv1.Deployment); ok && d.Annotations[v1alpha1.AnnotationSurge] == v1alpha1.SurgeDisabled {
		return optedOutTTL
	}
	return recentTTL
}

// recent returns the cached object, or else the result of get.
func recent[T any](ctx context.Context, memo *ownerMemo, key ownerKey, get func(context.Context) (*T, error)) (*T, error) {
	if object, ok := memo.found.Get(key); ok {
		return object.(*T), nil
	}
	read := memo.reads.DoChan(key.String(), func() (any, error) {
		if object, ok := memo.found.Get(key); ok {
			// Another read has finished in the meantime.
			return object, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer cancel()
		object, err := get(ctx)
		if object != nil && err == nil {
			memo.found.Add(key, object, ttlOf(object))
		}
		return object, err
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case answer := <-read:
		return answer.Val.(*T), answer.Err
	}
}

// builtInOf returns the built-in evacuator of a pod.
func (p *Plugin) builtInOf(ctx context.Context, pod *corev1.Pod) (protocol.BuiltIn, error) {
	live := liveOwners{p.client}
	builtIn, err := protocol.BuiltInOf(ctx, pod, p.builtIn, recentOwners{live, p.owners})
	if err != nil || builtIn.Class != "" || builtIn.OptedOut {
		return builtIn, err
	}
	return protocol.BuiltInOf(ctx, pod, p.builtIn, live)
}

// found converts the result of a get into that of Owners.
func found[T any](object *T, err error, kind, name string) (*T, error) {
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("get %s %s from the host cluster: %w", kind, name, err))
	}
	return object, nil
}
