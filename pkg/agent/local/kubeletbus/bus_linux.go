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

// Package kubeletbus lets the kubelet end the pods of its node, in its own graceful node shutdown
// (KEP-2000, KEP-2712), when the agent says so and not when logind does.
//
// The kubelet is started with the address of a bus of the agent's in place of the system bus. That
// bus hands everything on to the system bus, unchanged: the kubelet asks systemd for its cgroups
// there. Only logind is another one: its locks are locks of this bus, and its signal comes when the
// agent wants the pods to end. The bus is a process of its own, because it has to be there before
// the kubelet starts, and to stay when the agent is restarted.
package kubeletbus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	loginName      = "org.freedesktop.login1"
	loginPath      = dbus.ObjectPath("/org/freedesktop/login1")
	loginInterface = "org.freedesktop.login1.Manager"
	prepareMember  = "PrepareForShutdown"

	// DefaultDir is the folder of the bus.
	DefaultDir = "/run/haulout-node-agent"
	// BusSocket is the socket for the kubelet, in the folder of the bus.
	BusSocket = "bus.sock"
	// ControlSocket is the one for the agent.
	ControlSocket = "control.sock"

	// inhibitDelay is the longest delay of a shutdown that the kubelet is told: more than any
	// table. With less than it needs it would write into the configuration of the real logind.
	inhibitDelay = 30 * 24 * time.Hour
	// settleTime is how long a kubelet has to stay connected after it has released its lock: the
	// lock of one that dies is released, too.
	settleTime = 500 * time.Millisecond
	// listenTime is the time between the subscription of a kubelet to the signal and the first that
	// it is sent: it listens a moment after it was told that it is subscribed.
	listenTime = 500 * time.Millisecond
)

// Config is what a Bus needs.
type Config struct {
	// Dir is the folder of the sockets. Only its owner may enter it.
	Dir string
	// System is the socket of the system bus.
	System string
}

// Status is what the kubelet does.
type Status struct {
	// Locks is the number of locks that are held, by kubelets that wait for the signal or end pods.
	Locks int `json:"locks"`
	// Pending: the kubelet was told to end the pods.
	Pending bool `json:"pending"`
	// Done: it has done that.
	Done bool `json:"done"`
}

// Bus is the kubelet's bus.
type Bus struct {
	config Config

	mu      sync.Mutex
	clients map[*client]struct{}
	pending bool
	serial  uint32
}

// New returns a Bus.
func New(config Config) (*Bus, error) {
	if !filepath.IsAbs(config.Dir) || !filepath.IsAbs(config.System) {
		return nil, fmt.Errorf("folder %q and system bus %q: must be absolute paths", config.Dir, config.System)
	}
	return &Bus{config: config, clients: map[*client]struct{}{}}, nil
}

// Run serves the bus until ctx ends. ready is called when it can be reached.
func (b *Bus) Run(ctx context.Context, ready func()) error {
	if err := os.MkdirAll(b.config.Dir, 0o700); err != nil {
		return err
	}
	bus, err := listen(filepath.Join(b.config.Dir, BusSocket))
	if err != nil {
		return err
	}
	defer bus.Close()
	control, err := listen(filepath.Join(b.config.Dir, ControlSocket))
	if err != nil {
		return err
	}
	defer control.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { b.serveControl(ctx, control) })
	running.Go(func() {
		<-ctx.Done()
		bus.Close()
	})
	ready()
	for {
		conn, err := bus.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			cancel()
			return fmt.Errorf("accept a connection of the kubelet: %w", err)
		}
		running.Go(func() { b.serve(ctx, conn) })
	}
}

// listen replaces the socket of a process that has ended.
func listen(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(path, 0o600)
}

// Begin tells the kubelet to end the pods of the node, and returns how far it is. It is called
// again until that is done: a kubelet that is restarted in a shutdown has to be told, too, as it
// does not ask logind.
func (b *Bus) Begin() Status {
	b.mu.Lock()
	b.pending = true
	b.mu.Unlock()
	for _, c := range b.all() {
		c.tell()
	}
	return b.Status()
}

// Cancel tells the kubelet that the node does not shut down.
func (b *Bus) Cancel() Status {
	b.mu.Lock()
	b.pending = false
	b.mu.Unlock()
	for _, c := range b.all() {
		c.takeBack()
	}
	return b.Status()
}

// Status returns what the kubelet does.
func (b *Bus) Status() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	status := Status{Pending: b.pending}
	told, settled := 0, 0
	for c := range b.clients {
		status.Locks += c.held
		if !c.told {
			continue
		}
		told++
		if c.held == 0 && time.Since(c.changed) > settleTime {
			settled++
		}
	}
	status.Done = b.pending && status.Locks == 0 && told > 0 && settled == told
	return status
}

func (b *Bus) all() []*client {
	b.mu.Lock()
	defer b.mu.Unlock()
	clients := make([]*client, 0, len(b.clients))
	for c := range b.clients {
		clients = append(clients, c)
	}
	return clients
}

func (b *Bus) isPending() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pending
}

// serve connects a client to the system bus until one of them, or ctx, ends.
func (b *Bus) serve(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	logger := klog.FromContext(ctx)
	// The program of the agent has no DBUS_SYSTEM_BUS_ADDRESS: it would connect to itself.
	system, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: b.config.System, Net: "unix"})
	if err != nil {
		logger.Error(err, "Cannot connect a client to the system bus", "socket", b.config.System)
		return
	}
	defer system.Close()
	c := &client{bus: b, conn: conn, system: system}
	b.mu.Lock()
	b.clients[c] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.clients, c)
		b.mu.Unlock()
	}()
	done := make(chan error, 2)
	go func() { done <- c.up() }()
	go func() { done <- c.down() }()
	ends := 1
	select {
	case err = <-done:
	case <-ctx.Done():
		ends = 2
	}
	conn.Close()
	system.Close()
	for ; ends > 0; ends-- {
		// The second error follows from the first.
		if last := <-done; err == nil {
			err = last
		}
	}
	logger.V(2).Info("A client of the bus has left", "cause", err)
}

// client is a connection of the kubelet.
type client struct {
	bus          *Bus
	conn, system *net.UnixConn
	// writing is held while a message is written to the client: answers and signals of this bus
	// come between those of the system bus.
	writing sync.Mutex

	// Under the bus' mu: the number of locks that the client holds, when it took or released the
	// last one, since when it is subscribed to the signal, and whether it was sent that a shutdown
	// begins.
	held       int
	changed    time.Time
	subscribed time.Time
	told       bool
}

// up forwards what the client sends to the system bus, except for what is meant for logind.
func (c *client) up() error {
	from := &stream{conn: c.conn}
	defer from.close()
	for {
		line, err := from.line()
		if err != nil {
			return err
		}
		if err := write(c.system, line, nil); err != nil {
			return err
		}
		if string(line) == "BEGIN\r\n" {
			break
		}
	}
	for {
		m, err := from.message()
		if err != nil {
			return err
		}
		if m.kind == dbus.TypeMethodCall && m.destination == loginName {
			closeAll(m.fds)
			if err := c.answer(m); err != nil {
				return err
			}
			continue
		}
		err = write(c.system, m.raw, m.fds)
		closeAll(m.fds)
		if err != nil {
			return err
		}
		if m.member == "AddMatch" {
			c.matched(m)
		}
	}
}

// down forwards what the system bus sends to the client, except for signals of the real logind.
func (c *client) down() error {
	from := &stream{conn: c.system}
	defer from.close()
	for {
		if begun, err := from.atMessage(); err != nil {
			return err
		} else if begun {
			break
		}
		line, err := from.line()
		if err != nil {
			return err
		}
		if err := c.write(line, nil); err != nil {
			return err
		}
	}
	for {
		m, err := from.message()
		if err != nil {
			return err
		}
		if m.kind != dbus.TypeSignal || m.iface != loginInterface {
			err = c.write(m.raw, m.fds)
		}
		closeAll(m.fds)
		if err != nil {
			return err
		}
	}
}

func (c *client) write(data []byte, fds []int) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return write(c.conn, data, fds)
}

// send sends a message of this bus.
func (c *client) send(m *dbus.Message) error {
	c.bus.mu.Lock()
	c.bus.serial++
	serial := c.bus.serial
	c.bus.mu.Unlock()
	raw, fds, err := encode(m, serial)
	if err != nil {
		return err
	}
	return c.write(raw, fds)
}

// matched looks at a subscription of the client.
func (c *client) matched(m *message) {
	var rule string
	if body, err := m.body(); err != nil || dbus.Store(body, &rule) != nil || !strings.Contains(rule, prepareMember) {
		return
	}
	c.bus.mu.Lock()
	defer c.bus.mu.Unlock()
	c.subscribed = time.Now()
}

// tell sends the signal that a shutdown begins, once, to a client that holds a lock: the kubelet
// would close the file descriptor of its lock a second time, whatever it is by then.
func (c *client) tell() {
	c.bus.mu.Lock()
	due := !c.told && c.held > 0 && !c.subscribed.IsZero() && time.Since(c.subscribed) >= listenTime
	c.told = c.told || due
	c.bus.mu.Unlock()
	if due {
		_ = c.send(prepareForShutdown(true)) // a client that cannot be reached is about to leave
	}
}

// takeBack sends the signal that the shutdown was cancelled.
func (c *client) takeBack() {
	c.bus.mu.Lock()
	due := c.told
	c.told = false
	c.bus.mu.Unlock()
	if due {
		_ = c.send(prepareForShutdown(false))
	}
}

// answer answers a call of logind.
func (c *client) answer(m *message) error {
	body, err := m.body()
	if err != nil {
		return err
	}
	var failure *dbus.Error
	var values []any
	switch {
	case m.member == "Inhibit" && (m.iface == loginInterface || m.iface == ""):
		return c.inhibit(m, body)
	case m.member == "Get" && (m.iface == "org.freedesktop.DBus.Properties" || m.iface == ""):
		values, failure = c.property(body)
	default:
		failure = dbus.NewError("org.freedesktop.DBus.Error.UnknownMethod", []any{"this bus has only what the kubelet asks of logind"})
	}
	if !m.wantsReply() {
		return nil
	}
	return c.send(replyTo(m, failure, values...))
}

func (c *client) property(body []any) ([]any, *dbus.Error) {
	var iface, name string
	if err := dbus.Store(body, &iface, &name); err != nil {
		return nil, dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{err.Error()})
	}
	switch name {
	case "InhibitDelayMaxUSec":
		return []any{dbus.MakeVariant(uint64(inhibitDelay / time.Microsecond))}, nil
	case "PreparingForShutdown":
		return []any{dbus.MakeVariant(c.bus.isPending())}, nil
	}
	return nil, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", []any{name})
}

// inhibit gives the client a lock: the end of a pipe, which it closes to release it. In contrast to
// logind, it does so during a shutdown, too: a kubelet that was restarted ends the rest.
func (c *client) inhibit(m *message, body []any) error {
	var what, who, why, mode string
	if err := dbus.Store(body, &what, &who, &why, &mode); err != nil || what != "shutdown" || mode != "delay" {
		return c.send(replyTo(m, dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{"only locks that delay a shutdown exist"})))
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	held := os.NewFile(uintptr(ends[0]), "lock of "+who)
	c.count(1)
	err := c.send(replyTo(m, nil, dbus.UnixFD(ends[1])))
	_ = unix.Close(ends[1])
	go func() {
		defer held.Close()
		_, _ = held.Read(make([]byte, 1)) // returns when the last copy of the other end is closed
		c.count(-1)
	}()
	return err
}

func (c *client) count(change int) {
	c.bus.mu.Lock()
	defer c.bus.mu.Unlock()
	c.held += change
	c.changed = time.Now()
}
