// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestFingerprint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	write := func(content string, age time.Duration) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	fingerprint := func(known Fingerprint) Fingerprint {
		t.Helper()
		f, err := FingerprintOf(path, known)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	write("one", time.Hour)
	first := fingerprint(Fingerprint{})
	write("one", time.Minute)
	if touched := fingerprint(first); touched.SHA256 != first.SHA256 {
		t.Error("the fingerprint changed with the time of the file")
	}
	write("two", time.Minute)
	if changed := fingerprint(first); changed.SHA256 == first.SHA256 {
		t.Error("the fingerprint did not change with the content of the file")
	}
}

func TestInherited(t *testing.T) {
	got := inherited([]string{
		"PATH=/bin", "ETCD_NAME=x", "KWOK_WORKDIR=y", "KUBECONFIG=z", "MAKEFLAGS=-j", "MAKELEVEL=1", "HOME=/h",
	})
	if want := []string{"PATH=/bin", "HOME=/h"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("old\none\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		offset int64
		lines  int
		want   string
	}{
		"all lines of this run":    {4, 10, "one\ntwo\nthree\n"},
		"the last two lines":       {4, 2, "two\nthree\n"},
		"a log that was truncated": {1000, 1, "three\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := Tail(path, test.offset, test.lines); err != nil || got != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

func TestStartAppendsToTheLog(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	if err := os.WriteFile(log, []byte("an earlier run\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := Spec{
		Name: "shell",
		Path: "/bin/sh",
		Args: []string{"-c", `echo "$GREETING from $PWD" >&2`},
		Env:  []string{"GREETING=hello"},
		Dir:  dir,
		Log:  log,
	}
	record, err := Start(spec, Fingerprint{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the shell has ended", func() bool { return !record.Alive() })
	got, err := Tail(log, record.LogOffset, 10)
	if err != nil || !strings.HasPrefix(got, "hello from ") || strings.Contains(got, "earlier") {
		t.Errorf("got %q, %v, want only the line of this run", got, err)
	}
}
