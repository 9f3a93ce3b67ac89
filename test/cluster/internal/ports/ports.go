// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package ports chooses ports on the loopback interface.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// The range is below the ephemeral ports of Linux (32768 and above). While a process is stopped, an
// outgoing connection could use its ephemeral port, and the process could not start again on the
// same port.
const (
	first = 16384
	last  = 32767

	attempts = 1000
)

// Listener listens on a port of the loopback interface. Tests pass their own Listener, so that they
// need no free ports.
type Listener func(port int) (net.Listener, error)

// Loopback listens on 127.0.0.1.
func Loopback(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

// Complete returns the ports in known, with a free port added for each name without a port.
func Complete(known map[string]int, names []string, listen Listener) (map[string]int, error) {
	chosen := map[string]int{}
	taken := map[int]bool{}
	for name, port := range known {
		chosen[name] = port
		taken[port] = true
	}
	for _, name := range names {
		if _, ok := chosen[name]; ok {
			continue
		}
		port, listener, err := pick(taken, listen)
		if err != nil {
			return nil, fmt.Errorf("no port for %s: %w", name, err)
		}
		// The port stays in use until all ports are chosen: another cluster that starts at the same
		// time must not choose it.
		defer listener.Close() //nolint:gocritic // deferInLoop: the ports must stay in use until the return
		chosen[name] = port
		taken[port] = true
	}
	return chosen, nil
}

func pick(taken map[int]bool, listen Listener) (int, net.Listener, error) {
	var lastErr error
	for range attempts {
		port := first + rand.IntN(last-first+1)
		if taken[port] {
			continue
		}
		listener, err := listen(port)
		if err == nil {
			return port, listener, nil
		}
		lastErr = err
	}
	return 0, nil, fmt.Errorf("none free between %d and %d on 127.0.0.1: %w", first, last, lastErr)
}
