// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"haulout.dev/haulout/pkg/agent/systemd"
)

const (
	loginName      = "org.freedesktop.login1"
	loginPath      = dbus.ObjectPath("/org/freedesktop/login1")
	loginInterface = "org.freedesktop.login1.Manager"
	busInterface   = "org.freedesktop.DBus"
	unit           = "systemd-logind.service"

	whatShutdown = "shutdown"
	modeDelay    = "delay"

	// infinity is systemd's value for "infinity".
	infinity = math.MaxUint64
)

// errInProgress is logind's response to a lock request while a shutdown is pending.
var errInProgress = errors.New("a shutdown is pending")

// client talks to logind over one connection to the bus. When logind is restarted, the client finds
// the new process.
type client struct {
	conn    *dbus.Conn
	timeout time.Duration
	// owner is logind's unique name on the bus; identity is unique across buses.
	owner, identity string
	login           dbus.BusObject
}

// inhibitor is a lock in logind's list.
type inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

func (i inhibitor) concerns(what string) bool {
	return slices.Contains(strings.Split(i.What, ":"), what)
}

// subscribe subscribes to the signals of logind, and to the signal of the bus when logind starts or
// ends. It restricts the sender: other clients may send signals with the same name.
func (c *client) subscribe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	for _, member := range []string{"PrepareForShutdown", "PrepareForShutdownWithMetadata"} {
		if err := c.conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(loginName), dbus.WithMatchObjectPath(loginPath),
			dbus.WithMatchInterface(loginInterface), dbus.WithMatchMember(member)); err != nil {
			return fmt.Errorf("subscribe to %s: %w", member, err)
		}
	}
	if err := c.conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(busInterface), dbus.WithMatchInterface(busInterface),
		dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, loginName)); err != nil {
		return fmt.Errorf("subscribe to restarts of logind: %w", err)
	}
	return nil
}

// findOwner finds the running logind. All calls go to its unique name, so that every response comes
// from the logind process that identity names.
func (c *client) findOwner(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	bus := c.conn.BusObject()
	var owner, id string
	getOwner := func() error {
		return bus.CallWithContext(ctx, busInterface+".GetNameOwner", 0, loginName).Store(&owner)
	}
	err := getOwner()
	// Make the bus start logind if possible, as a shutdown request would do.
	if err != nil && bus.CallWithContext(ctx, busInterface+".StartServiceByName", 0, loginName, uint32(0)).Err == nil {
		err = getOwner()
	}
	if err != nil {
		return fmt.Errorf("find logind on the bus: %w", err)
	}
	if err := bus.CallWithContext(ctx, busInterface+".GetId", 0).Store(&id); err != nil {
		return fmt.Errorf("read the identity of the bus: %w", err)
	}
	c.owner, c.identity = owner, id+owner
	c.login = c.conn.Object(owner, loginPath)
	return nil
}

// Pending reports whether a shutdown is pending or in progress, for programs without a lock. root
// is the directory where the root of the host is mounted, or "".
func Pending(ctx context.Context, root string) (bool, error) {
	c, err := dial(ctx, root)
	if err != nil {
		return false, err
	}
	defer c.conn.Close()
	return c.preparing(ctx)
}

// Reboot asks logind to reboot the machine, for programs without a lock. logind waits for programs
// that delay shutdowns, such as the node agent. Reboot returns an error while a program blocks
// them, such as a package manager that writes the kernel: before version 257, logind lets root pass
// such a lock. It returns nil when logind has accepted the request, or if a shutdown is pending
// already. root is as for Pending.
func Reboot(ctx context.Context, root string) error {
	c, err := dial(ctx, root)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	list, err := c.inhibitors(ctx)
	if err != nil {
		return err
	}
	for _, one := range list {
		if one.Mode == "block" && one.concerns("shutdown") {
			return fmt.Errorf("%q (process %d) blocks shutdowns: %q", one.Who, one.PID, one.Why)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err = c.login.CallWithContext(ctx, loginInterface+".Reboot", 0, false).Err // false: ask no user
	if err != nil && !isInProgress(err) {
		return fmt.Errorf("ask logind for a reboot: %w", err)
	}
	return nil
}

// dial connects to the bus and finds logind.
func dial(ctx context.Context, root string) (*client, error) {
	conn, err := systemd.ConnectBus(ctx, root)
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, timeout: defaultCallTimeout}
	if err := c.findOwner(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// isInProgress reports whether logind has refused a call because a shutdown is pending.
func isInProgress(err error) bool {
	var remote dbus.Error
	return errors.As(err, &remote) && remote.Name == "org.freedesktop.login1.OperationInProgress"
}

func (c *client) preparing(ctx context.Context) (bool, error) {
	return loginProperty[bool](ctx, c, "PreparingForShutdown")
}

func (c *client) delay(ctx context.Context) (uint64, error) {
	return loginProperty[uint64](ctx, c, "InhibitDelayMaxUSec")
}

func loginProperty[T any](ctx context.Context, c *client, name string) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	value, err := systemd.Property[T](ctx, c.login, loginInterface, name)
	if err != nil {
		return value, fmt.Errorf("read %s of logind: %w", name, err)
	}
	return value, nil
}

func (c *client) inhibitors(ctx context.Context) ([]inhibitor, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var list []inhibitor
	if err := c.login.CallWithContext(ctx, loginInterface+".ListInhibitors", 0).Store(&list); err != nil {
		return nil, fmt.Errorf("list the locks of logind: %w", err)
	}
	return list, nil
}

func (c *client) inhibit(ctx context.Context) (*os.File, error) {
	done := make(chan *dbus.Call, 1)
	// Call without a context: if a response came after the context had ended, its file descriptor
	// would stay open in this process without an owner, and would delay every shutdown.
	c.login.Go(loginInterface+".Inhibit", 0, done, whatShutdown, Who, "Evicting the node's pods in the planned order", modeDelay)
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	var call *dbus.Call
	select {
	case call = <-done:
	case <-ctx.Done():
	case <-timer.C:
	}
	if call == nil {
		// Closing the connection ends the call, unless the response is arriving at this moment.
		c.conn.Close()
		call = <-done
	}
	var fd dbus.UnixFD
	err := call.Store(&fd)
	switch {
	case isInProgress(err):
		return nil, errInProgress
	case err != nil:
		return nil, fmt.Errorf("take a shutdown lock: %w", err)
	default:
		return os.NewFile(uintptr(fd), StoreName), nil
	}
}

// kind returns the kind of the pending shutdown; "" if unknown. logind does not report it before
// systemd 255; with an older logind, kind returns a kind only for scheduled shutdowns and for
// shutdowns that systemd has begun.
func (c *client) kind(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	scheduled, err := loginProperty[struct {
		Type string
		USec uint64
	}](ctx, c, "ScheduledShutdown")
	// A shutdown that is scheduled for later is not the pending shutdown.
	if err == nil && scheduled.Type != "" && scheduled.USec <= uint64(time.Now().UnixMicro()) {
		return systemd.KindOf(scheduled.Type)
	}
	kind, _ := systemd.NewClient(c.conn).ShutdownJob(ctx) // "" after an error
	return kind
}

// parsePrepare returns the content of a signal: begins points to true if a shutdown begins and to
// false if it was cancelled; it is nil for any other signal. kind is "" if unknown.
func parsePrepare(signal *dbus.Signal) (begins *bool, kind string) {
	var begin bool
	switch signal.Name {
	case loginInterface + ".PrepareForShutdown":
		if dbus.Store(signal.Body, &begin) != nil {
			return nil, ""
		}
	case loginInterface + ".PrepareForShutdownWithMetadata":
		var metadata map[string]dbus.Variant
		if dbus.Store(signal.Body, &begin, &metadata) != nil {
			return nil, ""
		}
		if action, ok := metadata["type"].Value().(string); ok {
			kind = systemd.KindOf(action)
		}
	default:
		return nil, ""
	}
	return &begin, kind
}
