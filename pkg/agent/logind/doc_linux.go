// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package logind delays the shutdown of a Linux machine: it holds a delay lock of systemd-logind,
// reports when logind wants to shut the machine down, and releases the lock when it may.
//
// The lock is the writing end of a named pipe (/run/systemd/inhibit/N.ref). logind starts no
// shutdown as long as a process has it open, for at most InhibitDelayMaxSec, and refuses new locks
// while a shutdown is pending. So the lock must outlive this process: systemd stores a copy, and
// the path of the pipe is reported, by which the next process opens it again.
package logind
