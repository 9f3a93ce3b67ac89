// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package systemd talks to systemd as one of its services (notifications and the store for file
// descriptors) and as a client of its D-Bus interface (units, jobs and the state of the system).
package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const (
	busName          = "org.freedesktop.systemd1"
	managerPath      = dbus.ObjectPath("/org/freedesktop/systemd1")
	managerInterface = "org.freedesktop.systemd1.Manager"
	unitInterface    = "org.freedesktop.systemd1.Unit"
	jobInterface     = "org.freedesktop.systemd1.Job"
	serviceInterface = "org.freedesktop.systemd1.Service"
	propertiesGet    = "org.freedesktop.DBus.Properties.Get"

	errNoSuchUnit = "org.freedesktop.systemd1.NoSuchUnit"
	errNoSuchFile = "org.freedesktop.DBus.Error.FileNotFound"
	errNotLoaded  = "org.freedesktop.systemd1.UnitNotLoaded"
)

// StateStopping is the SystemState while the system goes down.
const StateStopping = "stopping"

// Kinds of a shutdown.
const (
	// KindReboot is a shutdown after which the machine starts again.
	KindReboot = "reboot"
	// KindPowerOff is a shutdown after which the machine stays down.
	KindPowerOff = "poweroff"
)

// kinds maps the names of shutdown actions to the kinds of shutdown. logind uses these names, and
// systemd has a target for each of them except power-off.
var kinds = map[string]string{
	"reboot":      KindReboot,
	"kexec":       KindReboot,
	"soft-reboot": KindReboot,
	"poweroff":    KindPowerOff,
	"power-off":   KindPowerOff,
	"halt":        KindPowerOff,
}

// KindOf returns the kind of a shutdown by the name of its action or target; "" for other names.
func KindOf(name string) string { return kinds[strings.TrimSuffix(name, ".target")] }

// Client is a client of systemd's D-Bus interface. It is safe for concurrent use.
type Client struct {
	conn    *dbus.Conn
	manager dbus.BusObject
}

// UnitState is the state of a unit in systemd.
type UnitState struct {
	// Load is loaded, not-found, masked, bad-setting or error.
	Load string
	// Active is active, reloading, inactive, failed, activating or deactivating.
	Active string
	// File is enabled, disabled, static, masked and so on, or "" if there is no unit file.
	File string
	// MainPID is the process ID of a service; 0 if it does not run. LastPID is the last MainPID,
	// even after the service has ended; it is 0 if the service has not run in this boot.
	MainPID, LastPID uint32
}

// unitJob is the job of a unit; ID is 0 if the unit has none.
type unitJob struct {
	ID   uint32
	Path dbus.ObjectPath
}

// Exists reports whether the unit exists.
func (s UnitState) Exists() bool {
	return s.Load != "not-found"
}

// NewClient returns a client that uses a connection to the system bus.
func NewClient(conn *dbus.Conn) *Client {
	return &Client{conn: conn, manager: conn.Object(busName, managerPath)}
}

// Dial connects to systemd over the system bus. root is the directory where the root of the host is
// mounted, or "". The connection is closed when ctx ends or by Close.
func Dial(ctx context.Context, root string) (*Client, error) {
	conn, err := ConnectBus(ctx, root)
	if err != nil {
		return nil, err
	}
	return NewClient(conn), nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// SystemState returns the state of the system: running, degraded, stopping and so on.
func (c *Client) SystemState(ctx context.Context) (string, error) {
	state, err := Property[string](ctx, c.manager, managerInterface, "SystemState")
	if err != nil {
		return "", fmt.Errorf("read the state of the system: %w", err)
	}
	return state, nil
}

// Incarnation returns an ID that distinguishes the boots of userspace within one boot of the
// kernel. It is "" in the first boot of userspace, and with a version of systemd without
// soft-reboot.
func (c *Client) Incarnation(ctx context.Context) (string, error) {
	found, err := incarnation(func(name string) (any, error) {
		var variant dbus.Variant
		err := c.manager.CallWithContext(ctx, propertiesGet, 0, managerInterface, name).Store(&variant)
		return variant.Value(), err
	})
	if err != nil {
		return "", fmt.Errorf("read the ID of the userspace boot: %w", err)
	}
	return found, nil
}

// UserspaceAge returns the time since systemd booted userspace, without the time in which the
// machine was suspended.
func (c *Client) UserspaceAge(ctx context.Context) (time.Duration, error) {
	began, err := Property[uint64](ctx, c.manager, managerInterface, "UserspaceTimestampMonotonic")
	if err != nil {
		return 0, fmt.Errorf("read the time of the userspace boot: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return time.Duration(now.Nano()) - time.Duration(began)*time.Microsecond, nil
}

// incarnation reads the properties of systemd that Incarnation needs.
func incarnation(property func(name string) (any, error)) (string, error) {
	version, err := property("Version")
	if err != nil {
		return "", err
	}
	major := 0
	if _, err := fmt.Sscanf(fmt.Sprint(version), "%d", &major); err != nil {
		return "", fmt.Errorf("version of systemd is %q: must begin with a number", version)
	}
	switch {
	case major < 254:
		return "", nil // this version of systemd has no soft-reboot
	case major < 256:
		began, err := property("UserspaceTimestampMonotonic")
		return fmt.Sprint(began), err
	}
	count, err := property("SoftRebootsCount")
	if text := fmt.Sprint(count); text != "0" {
		return text, err
	}
	return "", err
}

// ShutdownJob returns the kind of the shutdown in progress; "" if there is none.
func (c *Client) ShutdownJob(ctx context.Context) (string, error) {
	target, err := c.shutdownTarget(ctx)
	return KindOf(target), err
}

// shutdownTarget returns the unit that systemd is starting to end the system; "" if there is none.
func (c *Client) shutdownTarget(ctx context.Context) (string, error) {
	var jobs []struct {
		ID               uint32
		Unit, Type, Stat string
		Job, Object      dbus.ObjectPath
	}
	if err := c.manager.CallWithContext(ctx, managerInterface+".ListJobs", 0).Store(&jobs); err != nil {
		return "", fmt.Errorf("list the jobs of systemd: %w", err)
	}
	for _, job := range jobs {
		if KindOf(job.Unit) != "" && job.Type == "start" {
			return job.Unit, nil
		}
	}
	return "", nil
}

// Unit returns the state of a unit. It returns no error for a unit that does not exist.
func (c *Client) Unit(ctx context.Context, name string) (UnitState, error) {
	unit, err := c.load(ctx, name)
	if err != nil {
		return UnitState{}, err
	}
	var state UnitState
	for key, value := range map[string]*string{"LoadState": &state.Load, "ActiveState": &state.Active, "UnitFileState": &state.File} {
		read, err := Property[string](ctx, unit, unitInterface, key)
		if err != nil {
			return UnitState{}, fmt.Errorf("read %s of unit %s: %w", key, name, err)
		}
		*value = read
	}
	if path.Ext(name) == ".service" {
		for key, value := range map[string]*uint32{"MainPID": &state.MainPID, "ExecMainPID": &state.LastPID} {
			pid, err := Property[uint32](ctx, unit, serviceInterface, key)
			if err != nil {
				return UnitState{}, fmt.Errorf("read %s of unit %s: %w", key, name, err)
			}
			*value = pid
		}
	}
	return state, nil
}

func (c *Client) load(ctx context.Context, name string) (dbus.BusObject, error) {
	var object dbus.ObjectPath
	if err := c.manager.CallWithContext(ctx, managerInterface+".LoadUnit", 0, name).Store(&object); err != nil {
		return nil, fmt.Errorf("load unit %s: %w", name, err)
	}
	return c.conn.Object(busName, object), nil
}

// StartUnit starts a unit and waits until it has started.
func (c *Client) StartUnit(ctx context.Context, name string) error {
	return c.runJob(ctx, "StartUnit", name)
}

// RestartUnit restarts a unit, or starts it, and waits until it has started.
func (c *Client) RestartUnit(ctx context.Context, name string) error {
	return c.runJob(ctx, "RestartUnit", name)
}

// StopUnit stops a unit and waits until it has stopped. It returns nil if the unit does not exist.
func (c *Client) StopUnit(ctx context.Context, name string) error {
	return unless(c.runJob(ctx, "StopUnit", name), errNoSuchUnit, errNotLoaded)
}

// EndService ends a service and waits until its main process is gone. It does the same as StopUnit,
// unless systemd already has a job that stops the service, for example because the system goes
// down. That job waits for the services that are ordered after the service, possibly including the
// caller. So EndService itself sends the signals of systemd to the main process. It does not send
// signals without such a job, because systemd would restart the service.
func (c *Client) EndService(ctx context.Context, name string) error {
	queued, err := c.stopQueued(ctx, name)
	if err != nil {
		return err
	}
	if !queued {
		return c.StopUnit(ctx, name)
	}
	state, err := c.Unit(ctx, name)
	if err != nil || state.MainPID == 0 {
		return err
	}
	return endProcess(ctx, int(state.MainPID), func(_ int, signal syscall.Signal) error { return c.killUnit(ctx, name, "main", signal) })
}

func (c *Client) stopQueued(ctx context.Context, name string) (bool, error) {
	unit, err := c.load(ctx, name)
	if err != nil {
		return false, err
	}
	job, err := Property[unitJob](ctx, unit, unitInterface, "Job")
	if err != nil {
		return false, fmt.Errorf("read Job of unit %s: %w", name, err)
	}
	if job.ID == 0 {
		return false, nil
	}
	kind, err := Property[string](ctx, c.conn.Object(busName, job.Path), jobInterface, "JobType")
	if err != nil {
		return false, fmt.Errorf("read the job of unit %s: %w", name, err)
	}
	return kind == "stop", nil
}

// KillUnit sends a signal to all processes of a unit.
func (c *Client) KillUnit(ctx context.Context, name string, signal syscall.Signal) error {
	return c.killUnit(ctx, name, "all", signal)
}

func (c *Client) killUnit(ctx context.Context, name, who string, signal syscall.Signal) error {
	return c.call(ctx, fmt.Sprintf("send %s to unit %s", signal, name), "KillUnit", name, who, int32(signal))
}

// ResetFailed resets the failed state of a unit. It returns nil if the unit does not exist.
func (c *Client) ResetFailed(ctx context.Context, name string) error {
	return unless(c.call(ctx, "reset unit "+name, "ResetFailedUnit", name), errNoSuchUnit, errNotLoaded)
}

// Reload makes systemd read all unit files again.
func (c *Client) Reload(ctx context.Context) error {
	return c.call(ctx, "reload the unit files of systemd", "Reload")
}

// EnableUnit makes systemd start a unit at boot.
func (c *Client) EnableUnit(ctx context.Context, name string) error {
	// The arguments mean: permanently (false), and replace links that point elsewhere (true).
	return c.call(ctx, "enable unit "+name, "EnableUnitFiles", []string{name}, false, true)
}

// DisableUnit undoes EnableUnit. It returns nil if the unit does not exist.
func (c *Client) DisableUnit(ctx context.Context, name string) error {
	return unless(c.call(ctx, "disable unit "+name, "DisableUnitFiles", []string{name}, false), errNoSuchUnit, errNoSuchFile)
}

// call calls a method whose result does not matter. what describes the call in errors.
func (c *Client) call(ctx context.Context, what, method string, args ...any) error {
	if err := c.manager.CallWithContext(ctx, managerInterface+"."+method, 0, args...).Err; err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// unless returns the error, or nil for a D-Bus error with one of these names.
func unless(err error, names ...string) error {
	var remote dbus.Error
	if errors.As(err, &remote) && slices.Contains(names, remote.Name) {
		return nil
	}
	return err
}

// runJob calls a method that creates a job, and waits until the job is done.
func (c *Client) runJob(ctx context.Context, method, name string) error {
	signals := make(chan *dbus.Signal, 16)
	c.conn.Signal(signals)
	defer c.conn.RemoveSignal(signals)
	match := []dbus.MatchOption{dbus.WithMatchSender(busName), dbus.WithMatchObjectPath(managerPath),
		dbus.WithMatchInterface(managerInterface), dbus.WithMatchMember("JobRemoved")}
	if err := c.conn.AddMatchSignalContext(ctx, match...); err != nil {
		return fmt.Errorf("watch the jobs of systemd: %w", err)
	}
	// Ignore the error: a match that is not removed only causes a few more signals and ends with
	// the connection.
	defer func() { _ = c.conn.RemoveMatchSignal(match...) }()
	// systemd sends signals about jobs only if a client has subscribed.
	if err := unless(c.call(ctx, "subscribe to systemd", "Subscribe"), "org.freedesktop.systemd1.AlreadySubscribed"); err != nil {
		return err
	}
	var job dbus.ObjectPath
	if err := c.manager.CallWithContext(ctx, managerInterface+"."+method, 0, name, "replace").Store(&job); err != nil {
		return fmt.Errorf("%s %s: %w", method, name, err)
	}
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w", method, name, ctx.Err())
		case signal, open := <-signals:
			if !open {
				return fmt.Errorf("%s %s: connection to systemd lost", method, name)
			}
			result, ours := jobResult(signal, job)
			switch {
			case !ours:
			case result == "done":
				return nil
			default:
				return fmt.Errorf("%s %s: job ended as %q, see `journalctl -u %s`", method, name, result, name)
			}
		}
	}
}

func jobResult(signal *dbus.Signal, job dbus.ObjectPath) (string, bool) {
	var id uint32
	var removed dbus.ObjectPath
	var unit, result string
	if signal.Name != managerInterface+".JobRemoved" || dbus.Store(signal.Body, &id, &removed, &unit, &result) != nil {
		return "", false
	}
	return result, removed == job
}

// Property reads a property of an object on the bus.
func Property[T any](ctx context.Context, object dbus.BusObject, iface, name string) (T, error) {
	var variant dbus.Variant
	var value T
	if err := object.CallWithContext(ctx, propertiesGet, 0, iface, name).Store(&variant); err != nil {
		return value, err
	}
	err := variant.Store(&value)
	return value, err
}

// connectTimeout limits the authentication at the bus daemon.
const connectTimeout = 10 * time.Second

// ConnectBus connects to the system bus, until ctx ends or the connection is closed. It delivers
// signals in order. root is the directory where the root of the host is mounted; "" is the root of
// this process.
func ConnectBus(ctx context.Context, root string) (*dbus.Conn, error) {
	dial := dbus.SystemBusPrivate
	if root != "" {
		dial = socket(root, "run/dbus/system_bus_socket")
	}
	conn, err := connect(ctx, dial, (*dbus.Conn).Hello)
	if err != nil {
		return nil, fmt.Errorf("connect to the bus of %s: %w", cmp.Or(root, "/"), err)
	}
	return conn, nil
}

// connectDirectly connects to systemd without a bus, as systemctl does. Such a connection only
// supports calls of systemd's methods.
func connectDirectly(ctx context.Context, root string) (*dbus.Conn, error) {
	conn, err := connect(ctx, socket(root, "run/systemd/private"), func(*dbus.Conn) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("connect to the systemd of %s: %w", cmp.Or(root, "/"), err)
	}
	return conn, nil
}

// socket returns a function that connects to a socket below a root.
func socket(root, path string) func(...dbus.ConnOption) (*dbus.Conn, error) {
	return func(options ...dbus.ConnOption) (*dbus.Conn, error) {
		return dbus.Dial("unix:path="+dbus.EscapeBusAddressValue(filepath.Join(cmp.Or(root, "/"), path)), options...)
	}
}

func connect(ctx context.Context, dial func(...dbus.ConnOption) (*dbus.Conn, error), hello func(*dbus.Conn) error) (*dbus.Conn, error) {
	conn, err := dial(dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()), dbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	// Neither call has a context, and a stopped daemon never responds.
	limit := time.AfterFunc(connectTimeout, func() { conn.Close() })
	defer limit.Stop()
	if err := conn.Auth(nil); err != nil {
		conn.Close()
		return nil, fmt.Errorf("authenticate: %w", err)
	}
	if err := hello(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("register: %w", err)
	}
	return conn, nil
}
