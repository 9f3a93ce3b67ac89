// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
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
	options := []dbus.ConnOption{dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()), dbus.WithContext(ctx)}
	dial := func() (*dbus.Conn, error) { return dbus.SystemBusPrivate(options...) }
	if root != "" {
		socket := filepath.Join(root, "run", "dbus", "system_bus_socket")
		dial = func() (*dbus.Conn, error) {
			return dbus.Dial("unix:path="+dbus.EscapeBusAddressValue(socket), options...)
		}
	}
	conn, err := dial()
	if err != nil {
		return nil, fmt.Errorf("connect to the bus of %s: %w", filepath.Join(string(filepath.Separator), root), err)
	}
	// Neither call takes a context, and a daemon that was stopped answers never.
	limit := time.AfterFunc(connectTimeout, func() { conn.Close() })
	defer limit.Stop()
	if err := conn.Auth(nil); err != nil {
		conn.Close()
		return nil, fmt.Errorf("authenticate to the bus: %w", err)
	}
	if err := conn.Hello(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("register with the bus: %w", err)
	}
	return conn, nil
}
