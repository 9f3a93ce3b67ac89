// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"haulout.dev/haulout/pkg/files"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func write(t *testing.T, name, content string) {
	t.Helper()
	must.Do(t, os.WriteFile(name, []byte(content), 0o600))
}

// want compares the names and the contents of the files of a folder.
func want(t *testing.T, dir string, contents map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	is.True(t, len(entries) == len(contents), "the folder has %v, want %v", entries, contents)
	for name, content := range contents {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != content {
			t.Errorf("%s is %q, %v, want %q", name, data, err, content)
		}
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(string, io.Reader, fs.FileMode) error{
		"by one process": files.Replace, "by several processes": files.ReplaceShared,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "new")
			path := filepath.Join(dir, "a.conf")
			must.Do(t, replace(path, strings.NewReader("old"), 0o600))
			want(t, dir, map[string]string{"a.conf": "old"})
			broken := errors.New("no space left on device")
			part := io.MultiReader(bytes.NewReader([]byte("ne")), iotest.ErrReader(broken))
			if err := replace(path, part, 0o600); !errors.Is(err, broken) {
				t.Errorf("the error is %v, want %v", err, broken)
			}
			want(t, dir, map[string]string{"a.conf": "old"})
			// The rest of a file that a crash has left must not follow the new content.
			if name == "by one process" {
				write(t, files.Temporary(path), "a longer part")
			}
			if err := replace(path, strings.NewReader("new"), 0o600); err != nil {
				t.Error(err)
			}
			want(t, dir, map[string]string{"a.conf": "new"})
		})
	}
}

func TestReplaceDoesNotReplaceAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
	if err := files.Replace(filepath.Join(dir, "a"), strings.NewReader("x"), 0o600); err == nil {
		t.Error("a file has replaced a folder")
	}
	if _, err := os.Stat(files.Temporary(filepath.Join(dir, "a"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary file still takes space: %v", err)
	}
}

func TestRenameUnused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := filepath.Join(dir, "b")
	for _, wanted := range []string{target, target + "-2", target + "-3"} {
		write(t, filepath.Join(dir, "a"), wanted)
		if got, err := files.RenameUnused(filepath.Join(dir, "a"), target); got != wanted || err != nil {
			t.Errorf("renamed to %s, %v, want %s", got, err, wanted)
		}
	}
	want(t, dir, map[string]string{"b": target, "b-2": target + "-2", "b-3": target + "-3"})
	if _, err := files.RenameUnused(filepath.Join(dir, "a"), target); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is gone: %v, want that error", err)
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	write(t, path, "")
	open := func() *os.File {
		file := must.Get(os.Open(path))(t)
		return file
	}
	first, second := open(), open()
	defer second.Close()
	must.Do(t, files.TryLock(first))
	if err := files.TryLock(second); err == nil {
		t.Error("two have the lock")
	}
	locked := make(chan error, 1)
	go func() { locked <- files.Lock(second) }()
	if err := errors.Join(first.Close(), <-locked); err != nil {
		t.Error(err)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "")
	if err := files.Remove(filepath.Join(dir, "gone"), filepath.Join(dir, "a")); err != nil {
		t.Error(err)
	}
	want(t, dir, nil)
}
