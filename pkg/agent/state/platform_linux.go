// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// RunDirectory is the directory for state that the agent needs only until the next boot. It is not
// on a disk.
const RunDirectory = "/run/haulout-node-agent"

// BootID returns a string that is the same until the kernel boots again. It does not depend on the
// clock. Its first eight characters are hexadecimal digits. A soft-reboot does not change it.
func BootID() (string, error) {
	data, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	id := strings.TrimSpace(string(data))
	if id == "" {
		return "", fmt.Errorf("%s is empty: must have the ID of the boot", bootIDFile)
	}
	return id, nil
}

// SinceBoot returns the time since the machine booted. It does not depend on the wall clock, and
// includes the time in which the machine was suspended.
func SinceBoot() time.Duration {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return 0 // the clock exists since Linux 2.6.39
	}
	return time.Duration(now.Nano())
}
