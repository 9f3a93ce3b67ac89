// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"os"
	"path/filepath"
	"testing"

	"haulout.dev/haulout/pkg/testing/must"
)

func TestLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	write := func(l *LogFile, text string) {
		t.Helper()
		if n, err := l.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatalf("wrote %d bytes of %q: %v", n, text, err)
		}
	}
	check := func(path, want string) {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s has %q (error %v), want %q", path, got, err, want)
		}
	}
	for _, text := range []string{"one\n", "two\n"} {
		l := must.Get(OpenLogFile(path))(t)
		write(l, text)
		must.Do(t, l.Close())
	}
	check(path, "one\ntwo\n")
	l := must.Get(OpenLogFile(path))(t)
	l.limit = 12
	write(l, "333\n")
	check(path, "one\ntwo\n333\n")
	write(l, "4\n")
	check(path, "4\n")
	check(path+".old", "one\ntwo\n333\n")
	write(l, "longer than the limit\n")
	write(l, "5\n")
	check(path, "5\n")
	check(path+".old", "longer than the limit\n")
	must.Do(t, l.Close())
}

// TestLogFileThatCannotBeWritten: the disk is full, and then the file is closed because it could
// not be opened again.
func TestLogFileThatCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	l := must.Get(OpenLogFile(path))(t)
	must.Do(t, l.file.Close())
	l.file = must.Get(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	for _, text := range []string{"lost", "also lost"} {
		if n, err := l.Write([]byte(text)); n != len(text) || err != nil {
			t.Errorf("wrote %d bytes of %q to a full disk: %v", n, text, err)
		}
	}
	must.Do(t, l.file.Close())
	must.Get(l.Write([]byte("written\n")))(t)
	if got := string(must.Get(os.ReadFile(path))(t)); got != "written\n" {
		t.Errorf("the log has %q after the file was opened again", got)
	}
	must.Do(t, l.Close())
}
