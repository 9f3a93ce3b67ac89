// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evictionreview

import (
	"fmt"
	"sync"

	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

const (
	// userQPS and userBurst limit the reviews of a user, and namespaceQPS and namespaceBurst those
	// of a namespace, of which a user in a loop must not use up all. kubectl drain sends at most 5
	// evictions per second, so only many drains at a time reach the limits.
	userQPS, userBurst           = 50, 200
	namespaceQPS, namespaceBurst = 100, 400
	// limitsKept is the maximum number of users and namespaces whose recent reviews are remembered.
	limitsKept = 2048
)

// limits limit the reviews of each user and of each namespace. All reviews share the limit of
// requests to the host cluster, so one client that evicts in a loop would let the evictions of all
// others pass. The zero value is ready for use.
type limits struct {
	mu   sync.Mutex
	seen *lru.Cache
}

type userKey string

type namespaceKey string

// exceededBy counts another review, and says which limit of the user or the namespace is exceeded
// now; "" if neither is. The user comes first: what exceeds its limit takes nothing from that of
// the namespace.
func (l *limits) exceededBy(e eviction, c clock.PassiveClock) string {
	switch {
	case !l.accept(userKey(e.user), userQPS, userBurst, c):
		return fmt.Sprintf("user %q has more than %d evictions per second", protocol.UserName(e.user), userQPS)
	case !l.accept(namespaceKey(e.namespace), namespaceQPS, namespaceBurst, c):
		return fmt.Sprintf("namespace %q has more than %d evictions per second", e.namespace, namespaceQPS)
	}
	return ""
}

func (l *limits) accept(key any, qps float32, burst int, c clock.PassiveClock) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = lru.New(limitsKept)
	}
	if known, ok := l.seen.Get(key); ok {
		return known.(flowcontrol.PassiveRateLimiter).TryAccept()
	}
	limiter := flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(qps, burst, c)
	l.seen.Add(key, limiter)
	return limiter.TryAccept()
}
