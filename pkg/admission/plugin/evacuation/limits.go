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
	// alwaysAllowed is how many Evacuations every namespace may have.
	alwaysAllowed = 200
	// allowedPerPod is how many Evacuations a namespace may have for each of its pods, if that is
	// more: that of the pod, and those of pods that are gone and are kept for a while.
	allowedPerPod = 2
	// podCountTTL is how long a number of pods is used, and podCountsAtMost for how many
	// namespaces.
	podCountTTL     = 10 * time.Second
	podCountsAtMost = 1024
)

// SetMaintenanceInformers sets the informers of our API. The cache of Evacuations serves to count
// them, so only their keys are kept. Every replica has it, since every replica admits requests.
func (p *Plugin) SetMaintenanceInformers(f informers.SharedInformerFactory) {
	informer := f.Maintenance().V1alpha1().Evacuations().Informer()
	if err := informer.SetTransform(keepKey); err != nil {
		// The informer runs already and keeps whole objects, which takes more memory.
		utilruntime.HandleError(fmt.Errorf("keep only the keys of Evacuations: %w", err))
	}
	p.stored = informer.GetIndexer()
	p.SetReadyFunc(informer.HasSynced)
}

// keepKey drops all of an object but what identifies it.
func keepKey(obj any) (any, error) {
	object, ok := obj.(metav1.Object)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
	}}, nil
}

// validateCount refuses an Evacuation of a namespace that has too many: ResourceQuota does not
// count the objects of an aggregated API, and the server has each of them in memory. The server
// itself makes one for each pod that a maintenance asks to leave, and a tenant must not be able to
// keep it from that.
func (p *Plugin) validateCount(ctx context.Context, attrs admission.Attributes, evacuation *maintenance.Evacuation) error {
	if p.identity.Is(attrs.GetUserInfo()) {
		return nil
	}
	if !p.WaitForReady() {
		return apierrors.NewServiceUnavailable("the cache of Evacuations is not synced yet, try again later")
	}
	namespace := attrs.GetNamespace()
	podRef := evacuation.Spec.PodRef
	if _, exists, err := p.stored.GetByKey(namespace + "/" + protocol.CanonicalName(podRef.Name, podRef.UID)); exists || err != nil {
		return err // a second one of the same name is refused for that
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
	// Without a time to retry after: clients would wait and hide the error from the user.
	return apierrors.NewTooManyRequests(fmt.Sprintf(
		"namespace %q has %d Evacuations, at most %d are allowed: %d for each of its %d pods, or %d if that is more",
		namespace, len(keys), limit, allowedPerPod, pods, alwaysAllowed), 0)
}

// countPods returns the number of pods of a namespace, as of a few seconds ago. It reads one of
// them, since the answer says how many remain.
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
