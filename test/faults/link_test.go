// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/must"
)

// link forwards the connections to one address to the target addresses in turn, unless it is set to
// fail.
type link struct {
	name      string
	upstreams []string
	listener  net.Listener
	// turns is the number of connections so far.
	turns atomic.Int64

	mu          sync.Mutex
	state       linkState
	delay       time.Duration
	connections []net.Conn
	// dropped has the ends of dropped connections: they stay open, but nothing is forwarded.
	dropped []net.Conn
	// changed is closed when the state changes.
	changed chan struct{}
}

// linkState is what a link does with packets.
type linkState int

const (
	passes linkState = iota
	// refuses closes all connections, including new ones.
	refuses
	// isSilent keeps connections open and forwards nothing.
	isSilent
)

// newLink listens on an address of the loopback interface until the test ends.
func newLink(t *testing.T, name, address string, upstreams ...string) *link {
	t.Helper()
	listener := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", address))(t)
	l := &link{name: name, upstreams: upstreams, listener: listener, changed: make(chan struct{})}
	go l.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		l.set(refuses, 0)
		l.mu.Lock()
		defer l.mu.Unlock()
		closeAll(l.dropped)
	})
	return l
}

func (l *link) address() string { return l.listener.Addr().String() }

func (l *link) accept() {
	for {
		from, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			go l.connect(from)
		}
	}
}

func (l *link) connect(from net.Conn) {
	to := l.dial()
	if to == nil {
		_ = from.Close()
		return
	}
	if !l.keep(from, to) {
		return
	}
	go l.copy(to, from)
	l.copy(from, to)
}

// dial connects to the next address with a listener; nil if there is none.
func (l *link) dial() net.Conn {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range l.upstreams {
		turn := int(l.turns.Add(1)) % len(l.upstreams)
		if to, err := new(net.Dialer).DialContext(ctx, "tcp", l.upstreams[turn]); err == nil {
			return to
		}
	}
	return nil
}

// keep stores the two ends of a connection, so that set can close them.
func (l *link) keep(ends ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == refuses {
		closeAll(ends)
		return false
	}
	l.connections = append(l.connections, ends...)
	return true
}

func closeAll(connections []net.Conn) {
	for _, c := range connections {
		_ = c.Close()
	}
}

// drop stops forwarding on the current connections without a reset, like a firewall that lost its
// state. New connections work.
func (l *link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropped = append(l.dropped, l.connections...)
	l.connections = nil
}

func (l *link) isDropped(end net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.dropped, end)
}

// copy forwards packets until one end is closed. If the connection is dropped, it discards the
// packets and does not forward the close.
func (l *link) copy(to, from net.Conn) {
	defer func() {
		if l.isDropped(from) {
			return
		}
		closeAll([]net.Conn{to, from})
		l.mu.Lock()
		defer l.mu.Unlock()
		l.connections = slices.DeleteFunc(l.connections, func(c net.Conn) bool { return c == to || c == from })
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		l.wait()
		if l.isDropped(from) {
			_, _ = io.Copy(io.Discard, from)
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// wait returns when the link may forward a packet.
func (l *link) wait() {
	for {
		l.mu.Lock()
		state, delay, changed := l.state, l.delay, l.changed
		l.mu.Unlock()
		if state != isSilent {
			if delay > 0 {
				<-time.After(delay)
			}
			return
		}
		<-changed
	}
}

// set changes the state of the link. The link forwards each packet after the delay, in both
// directions.
func (l *link) set(state linkState, delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state, l.delay = state, delay
	close(l.changed)
	l.changed = make(chan struct{})
	if state == refuses {
		closeAll(l.connections)
		l.connections = nil
	}
}
