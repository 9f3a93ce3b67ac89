// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package files_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"haulout.dev/haulout/pkg/files"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestModes cannot run in parallel, because the umask belongs to the process.
func TestModes(t *testing.T) {
	old := syscall.Umask(0o077)
	path := filepath.Join(t.TempDir(), "program")
	err := files.ReplaceShared(path, strings.NewReader("x"), 0o755)
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	private, public := filepath.Join(t.TempDir(), "private", "a"), filepath.Join(t.TempDir(), "public", "a")
	for name, mode := range map[string]os.FileMode{private: 0o600, public: 0o644} {
		must.Do(t, files.Replace(name, strings.NewReader("x"), mode))
	}
	for name, wanted := range map[string]os.FileMode{
		path: 0o755, private: 0o600, public: 0o644, filepath.Dir(private): 0o700, filepath.Dir(public): 0o755,
	} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != wanted {
			t.Errorf("mode of %s is %v, %v, want %v", name, info.Mode(), err, wanted)
		}
	}
}
