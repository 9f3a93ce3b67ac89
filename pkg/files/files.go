// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package files replaces and moves files so that a crash of the program or of the machine leaves
// the old file or the new one, and never a part of it.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Temporary returns where Replace writes the content of a file before it renames it. The path is
// fixed, so that crashes leave at most one partial file behind. Programs that read all files of a
// folder with some extension ignore it.
func Temporary(name string) string {
	return filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".tmp")
}

// Replace replaces a file, or creates it and the folders above it. If it fails, the old file stays.
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

// makeFolder creates the folder of a file. Users who may read the file may enter the folder.
func makeFolder(name string, mode fs.FileMode) error {
	return os.MkdirAll(filepath.Dir(name), 0o700|mode|(mode&0o444)>>2)
}

// finish renames a temporary file that was written, or removes one that was not.
func finish(err error, temporary, name string) error {
	if err == nil {
		err = Rename(temporary, name)
	}
	if err != nil {
		_ = os.Remove(temporary) // gives the space back
		return err
	}
	return SyncFolder(filepath.Dir(name))
}

// Write writes a file to the disk. A failure may leave a part of it.
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

// RenameUnused renames a file to a path, or to the path with a number if that is in use, and
// returns where the file is.
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

// Remove removes files, if they exist.
func Remove(names ...string) error {
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
