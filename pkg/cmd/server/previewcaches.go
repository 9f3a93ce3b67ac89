// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/podcache"
)

// maxFillDelay is the maximum time for which a replica that does not lead keeps no caches. Previews
// wait that long.
const maxFillDelay = 20 * time.Second

// previewCaches are the caches by which this replica makes previews: those of its controllers while
// they run, and caches of its own while they do not.
type previewCaches struct {
	synced atomic.Pointer[host.Caches]
}

// lend makes caches available to previews from their sync until the context ends.
func (p *previewCaches) lend(ctx context.Context, caches *host.Caches) {
	if !caches.WaitForSync(ctx) {
		return
	}
	p.synced.Store(caches)
	<-ctx.Done()
	p.synced.CompareAndSwap(caches, nil)
}

// fill creates caches after a delay, and lends them until the context ends. It does not wait until
// their informers have stopped, which may take a minute while kube-apiserver cannot be reached:
// they only read.
func (p *previewCaches) fill(ctx context.Context, client kubernetes.Interface, delay time.Duration) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(delay):
	}
	caches, err := host.NewCaches(client, resync, podcache.NewTransform())
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot create the caches for previews")
		return
	}
	caches.Start(ctx)
	p.lend(ctx, caches)
}
