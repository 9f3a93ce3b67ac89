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
			t.Error("a port was given back before all were chosen")
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
		t.Errorf("a known port became %d", got["a"])
	}
	seen := map[int]bool{}
	for name, port := range got {
		if port < first || port > last {
			t.Errorf("port %d of %s is out of range", port, name)
		}
		if seen[port] {
			t.Errorf("port %d was given twice", port)
		}
		seen[port] = true
	}
	if len(got) != 3 || opened != 2 || closed != 2 {
		t.Errorf("%d ports, %d opened, %d closed, want 3, 2 and 2", len(got), opened, closed)
	}
	if len(known) != 1 {
		t.Error("the map of the caller was changed")
	}
}

func TestCompleteWithoutFreePort(t *testing.T) {
	busy := errors.New("address already in use")
	_, err := Complete(nil, []string{"a"}, func(int) (net.Listener, error) { return nil, busy })
	if !errors.Is(err, busy) {
		t.Errorf("got %v, want the reason of the last attempt", err)
	}
}

func TestPortsThatAreInUseAreSkipped(t *testing.T) {
	closed, refused := 0, 0
	got, err := Complete(nil, []string{"a"}, func(port int) (net.Listener, error) {
		if refused < 3 {
			refused++
			return nil, errors.New("address already in use")
		}
		return fakeListener{closed: &closed}, nil
	})
	if err != nil || got["a"] == 0 {
		t.Errorf("got %v, %v", got, err)
	}
}
