/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

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
