// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// notifyTimeout limits how long a notification waits for systemd.
const notifyTimeout = 5 * time.Second

// Notifier sends notifications to the systemd that supervises this process (sd_notify). Without a
// supervisor, every method does nothing and returns nil.
type Notifier struct {
	socket string
}

// NewNotifier returns the Notifier of this process, which uses the environment variable
// NOTIFY_SOCKET.
func NewNotifier() *Notifier {
	return &Notifier{socket: os.Getenv("NOTIFY_SOCKET")}
}

// Supervised reports whether a systemd receives the notifications.
func (n *Notifier) Supervised() bool {
	return n.socket != ""
}

// Ready reports that the service has started.
func (n *Notifier) Ready(status string) error {
	return n.send("READY=1\nSTATUS="+oneLine(status), nil)
}

// Status sets the status line of `systemctl status`.
func (n *Notifier) Status(status string) error {
	return n.send("STATUS="+oneLine(status), nil)
}

// Stopping reports that the service has begun to stop.
func (n *Notifier) Stopping(status string) error {
	return n.send("STOPPING=1\nSTATUS="+oneLine(status), nil)
}

// Add stores a copy of the file in systemd's store, which outlives this process: after a restart,
// the service finds it through ListenFDs. Add returns when systemd has the copy.
func (n *Notifier) Add(name string, file *os.File) error {
	// Without FDPOLL=0, systemd drops its copy of a pipe when the reader closes the pipe, as logind
	// does while it restarts.
	if err := n.sendFile("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, file); err != nil {
		return err
	}
	return n.barrier()
}

// Remove closes the copies with that name in systemd's store. It returns when they are closed.
func (n *Notifier) Remove(name string) error {
	if err := n.send("FDSTOREREMOVE=1\nFDNAME="+name, nil); err != nil {
		return err
	}
	return n.barrier()
}

// barrier waits until systemd has handled all notifications before this one.
func (n *Notifier) barrier() error {
	if n.socket == "" {
		return nil
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create a pipe: %w", err)
	}
	defer reader.Close()
	err = n.sendFile("BARRIER=1", writer)
	writer.Close()
	if err != nil {
		return err
	}
	// systemd closes its copy of the writing end when it handles this notification.
	if err := reader.SetReadDeadline(time.Now().Add(notifyTimeout)); err != nil {
		return fmt.Errorf("limit the wait for systemd: %w", err)
	}
	if _, err := reader.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("systemd did not handle the notification within %s", notifyTimeout)
	}
	return nil
}

func (n *Notifier) sendFile(text string, file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = n.send(text, unix.UnixRights(int(fd))) }); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return sent
}

// send sends one datagram. net.UnixConn cannot do this: it refuses an address on a connected
// socket, and does not send file descriptors without an address.
func (n *Notifier) send(text string, rights []byte) error {
	if n.socket == "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(notifyTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	if err := unix.Sendmsg(fd, []byte(text), rights, &unix.SockaddrUnix{Name: n.socket}, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("notify systemd on %s: %w", n.socket, err)
	}
	return nil
}

func oneLine(text string) string {
	return strings.ReplaceAll(text, "\n", " ")
}

// firstListenFD is the number of the first descriptor that systemd passes to a service.
const firstListenFD = 3

// ListenFDs takes over the file descriptors that systemd kept for this service, and returns them by
// name. It clears the environment variables that list them, so only the first call returns files.
func ListenFDs() (map[string][]*os.File, error) {
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	// Remove the variables, so that no child process uses the descriptors.
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("clear %s: %w", name, err)
		}
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 {
		return nil, fmt.Errorf("environment variable LISTEN_FDS is %q: must be a number of file descriptors", count)
	}
	files := map[string][]*os.File{}
	split := strings.Split(names, ":")
	for i := range n {
		name := "unknown"
		if i < len(split) && split[i] != "" {
			name = split[i]
		}
		fd := firstListenFD + i
		unix.CloseOnExec(fd)
		files[name] = append(files[name], os.NewFile(uintptr(fd), name))
	}
	return files, nil
}
