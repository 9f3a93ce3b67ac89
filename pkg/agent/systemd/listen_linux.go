// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstListenFD is the number of the first descriptor that systemd hands to a service.
const firstListenFD = 3

// ListenFDs takes over the file descriptors that systemd kept for this service, by their names. It
// clears the environment variables that name them, so only the first call returns files.
func ListenFDs() (map[string][]*os.File, error) {
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	// A child of this process must not take the numbers for its own.
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
