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
	// limitQPS and limitBurst limit the reviews of a user, and those of a namespace. kubectl drain
	// sends at most 5 evictions per second, so only many drains at a time reach the limit.
	limitQPS, limitBurst = 50, 200
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

// exceededBy counts another review, and returns the user or the namespace that has too many now; ""
// if neither has. The user comes first: its loop must not use up the limit of the namespace.
func (l *limits) exceededBy(e eviction, c clock.PassiveClock) string {
	switch {
	case !l.accept(userKey(e.user), c):
		return fmt.Sprintf("user %q", protocol.UserName(e.user))
	case !l.accept(namespaceKey(e.namespace), c):
		return fmt.Sprintf("namespace %q", e.namespace)
	}
	return ""
}

func (l *limits) accept(key any, c clock.PassiveClock) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = lru.New(limitsKept)
	}
	if known, ok := l.seen.Get(key); ok {
		return known.(flowcontrol.PassiveRateLimiter).TryAccept()
	}
	limiter := flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(limitQPS, limitBurst, c)
	l.seen.Add(key, limiter)
	return limiter.TryAccept()
}
