// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
)

const (
	// alwaysAllowed is the number of Evacuations that every namespace may have.
	alwaysAllowed = 200
	// allowedPerPod is the number of Evacuations per pod that a namespace may have, if this is more
	// than alwaysAllowed: one for the pod, and one for a pod that has left, whose Evacuation is
	// kept for some time.
	allowedPerPod = 2
	// podCountTTL is the time for which a pod count is cached, and podCountsAtMost is the maximum
	// number of cached namespaces.
	podCountTTL     = 10 * time.Second
	podCountsAtMost = 1024
)

// countIn sets the cache of Evacuations. The plugin only counts them, so the cache keeps only their
// keys. Every replica has this cache, since every replica admits requests.
func (p *Plugin) countIn(f informers.SharedInformerFactory) {
	informer := f.Maintenance().V1alpha1().Evacuations().Informer()
	if err := informer.SetTransform(keepKey); err != nil {
		// The informer already runs and caches whole objects. This only costs more memory.
		utilruntime.HandleError(fmt.Errorf("keep only the keys of Evacuations: %w", err))
	}
	p.stored = informer.GetIndexer()
	p.SetReadyFunc(informer.HasSynced)
}

// keepKey drops everything except the identity of an object.
func keepKey(obj any) (any, error) {
	object, ok := obj.(metav1.Object)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
	}}, nil
}

// validateCount refuses an Evacuation if its namespace has too many. ResourceQuota does not count
// the objects of an aggregated API, and the server keeps each of them in memory. The limit leaves
// room for the Evacuations of the server, one for each pod that a maintenance evacuates, so that a
// tenant cannot prevent them. Those that the server makes for an eviction are limited, since any
// tenant can evict pods.
func (p *Plugin) validateCount(ctx context.Context, attrs admission.Attributes, evacuation *maintenance.Evacuation) error {
	if p.identity.Is(attrs.GetUserInfo()) && !protocol.IsForEviction(evacuation) {
		return nil
	}
	if !p.WaitForReady() {
		return apierrors.NewServiceUnavailable("the cache of Evacuations is not synced yet, try again later")
	}
	namespace := attrs.GetNamespace()
	podRef := evacuation.Spec.PodRef
	if _, exists, err := p.stored.GetByKey(namespace + "/" + protocol.CanonicalName(podRef.Name, podRef.UID)); exists || err != nil {
		return err // an existing object with this name causes a different error
	}
	keys, err := p.stored.IndexKeys(cache.NamespaceIndex, namespace)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if len(keys) < alwaysAllowed {
		return nil
	}
	pods, err := p.countPods(ctx, namespace)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	limit := max(alwaysAllowed, allowedPerPod*pods)
	if len(keys) < limit {
		return nil
	}
	// Omit Retry-After: clients with this header would wait and hide the error from the user.
	return apierrors.NewTooManyRequests(fmt.Sprintf(
		"namespace %q has %d Evacuations, at most %d are allowed: %d for each of its %d pods, or %d if that is more",
		namespace, len(keys), limit, allowedPerPod, pods, alwaysAllowed), 0)
}

// countPods returns the number of pods of a namespace, at most a few seconds old. It requests a
// list with one pod, since the response has the number of the remaining pods.
func (p *Plugin) countPods(ctx context.Context, namespace string) (int, error) {
	if count, known := p.podCounts.Get(namespace); known {
		return count.(int), nil
	}
	list, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("count the pods of namespace %s in the host cluster: %w", namespace, err)
	}
	count := len(list.Items)
	if list.RemainingItemCount != nil {
		count += int(*list.RemainingItemCount)
	}
	p.podCounts.Add(namespace, count, podCountTTL)
	return count, nil
}
