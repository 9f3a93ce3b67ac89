// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evictionreview

import (
	"sync"

	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	// namespaceQPS and namespaceBurst limit the reviews of a namespace. kubectl sends at most 50
	// requests per second, so only several drains at a time reach the limit.
	namespaceQPS, namespaceBurst = 50, 200
	// limitedNamespaces is the maximum number of namespaces whose recent reviews are remembered.
	limitedNamespaces = 1024
)

// namespaceLimits limit the reviews of each namespace. All reviews share the limit of requests to
// the host cluster, so one client that evicts in a loop would let the evictions of all others pass.
// The zero value is ready for use.
type namespaceLimits struct {
	mu   sync.Mutex
	seen *lru.Cache
}

// accept reports whether a namespace may have another review now.
func (l *namespaceLimits) accept(namespace string, c clock.PassiveClock) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = lru.New(limitedNamespaces)
	}
	if known, ok := l.seen.Get(namespace); ok {
		return known.(flowcontrol.PassiveRateLimiter).TryAccept()
	}
	limiter := flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(namespaceQPS, namespaceBurst, c)
	l.seen.Add(namespace, limiter)
	return limiter.TryAccept()
}
