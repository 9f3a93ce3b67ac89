// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package owners

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/surge"
)

// Kind reads the owners of one kind from the API, and removes the fields that its users do not
// need.
type Kind[T any] struct {
	name string
	// Get returns an object, or nil if there is none.
	Get func(ctx context.Context, namespace, name string) (*T, error)
	// List returns one page of a list, and the token of the next page.
	List func(ctx context.Context, namespace string, options metav1.ListOptions) (page []T, next string, err error)
	// Keep returns a copy with only the fields that decisions depend on.
	Keep func(*T) *T
}

// reader is a typed client for one kind.
type reader[T any, L metav1.ListInterface] interface {
	Get(context.Context, string, metav1.GetOptions) (*T, error)
	List(context.Context, metav1.ListOptions) (L, error)
}

func kindOf[T any, L metav1.ListInterface, R reader[T, L]](name string, in func(namespace string) R, items func(L) []T, keep func(*T) *T) Kind[T] {
	return Kind[T]{
		name: name,
		Keep: keep,
		Get: func(ctx context.Context, namespace, object string) (*T, error) {
			// The API server does not check the names of owners and claims in a pod. No object has
			// such a name, and the client returns an error for it.
			if len(rest.IsValidPathSegmentName(object)) > 0 {
				return nil, nil
			}
			found, err := in(namespace).Get(ctx, object, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil, nil
			}
			if err != nil {
				return nil, fmt.Errorf("get %s %s from the host cluster: %w", name, object, err)
			}
			return found, nil
		},
		List: func(ctx context.Context, namespace string, options metav1.ListOptions) ([]T, string, error) {
			list, err := in(namespace).List(ctx, options)
			if err != nil {
				return nil, "", err
			}
			return items(list), list.GetContinue(), nil
		},
	}
}

// ReplicaSets returns the Kind of ReplicaSets: it keeps their selector and owners.
func ReplicaSets(host kubernetes.Interface) Kind[appsv1.ReplicaSet] {
	return kindOf("ReplicaSet", host.AppsV1().ReplicaSets, func(l *appsv1.ReplicaSetList) []appsv1.ReplicaSet { return l.Items },
		func(full *appsv1.ReplicaSet) *appsv1.ReplicaSet {
			return &appsv1.ReplicaSet{ObjectMeta: identity(full), Spec: appsv1.ReplicaSetSpec{Selector: full.Spec.Selector}}
		})
}

// Deployments returns the Kind of Deployments: it keeps the fields that surges depend on.
func Deployments(host kubernetes.Interface) Kind[appsv1.Deployment] {
	return kindOf("Deployment", host.AppsV1().Deployments, func(l *appsv1.DeploymentList) []appsv1.Deployment { return l.Items }, surge.DecidesOf)
}

// DaemonSets returns the Kind of DaemonSets: it keeps their selector.
func DaemonSets(host kubernetes.Interface) Kind[appsv1.DaemonSet] {
	return kindOf("DaemonSet", host.AppsV1().DaemonSets, func(l *appsv1.DaemonSetList) []appsv1.DaemonSet { return l.Items },
		func(full *appsv1.DaemonSet) *appsv1.DaemonSet {
			return &appsv1.DaemonSet{ObjectMeta: identity(full), Spec: appsv1.DaemonSetSpec{Selector: full.Spec.Selector}}
		})
}

// Jobs returns the Kind of Jobs: it keeps the failures that they allow and have had.
func Jobs(host kubernetes.Interface) Kind[batchv1.Job] {
	return kindOf("Job", host.BatchV1().Jobs, func(l *batchv1.JobList) []batchv1.Job { return l.Items }, func(full *batchv1.Job) *batchv1.Job {
		return &batchv1.Job{
			ObjectMeta: identity(full),
			Spec: batchv1.JobSpec{
				BackoffLimit: full.Spec.BackoffLimit, BackoffLimitPerIndex: full.Spec.BackoffLimitPerIndex, PodFailurePolicy: full.Spec.PodFailurePolicy,
			},
			Status: batchv1.JobStatus{Failed: full.Status.Failed},
		}
	})
}

// Claims returns the Kind of volume claims.
func Claims(host kubernetes.Interface) Kind[corev1.PersistentVolumeClaim] {
	return kindOf("PersistentVolumeClaim", host.CoreV1().PersistentVolumeClaims,
		func(l *corev1.PersistentVolumeClaimList) []corev1.PersistentVolumeClaim { return l.Items },
		func(full *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim { return full })
}

func identity(object metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), OwnerReferences: object.GetOwnerReferences(),
	}
}

// Live reads the owners of a pod from the API, one at a time.
type Live struct {
	host kubernetes.Interface
	// recent caches owners; nil means that every call reads the owner.
	recent *memory
}

var _ protocol.Owners = Live{}

// NewLive returns a Live that reads from the API with every call.
func NewLive(host kubernetes.Interface) Live { return Live{host: host} }

// newRecent returns a Live that caches owners for a short time, with the fields that
// protocol.BuiltInOf reads. It does not cache that an owner does not exist, since the owner may be
// created in the meantime.
func newRecent(host kubernetes.Interface) Live { return Live{host: host, recent: newMemory()} }

// ReplicaSet implements protocol.Owners.
func (l Live) ReplicaSet(ctx context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
	return read(ctx, l.recent, ReplicaSets(l.host), namespace, name)
}

// Deployment implements protocol.Owners.
func (l Live) Deployment(ctx context.Context, namespace, name string) (*appsv1.Deployment, error) {
	return read(ctx, l.recent, Deployments(l.host), namespace, name)
}

// DaemonSet implements protocol.Owners.
func (l Live) DaemonSet(ctx context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
	return read(ctx, l.recent, DaemonSets(l.host), namespace, name)
}

// Node implements protocol.Owners. It reads the node with every call.
func (l Live) Node(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := l.host.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get Node %s from the host cluster: %w", name, err)
	}
	return node, nil
}

const (
	// recentTTL is the time for which an owner is cached. Many pods share an owner, and a wave
	// creates the Evacuations of thousands of pods within seconds.
	recentTTL = 2 * time.Second
	// optedOutTTL replaces recentTTL for a Deployment that has opted out of surges. It is shorter:
	// a wrong evacuator in an Evacuation declines, but a missing evacuator is never added.
	optedOutTTL = 500 * time.Millisecond
	recentSize  = 1024
	// readTimeout is the timeout for the read of an owner. The read does not end with the request
	// that started it, because further requests may wait for it.
	readTimeout = 30 * time.Second
)

// memory caches owners for a short time.
type memory struct {
	found *utilcache.LRUExpireCache
	// reads are the reads in progress. The requests for the pods of a wave need the same owner at
	// the same time, so they share one read.
	reads singleflight.Group
}

func newMemory() *memory { return &memory{found: utilcache.NewLRUExpireCache(recentSize)} }

// read returns the cached object, or reads it.
func read[T any](ctx context.Context, recent *memory, kind Kind[T], namespace, name string) (*T, error) {
	if recent == nil {
		return kind.Get(ctx, namespace, name)
	}
	key := kind.name + " " + namespace + "/" + name
	if object, ok := recent.found.Get(key); ok {
		return object.(*T), nil
	}
	answers := recent.reads.DoChan(key, func() (any, error) {
		if object, ok := recent.found.Get(key); ok {
			// Another read has stored the object in the meantime.
			return object, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer cancel()
		object, err := kind.Get(ctx, namespace, name)
		if object != nil && err == nil {
			object = kind.Keep(object)
			recent.found.Add(key, object, ttlOf(object))
		}
		return object, err
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case answer := <-answers:
		return answer.Val.(*T), answer.Err
	}
}

func ttlOf(object any) time.Duration {
	if d, ok := object.(*appsv1.Deployment); ok && d.Annotations[v1alpha1.AnnotationSurge] == v1alpha1.SurgeDisabled {
		return optedOutTTL
	}
	return recentTTL
}
