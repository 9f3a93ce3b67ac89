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
	"errors"
	"fmt"
	"net"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const (
	// headerSize is the size of what each message begins with, up to its list of fields.
	headerSize = 16
	// The limits of D-Bus.
	maxFields  = 1 << 26
	maxMessage = 1 << 27
	// maxLine limits a line of the authentication.
	maxLine = 16 << 10
	// maxFDs is the most file descriptors that the kernel passes in one message.
	maxFDs = 253

	flagNoReply = 0x1
)

// message is one message as it was read. What is forwarded is forwarded unchanged.
type message struct {
	raw   []byte
	fds   []int
	order binary.ByteOrder
	kind  dbus.Type
	// The fields of the header that decide what becomes of the message.
	destination, iface, member string
	fdCount                    uint32
}

func (m *message) serial() uint32 { return m.order.Uint32(m.raw[8:12]) }

func (m *message) wantsReply() bool {
	return m.kind == dbus.TypeMethodCall && m.raw[2]&flagNoReply == 0
}

// body decodes the arguments.
func (m *message) body() ([]any, error) {
	decoded, err := dbus.DecodeMessage(bytes.NewReader(m.raw))
	if err != nil {
		return nil, err
	}
	return decoded.Body, nil
}

// stream reads lines and messages from one side of a connection, with the file descriptors that
// come with them.
type stream struct {
	conn *net.UnixConn
	buf  []byte
	fds  []int
	// data and control are where the kernel writes to.
	data, control []byte
}

// fill reads what has arrived.
func (s *stream) fill() error {
	if s.data == nil {
		s.data, s.control = make([]byte, 64<<10), make([]byte, unix.CmsgSpace(maxFDs*4))
	}
	n, controlLen, flags, _, err := s.conn.ReadMsgUnix(s.data, s.control)
	if err != nil {
		return err
	}
	fds, err := rights(s.control[:controlLen])
	s.fds = append(s.fds, fds...)
	if err != nil {
		return err
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return errors.New("file descriptors were lost")
	}
	if n == 0 {
		return net.ErrClosed
	}
	s.buf = append(s.buf, s.data[:n]...)
	return nil
}

// rights returns the file descriptors of control messages.
func rights(control []byte) ([]int, error) {
	if len(control) == 0 {
		return nil, nil
	}
	parsed, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range parsed {
		if parsed[i].Header.Level != unix.SOL_SOCKET || parsed[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		more, err := unix.ParseUnixRights(&parsed[i])
		if err != nil {
			return fds, err
		}
		fds = append(fds, more...)
	}
	return fds, nil
}

// line returns the next line of the authentication with its end.
func (s *stream) line() ([]byte, error) {
	for {
		if end := bytes.Index(s.buf, []byte("\r\n")); end >= 0 {
			line := s.buf[:end+2]
			s.buf = s.buf[end+2:]
			return line, nil
		}
		if len(s.buf) > maxLine {
			return nil, errors.New("a line of the authentication is too long")
		}
		if err := s.fill(); err != nil {
			return nil, err
		}
	}
}

// atMessage reports whether a message comes next, and not a line of the bus' authentication, of
// which none begins with these letters.
func (s *stream) atMessage() (bool, error) {
	for len(s.buf) == 0 {
		if err := s.fill(); err != nil {
			return false, err
		}
	}
	return s.buf[0] == 'l' || s.buf[0] == 'B', nil
}

// message returns the next message.
func (s *stream) message() (*message, error) {
	if err := s.need(headerSize); err != nil {
		return nil, err
	}
	m := &message{kind: dbus.Type(s.buf[1])}
	switch s.buf[0] {
	case 'l':
		m.order = binary.LittleEndian
	case 'B':
		m.order = binary.BigEndian
	default:
		return nil, fmt.Errorf("a message begins with %q", s.buf[0])
	}
	fields, body := m.order.Uint32(s.buf[12:16]), m.order.Uint32(s.buf[4:8])
	if fields > maxFields || body > maxMessage {
		return nil, errors.New("a message is too long")
	}
	size := headerSize + align(int(fields), 8) + int(body)
	if err := s.need(size); err != nil {
		return nil, err
	}
	m.raw, s.buf = s.buf[:size:size], s.buf[size:]
	if err := m.readFields(headerSize + int(fields)); err != nil {
		return nil, err
	}
	if int(m.fdCount) > len(s.fds) {
		return nil, fmt.Errorf("a message has %d file descriptors, and %d have arrived", m.fdCount, len(s.fds))
	}
	m.fds, s.fds = s.fds[:m.fdCount:m.fdCount], s.fds[m.fdCount:]
	return m, nil
}

// need reads until there are that many bytes.
func (s *stream) need(size int) error {
	for len(s.buf) < size {
		if err := s.fill(); err != nil {
			return err
		}
	}
	return nil
}

// close closes the file descriptors that no message has taken.
func (s *stream) close() {
	closeAll(s.fds)
	s.fds = nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

func align(n, to int) int { return (n + to - 1) / to * to }

// readFields reads the fields of the header, a(yv), of which only those of one basic type exist.
func (m *message) readFields(end int) error {
	for at := headerSize; at < end; {
		at = align(at, 8)
		if at+4 > end {
			return errors.New("a field of a header is cut off")
		}
		code, kind := dbus.HeaderField(m.raw[at]), string(m.raw[at+2])
		if m.raw[at+1] != 1 {
			return fmt.Errorf("field %d of a header has a type that does not exist there", code)
		}
		var text string
		var number uint32
		var err error
		if text, number, at, err = m.value(kind, at+4, end); err != nil {
			return fmt.Errorf("field %d of a header: %w", code, err)
		}
		switch code {
		case dbus.FieldDestination:
			m.destination = text
		case dbus.FieldInterface:
			m.iface = text
		case dbus.FieldMember:
			m.member = text
		case dbus.FieldUnixFDs:
			m.fdCount = number
		}
	}
	return nil
}

// value reads a value and returns where it ends.
func (m *message) value(kind string, at, end int) (text string, number uint32, next int, err error) {
	length := func(size int) bool {
		next = at + size
		return next <= end
	}
	switch kind {
	case "g":
		if !length(1) || !length(1+int(m.raw[at])+1) {
			break
		}
		return string(m.raw[at+1 : next-1]), 0, next, nil
	case "s", "o", "u":
		at = align(at, 4)
		if !length(4) {
			break
		}
		number = m.order.Uint32(m.raw[at:])
		if kind == "u" {
			return "", number, next, nil
		}
		if number > maxFields || !length(4+int(number)+1) {
			break
		}
		return string(m.raw[at+4 : next-1]), 0, next, nil
	default:
		return "", 0, 0, fmt.Errorf("type %q does not exist there", kind)
	}
	return "", 0, 0, errors.New("it is cut off")
}

// write sends bytes with file descriptors.
func write(conn *net.UnixConn, data []byte, fds []int) error {
	if len(fds) > 0 {
		n, _, err := conn.WriteMsgUnix(data, unix.UnixRights(fds...), nil)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	_, err := conn.Write(data)
	return err
}

// encode returns a message with a serial number, which godbus sets only for its own connections,
// and the file descriptors in it.
func encode(m *dbus.Message, serial uint32) ([]byte, []int, error) {
	if len(m.Body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(m.Body...))
	}
	count, err := m.CountFds()
	if err != nil {
		return nil, nil, err
	}
	if count > 0 {
		m.Headers[dbus.FieldUnixFDs] = dbus.MakeVariant(uint32(count))
	}
	var data bytes.Buffer
	fds, err := m.EncodeToWithFDs(&data, binary.LittleEndian)
	if err != nil {
		return nil, nil, err
	}
	raw := data.Bytes()
	binary.LittleEndian.PutUint32(raw[8:12], serial)
	return raw, fds, nil
}

// replyTo returns the answer of logind to a call: values, or an error of D-Bus.
func replyTo(call *message, failure *dbus.Error, values ...any) *dbus.Message {
	m := &dbus.Message{Type: dbus.TypeMethodReply, Body: values, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.serial()), dbus.FieldSender: dbus.MakeVariant(loginName),
	}}
	if failure != nil {
		m.Type, m.Body = dbus.TypeError, failure.Body
		m.Headers[dbus.FieldErrorName] = dbus.MakeVariant(failure.Name)
	}
	return m
}

// prepareForShutdown returns logind's signal.
func prepareForShutdown(begins bool) *dbus.Message {
	return &dbus.Message{Type: dbus.TypeSignal, Flags: dbus.FlagNoReplyExpected, Body: []any{begins}, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(loginPath), dbus.FieldInterface: dbus.MakeVariant(loginInterface),
		dbus.FieldMember: dbus.MakeVariant(prepareMember), dbus.FieldSender: dbus.MakeVariant(loginName),
	}}
}
