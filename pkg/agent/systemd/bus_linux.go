// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"
)

// connectTimeout limits how long the daemon of the bus may take to greet a client.
const connectTimeout = 10 * time.Second

// ConnectBus connects to the system bus, until ctx ends or the connection is closed. Signals are
// delivered in their order. root is the directory where the root of the host is mounted; for the
// process' own root it is "".
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

// connectDirectly connects to systemd without a bus, as systemctl does. Nothing but its methods can
// be called.
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
	// Neither call takes a context, and a daemon that was stopped answers never.
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
