// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"haulout.dev/haulout/pkg/agent/local/pods"
	"haulout.dev/haulout/pkg/files"
)

// fileSystem has the file operations of this package. Tests make each of them fail.
type fileSystem interface {
	ReadDir(name string) ([]fs.DirEntry, error)
	Lstat(name string) (fs.FileInfo, error)
	Readlink(name string) (string, error)
	// ReadFile reads a regular file, or the target of a link, unless it is larger than
	// pods.MaxManifest.
	ReadFile(name string) ([]byte, error)
	MkdirAll(name string, mode fs.FileMode) error
	// WriteFile writes a file and syncs it to the disk. A failure may leave a partial file.
	WriteFile(name string, data []byte, mode fs.FileMode) error
	// Rename renames a file and replaces an existing target.
	Rename(from, to string) error
	// RenameNew renames a file; if the target exists, it returns fs.ErrExist.
	RenameNew(from, to string) error
	Remove(name string) error
	// Sync syncs the entries of a folder to the disk.
	Sync(dir string) error
}

// osFiles is the file system of the operating system.
type osFiles struct{}

func (osFiles) ReadFile(name string) ([]byte, error)         { return pods.ReadManifest(name) }
func (osFiles) ReadDir(name string) ([]fs.DirEntry, error)   { return os.ReadDir(name) }
func (osFiles) Lstat(name string) (fs.FileInfo, error)       { return os.Lstat(name) }
func (osFiles) Readlink(name string) (string, error)         { return os.Readlink(name) }
func (osFiles) MkdirAll(name string, mode fs.FileMode) error { return os.MkdirAll(name, mode) }
func (osFiles) Rename(from, to string) error                 { return files.Rename(from, to) }
func (osFiles) RenameNew(from, to string) error              { return files.RenameNew(from, to) }
func (osFiles) Remove(name string) error                     { return os.Remove(name) }
func (osFiles) Sync(dir string) error                        { return files.SyncFolder(dir) }

// WriteFile writes a file and syncs it to the disk.
func (osFiles) WriteFile(name string, data []byte, mode fs.FileMode) error {
	return files.Write(name, bytes.NewReader(data), mode)
}

// save replaces the content of a file: after a crash the file has the old or the new content.
func save(system fileSystem, name string, data []byte) error {
	temporary := name + ".tmp"
	if err := system.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	if err := system.Rename(temporary, name); err != nil {
		return err
	}
	return system.Sync(filepath.Dir(name))
}

// lock waits until no other process holds the lock of a file, and takes it.
func lock(name string) (unlock func(), err error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := files.Lock(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil
}
