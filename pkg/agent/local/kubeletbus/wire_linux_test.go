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

package kubeletbus

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"testing"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// pair returns two connected sockets.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns []*net.UnixConn
	for _, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		conn, err := net.FileConn(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		unixConn, ok := conn.(*net.UnixConn)
		if !ok {
			t.Fatalf("got a %T", conn)
		}
		conns = append(conns, unixConn)
	}
	return conns[0], conns[1]
}

// call returns the bytes of a call.
func call(t testing.TB, body ...any) []byte {
	t.Helper()
	raw, _, err := encode(&dbus.Message{Type: dbus.TypeMethodCall, Body: body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(loginPath), dbus.FieldDestination: dbus.MakeVariant(loginName),
		dbus.FieldInterface: dbus.MakeVariant(loginInterface), dbus.FieldMember: dbus.MakeVariant("Inhibit"),
	}}, 42)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestMessagesInPieces(t *testing.T) {
	near, far := pair(t)
	raw := append(call(t, "one"), call(t, "two", uint64(2))...)
	go func() {
		for i := range raw {
			if _, err := far.Write(raw[i : i+1]); err != nil {
				return
			}
		}
	}()
	s := &stream{conn: near}
	for _, want := range []string{"one", "two"} {
		m, err := s.message()
		if err != nil {
			t.Fatal(err)
		}
		body, err := m.body()
		if err != nil || body[0] != want {
			t.Errorf("got %v, %v; want %s", body, err, want)
		}
		if m.destination != loginName || m.iface != loginInterface || m.member != "Inhibit" || m.serial() != 42 || !m.wantsReply() {
			t.Errorf("got %+v", m)
		}
	}
}

func TestFilesBelongToTheirMessages(t *testing.T) {
	near, far := pair(t)
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	with, fds, err := encode(&dbus.Message{Type: dbus.TypeMethodCall, Body: []any{dbus.UnixFD(file.Fd())}, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(loginPath), dbus.FieldMember: dbus.MakeVariant("Take"),
	}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := write(far, call(t), nil); err != nil {
			t.Fatal(err)
		}
		if err := write(far, with, fds); err != nil {
			t.Fatal(err)
		}
	}
	s := &stream{conn: near}
	for i := range 4 {
		m, err := s.message()
		if err != nil {
			t.Fatal(err)
		}
		if len(m.fds) != i%2 {
			t.Errorf("message %d has %d files, want %d", i, len(m.fds), i%2)
		}
		closeAll(m.fds)
	}
}

func TestBrokenMessages(t *testing.T) {
	good := call(t, "text")
	set := func(at int, value uint32) []byte {
		raw := append([]byte{}, good...)
		binary.LittleEndian.PutUint32(raw[at:], value)
		return raw
	}
	with := func(at int, value byte) []byte {
		raw := append([]byte{}, good...)
		raw[at] = value
		return raw
	}
	// The order of the fields varies; without arguments, all are texts.
	endless := call(t)
	binary.LittleEndian.PutUint32(endless[20:], 1<<30)
	noFile, _, err := encode(&dbus.Message{Type: dbus.TypeMethodCall, Body: []any{dbus.UnixFD(0)}, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(loginPath), dbus.FieldMember: dbus.MakeVariant("Take"),
	}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string][]byte{
		"another byte order":      with(0, 'x'),
		"a body without end":      set(4, 1<<31),
		"fields without end":      set(12, 1<<31),
		"a field that is cut off": set(12, 3),
		"a value that is cut off": set(12, 10),
		"a type of two letters":   with(17, 2),
		"a type of no field":      with(18, 'v'),
		"a text without end":      endless,
		"a file that is missing":  noFile,
		"half of a message":       good[:len(good)-1],
		"half of a header":        good[:10],
		"nothing":                 nil,
	} {
		near, far := pair(t)
		if _, err := far.Write(raw); err != nil {
			t.Fatal(err)
		}
		far.Close()
		if m, err := (&stream{conn: near}).message(); err == nil {
			t.Errorf("%s: got %+v, want an error", name, m)
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(call(f, "text"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := &stream{buf: raw}
		if len(raw) < headerSize {
			return
		}
		// What is not there would be waited for.
		order := binary.ByteOrder(binary.LittleEndian)
		if raw[0] == 'B' {
			order = binary.BigEndian
		}
		size := int64(headerSize) + int64(order.Uint32(raw[12:16])) + 8 + int64(order.Uint32(raw[4:8]))
		if size > int64(len(raw)) {
			return
		}
		m, err := s.message()
		if err != nil {
			return
		}
		if theirs, err := dbus.DecodeMessage(bytes.NewReader(m.raw)); err == nil {
			if got, ok := theirs.Headers[dbus.FieldMember].Value().(string); ok && got != m.member {
				t.Errorf("member %q, another reader finds %q", m.member, got)
			}
		}
	})
}

func TestLinesOfTheAuthentication(t *testing.T) {
	near, far := pair(t)
	go func() {
		_, _ = far.Write([]byte("OK 1234\r\nAGREE_UNIX_FD\r\n"))
		_, _ = far.Write(call(t))
		_, _ = far.Write(make([]byte, maxLine+1))
		far.Close()
	}()
	s := &stream{conn: near}
	for _, want := range []string{"OK 1234\r\n", "AGREE_UNIX_FD\r\n"} {
		if begun, err := s.atMessage(); begun || err != nil {
			t.Fatalf("a message before the end of the authentication: %v", err)
		}
		if line, err := s.line(); err != nil || string(line) != want {
			t.Errorf("got %q, %v; want %q", line, err, want)
		}
	}
	if begun, err := s.atMessage(); !begun || err != nil {
		t.Fatalf("no message after the authentication: %v", err)
	}
	if _, err := s.message(); err != nil {
		t.Error(err)
	}
	if line, err := s.line(); err == nil {
		t.Errorf("got a line of %d bytes, want an error", len(line))
	}
}
