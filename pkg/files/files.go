// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package files replaces and moves files atomically: after a crash of the program or the machine,
// the path has either the complete old file or the complete new file.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Temporary returns the path to which Replace writes the content before it renames the file. The
// path is fixed, so that crashes leave at most one partial file. Programs that read all files with
// a certain extension ignore it.
func Temporary(name string) string {
	return filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".tmp")
}

// Replace replaces a file, or creates it and its parent folders. If it fails, the old file stays.
// Only one process at a time may replace a file in this way.
func Replace(name string, content io.Reader, mode fs.FileMode) error {
	if err := makeFolder(name, mode); err != nil {
		return err
	}
	temporary := Temporary(name)
	return finish(Write(temporary, content, mode), temporary, name)
}

// ReplaceShared is Replace for a file that several processes may replace at the same time. The
// umask does not apply to its mode.
func ReplaceShared(name string, content io.Reader, mode fs.FileMode) error {
	if err := makeFolder(name, mode); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(Temporary(name))+".*.tmp")
	if err != nil {
		return err
	}
	if err := file.Chmod(mode); err != nil {
		return finish(errors.Join(err, file.Close()), file.Name(), name)
	}
	return finish(fill(file, content), file.Name(), name)
}

// makeFolder creates the folder of a file. Users who may read the file may also enter the folder.
func makeFolder(name string, mode fs.FileMode) error {
	return os.MkdirAll(filepath.Dir(name), 0o700|mode|(mode&0o444)>>2)
}

// finish renames a completely written temporary file, or removes an incomplete one.
func finish(err error, temporary, name string) error {
	if err == nil {
		err = Rename(temporary, name)
	}
	if err != nil {
		_ = os.Remove(temporary) // frees the space
		return err
	}
	return SyncFolder(filepath.Dir(name))
}

// Write writes a file and syncs it to the disk. A failure may leave a partial file.
func Write(name string, content io.Reader, mode fs.FileMode) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	return fill(file, content)
}

func fill(file *os.File, content io.Reader) error {
	_, err := io.Copy(file, content)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// RenameUnused renames a file to a path, to which it adds a number if the path is in use. It
// returns the new path.
func RenameUnused(from, to string) (string, error) {
	target := to
	for n := 2; ; n++ {
		err := RenameNew(from, target)
		if !errors.Is(err, fs.ErrExist) {
			return target, err
		}
		target = fmt.Sprintf("%s-%d", to, n)
	}
}

// Remove removes files. It ignores files that do not exist.
func Remove(names ...string) error {
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
