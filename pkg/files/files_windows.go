// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"os"

	"golang.org/x/sys/windows"
)

// ErrCrossDevice is the error of a rename to another volume.
const ErrCrossDevice = windows.ERROR_NOT_SAME_DEVICE

// Rename renames a file and replaces an existing target. It returns when the rename is on the disk.
func Rename(from, to string) error {
	return move(from, to, windows.MOVEFILE_REPLACE_EXISTING|windows.MOVEFILE_WRITE_THROUGH)
}

// RenameNew renames a file; if the target exists, it returns fs.ErrExist.
func RenameNew(from, to string) error { return move(from, to, windows.MOVEFILE_WRITE_THROUGH) }

func move(from, to string, flags uint32) error {
	source, err := windows.UTF16PtrFromString(from)
	if err != nil {
		return err
	}
	target, err := windows.UTF16PtrFromString(to)
	if err != nil {
		return err
	}
	if err := windows.MoveFileEx(source, target, flags); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// SyncFolder does nothing: the rename functions write through to the disk, and Windows cannot sync
// a folder.
func SyncFolder(string) error { return nil }

// Lock locks a file until it is closed, and waits while another process has locked it.
func Lock(file *os.File) error { return lock(file, windows.LOCKFILE_EXCLUSIVE_LOCK) }

// TryLock locks a file until it is closed. It fails if another process has locked it.
func TryLock(file *os.File) error {
	return lock(file, windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY)
}

func lock(file *os.File, flags uint32) error {
	return windows.LockFileEx(windows.Handle(file.Fd()), flags, 0, 1, 0, &windows.Overlapped{})
}
