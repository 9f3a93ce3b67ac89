// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"sync"
	"time"
)

// Controls are what Windows asks of the running service.
type Controls struct {
	ready        chan struct{}
	preshutdown  chan struct{}
	paramChanges chan struct{}

	readyOnce, preshutdownOnce sync.Once
	since                      time.Time
}

// NewControls returns controls of which none has been received.
func NewControls() *Controls {
	return &Controls{ready: make(chan struct{}), preshutdown: make(chan struct{}), paramChanges: make(chan struct{}, 1)}
}

// Ready tells Windows that the service has started.
func (c *Controls) Ready() {
	c.readyOnce.Do(func() { close(c.ready) })
}

// Preshutdown is closed when Windows is about to shut down.
func (c *Controls) Preshutdown() <-chan struct{} {
	return c.preshutdown
}

// Since returns when that was. It may be called after Preshutdown is closed.
func (c *Controls) Since() time.Time {
	return c.since
}

// ParamChanges gets an element when a user asks the service to read its settings again.
func (c *Controls) ParamChanges() <-chan struct{} {
	return c.paramChanges
}

func (c *Controls) beginPreshutdown(since time.Time) {
	c.preshutdownOnce.Do(func() {
		c.since = since
		close(c.preshutdown)
	})
}

func (c *Controls) paramChange() {
	select {
	case c.paramChanges <- struct{}{}:
	default: // one is on its way
	}
}
