// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// message is a notification with the number of its files.
type message struct {
	text  string
	files int
}

// end is the message that the test sends after all notifications.
const end = "end of the test"

// receive handles notifications as systemd does. It returns a function that returns the received
// messages.
func receive(t *testing.T) func() []message {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	var got []message
	done := make(chan struct{})
	go func() {
		defer close(done)
		text, rights := make([]byte, 4096), make([]byte, 4096)
		for {
			n, rightsLen, _, _, err := socket.ReadMsgUnix(text, rights)
			if err != nil {
				return
			}
			m := message{text: string(text[:n])}
			if m.text == end {
				return
			}
			controls, _ := unix.ParseSocketControlMessage(rights[:rightsLen])
			for _, control := range controls {
				fds, _ := unix.ParseUnixRights(&control)
				for _, fd := range fds {
					m.files++
					// systemd keeps a stored file, and closes the file of a barrier.
					unix.Close(fd)
				}
			}
			got = append(got, m)
		}
	}()
	return func() []message {
		defer socket.Close()
		client := must.Get(net.Dial("unixgram", path))(t)
		defer client.Close()
		must.Get(client.Write([]byte(end)))(t)
		<-done
		return got
	}
}

func TestNotifications(t *testing.T) {
	file := must.Get(os.Open("/dev/null"))(t)
	defer file.Close()
	for name, test := range map[string]struct {
		send func(*systemd.Notifier) error
		want []message
	}{
		"ready":    {send: func(n *systemd.Notifier) error { return n.Ready("waits") }, want: []message{{text: "READY=1\nSTATUS=waits"}}},
		"stopping": {send: func(n *systemd.Notifier) error { return n.Stopping("ends") }, want: []message{{text: "STOPPING=1\nSTATUS=ends"}}},
		"a status cannot contain another notification": {
			send: func(n *systemd.Notifier) error { return n.Status("a\nSTOPPING=1") }, want: []message{{text: "STATUS=a STOPPING=1"}},
		},
		"a file is stored, and not polled": {
			send: func(n *systemd.Notifier) error { return n.Add("inhibit", file) },
			want: []message{{text: "FDSTORE=1\nFDPOLL=0\nFDNAME=inhibit", files: 1}, {text: "BARRIER=1", files: 1}},
		},
		"a file is removed": {
			send: func(n *systemd.Notifier) error { return n.Remove("inhibit") },
			want: []message{{text: "FDSTOREREMOVE=1\nFDNAME=inhibit"}, {text: "BARRIER=1", files: 1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			received := receive(t)
			notifier := systemd.NewNotifier()
			is.True(t, notifier.Supervised(), "there is a socket, but no service manager")
			must.Do(t, test.send(notifier))
			if got := received(); !slices.Equal(got, test.want) {
				t.Errorf("sent %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestNotificationsWithoutSystemd(t *testing.T) {
	file := must.Get(os.Open("/dev/null"))(t)
	defer file.Close()
	t.Setenv("NOTIFY_SOCKET", "")
	n := systemd.NewNotifier()
	if err := errors.Join(n.Ready(""), n.Status(""), n.Stopping(""), n.Add("x", file), n.Remove("x")); err != nil || n.Supervised() {
		t.Errorf("without systemd: %v, supervised: %t", err, n.Supervised())
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	if err := systemd.NewNotifier().Ready(""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a socket that does not exist: %v, want that error", err)
	}
}

func TestListenFDsRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		pid, count string
		wantError  bool
	}{
		"no variables":               {},
		"files for another process":  {pid: "1", count: "1"},
		"a number that is invalid":   {pid: "self", count: "many", wantError: true},
		"a negative number of files": {pid: "self", count: "-1", wantError: true},
		"no files for this process":  {pid: "self", count: "0"},
		"files of no process":        {pid: "0", count: "3"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.pid == "self" {
				test.pid = strconv.Itoa(os.Getpid())
			}
			t.Setenv("LISTEN_PID", test.pid)
			t.Setenv("LISTEN_FDS", test.count)
			t.Setenv("LISTEN_FDNAMES", "inhibit")
			files, err := systemd.ListenFDs()
			if len(files) != 0 || (err != nil) != test.wantError {
				t.Errorf("got %v, %v, want no files, an error: %t", files, err, test.wantError)
			}
			for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
				if value, ok := os.LookupEnv(name); ok {
					t.Errorf("a child would inherit %s=%s", name, value)
				}
			}
		})
	}
}
