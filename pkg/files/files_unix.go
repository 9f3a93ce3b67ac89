// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package files

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrCrossDevice is the error of a rename to another mount.
const ErrCrossDevice = unix.EXDEV

// Rename renames a file and replaces an existing target. Call SyncFolder to sync the rename to the
// disk.
func Rename(from, to string) error { return os.Rename(from, to) }

// RenameNew renames a file; if the target exists, it returns fs.ErrExist.
func RenameNew(from, to string) error {
	err := renameNew(from, to)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// The file system does not support this call.
		if _, missing := os.Lstat(to); missing != nil {
			return os.Rename(from, to)
		}
		err = unix.EEXIST
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// SyncFolder syncs the entries of a folder to the disk.
func SyncFolder(dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// Lock locks a file until it is closed, and waits while another process has locked it.
func Lock(file *os.File) error { return flock(file, unix.LOCK_EX) }

// TryLock locks a file until it is closed. It fails if another process has locked it.
func TryLock(file *os.File) error { return flock(file, unix.LOCK_EX|unix.LOCK_NB) }

func flock(file *os.File, how int) error {
	for {
		if err := unix.Flock(int(file.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
