// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"net"
	"testing"
)

type fakeListener struct {
	net.Listener
	closed *int
}

func (l fakeListener) Close() error {
	*l.closed++
	return nil
}

func TestComplete(t *testing.T) {
	opened, closed := 0, 0
	listen := func(int) (net.Listener, error) {
		if closed > 0 {
			t.Error("Complete closed a port before all ports were chosen")
		}
		opened++
		return fakeListener{closed: &closed}, nil
	}
	known := map[string]int{"a": 20000}
	got, err := Complete(known, []string{"a", "b", "c"}, listen)
	if err != nil {
		t.Fatal(err)
	}
	if got["a"] != 20000 {
		t.Errorf("got port %d for a known port, want 20000", got["a"])
	}
	seen := map[int]bool{}
	for name, port := range got {
		if port < first || port > last {
			t.Errorf("got port %d for %s, which is out of range", port, name)
		}
		if seen[port] {
			t.Errorf("got port %d twice", port)
		}
		seen[port] = true
	}
	if len(got) != 3 || opened != 2 || closed != 2 {
		t.Errorf("got %d ports, %d opened, %d closed, want 3, 2 and 2", len(got), opened, closed)
	}
	if len(known) != 1 {
		t.Error("Complete changed the map of the caller")
	}
}

func TestCompleteWithoutFreePort(t *testing.T) {
	busy := errors.New("address already in use")
	_, err := Complete(nil, []string{"a"}, func(int) (net.Listener, error) { return nil, busy })
	if !errors.Is(err, busy) {
		t.Errorf("got %v, want the error of the last attempt", err)
	}
}

func TestCompleteSkipsPortsInUse(t *testing.T) {
	closed, refused := 0, 0
	got, err := Complete(nil, []string{"a"}, func(port int) (net.Listener, error) {
		if refused < 3 {
			refused++
			return nil, errors.New("address already in use")
		}
		return fakeListener{closed: &closed}, nil
	})
	if err != nil || got["a"] == 0 {
		t.Errorf("got %v, %v, want a port", got, err)
	}
}
