// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"haulout.dev/haulout/test/cluster/internal/process"
)

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	if _, found, err := Load(path); found || err != nil {
		t.Fatalf("got found: %v, error %v in an empty folder", found, err)
	}
	want := New()
	want.Options = map[string]string{"NODES": "3"}
	want.Ports["etcd"] = 20000
	want.Processes["etcd"] = process.Record{
		PID: 1, StartTicks: 2, BootID: "b", Args: []string{"--x"},
		Binary: process.Fingerprint{Size: 4, ModTime: time.Unix(5, 6).UTC(), SHA256: "c"}, LogOffset: 7,
	}
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	got, found, err := Load(path)
	if err != nil || !found {
		t.Fatalf("got found: %v, error %v, want the state", found, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("got %d files in the folder, want only the state", len(entries))
	}
}

func TestLoadRejectsInvalidFiles(t *testing.T) {
	for name, content := range map[string]string{
		"a truncated file":          `{"version":1,`,
		"a file of another version": `{"version":99}`,
		"a file without a version":  `{"ports":{}}`,
		"a list":                    `[]`,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.json")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("got error %v, want one that names %s", err, path)
			}
		})
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, func() { t.Error("Lock waited for a free lock") })
	if err != nil {
		t.Fatal(err)
	}

	timeout := errors.New("timeout")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err = Lock(ctx, path, func() { cancel(timeout) })
	if !errors.Is(err, timeout) {
		t.Errorf("got %v while another process has the lock, want %v", err, timeout)
	}

	// The owner of the lock removes the file, as `down` does, before it unlocks it. The next caller
	// must not lock the removed file.
	waiting := make(chan struct{})
	result := make(chan error)
	go func() {
		_, err := Lock(t.Context(), path, func() { close(waiting) })
		result <- err
	}()
	<-waiting
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("Lock locked a removed file: %v", err)
	}
}
