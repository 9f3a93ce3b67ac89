// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package noderights

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
)

// TestNodesAreToldOfARightThatChanges has a right change that is renewed in the background: no
// caller asks during that time.
func TestNodesAreToldOfARightThatChanges(t *testing.T) {
	for name, test := range map[string]struct {
		host   *host
		change func(*host)
	}{
		"the right to one node is granted":      {may(), func(h *host) { h.allowed["a"] = true }},
		"the right to one node is revoked":      {may("a"), func(h *host) { h.allowed["a"] = false }},
		"the right to all nodes is granted":     {may(), func(h *host) { h.allowed[""] = true }},
		"the right to all and to one is denied": {may("", "a"), func(h *host) { h.allowed = map[string]bool{} }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c := newCache(test.host)
				var told atomic.Int32
				c.Subscribe(func(string) { told.Add(1) })
				go c.Run(ctx)
				settled(t, c, test.host, bob, []*corev1.Node{node("a")})
				told.Store(0)
				elapse(renewAfter + renewEvery)
				if told.Load() > 0 {
					t.Error("subscribers are called although the right is the same")
				}
				test.host.set(test.change)
				elapse(renewAfter + renewEvery)
				if told.Load() == 0 {
					t.Error("no subscriber is called")
				}
			})
		})
	}
}
