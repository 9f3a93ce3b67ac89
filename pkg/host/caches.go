// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/informers"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	autoscalinginformers "k8s.io/client-go/informers/autoscaling/v2"
	coreinformers "k8s.io/client-go/informers/core/v1"
	policyinformers "k8s.io/client-go/informers/policy/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/host/owners"
	"haulout.dev/haulout/pkg/host/podcache"
)

// Caches are the caches of the host cluster by which controllers act and previews are made. Their
// pods may be packed (podcache.NewTransform). No caller gets the informer of pods itself, because
// the generated lister of that informer panics then.
type Caches struct {
	Pods              *podcache.Pods
	Owners            *owners.Cached
	Nodes             coreinformers.NodeInformer
	Budgets           policyinformers.PodDisruptionBudgetInformer
	Deployments       appsinformers.DeploymentInformer
	Autoscalers       autoscalinginformers.HorizontalPodAutoscalerInformer
	VolumeAttachments storageinformers.VolumeAttachmentInformer

	factory informers.SharedInformerFactory
}

// NewCaches creates caches whose informers do not run yet. They store what transform returns. Of
// VolumeAttachments there is a cache only if a caller uses their informer before Start.
func NewCaches(client kubernetes.Interface, resync time.Duration, transform cache.TransformFunc) (*Caches, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(transform))
	c := &Caches{
		factory: factory, Nodes: factory.Core().V1().Nodes(), Budgets: factory.Policy().V1().PodDisruptionBudgets(),
		Deployments: factory.Apps().V1().Deployments(), Autoscalers: factory.Autoscaling().V2().HorizontalPodAutoscalers(),
		VolumeAttachments: factory.Storage().V1().VolumeAttachments(),
	}
	c.Budgets.Informer()
	c.Autoscalers.Informer()
	var err error
	if c.Pods, err = podcache.NewPods(factory.Core().V1().Pods().Informer()); err != nil {
		return nil, fmt.Errorf("add indexes of pods: %w", err)
	}
	c.Owners, err = owners.NewCached(c.Pods, c.Nodes, factory.Apps().V1())
	return c, err
}

// Start starts the informers.
func (c *Caches) Start(ctx context.Context) { c.factory.StartWithContext(ctx) }

// WaitForSync waits until the caches have all objects. It returns false if the context ends before.
func (c *Caches) WaitForSync(ctx context.Context) bool {
	return c.factory.WaitForCacheSyncWithContext(ctx).Err == nil
}

// Shutdown waits until the informers have stopped, after their context has ended.
func (c *Caches) Shutdown() { c.factory.Shutdown() }
