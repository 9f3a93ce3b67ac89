// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package embeddedetcd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

var restoredAt = time.Date(2026, 11, 23, 3, 4, 5, 0, time.UTC)

func run(t *testing.T, dir string, quota int64) *Server {
	t.Helper()
	return must.Get(Start(t.Context(), Options{DataDir: dir, QuotaBytes: quota}))(t)
}

func put(t *testing.T, client *clientv3.Client, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		must.Get(client.Put(t.Context(), pairs[i], pairs[i+1]))(t)
	}
}

// pairsOf returns all keys of an etcd with their values, in order.
func pairsOf(t *testing.T, client *clientv3.Client) (pairs []string, revision int64) {
	t.Helper()
	got := must.Get(client.Get(t.Context(), "\x00", clientv3.WithFromKey()))(t)
	for _, pair := range got.Kvs {
		pairs = append(pairs, string(pair.Key), string(pair.Value))
	}
	return pairs, got.Header.Revision
}

func snapshotOf(t *testing.T, dir string) []byte {
	t.Helper()
	member := must.Get(Connect(t.Context(), dir))(t)
	defer member.Close()
	var snapshot bytes.Buffer
	must.Do(t, member.Snapshot(t.Context(), &snapshot))
	return snapshot.Bytes()
}

// TestRestore restores a snapshot over newer data.
func TestRestore(t *testing.T) {
	dir := t.TempDir()
	s := run(t, dir, DefaultQuotaBytes)
	put(t, connect(t, s), "/a", "1", "/b", "2")
	snapshot := snapshotOf(t, dir)
	put(t, connect(t, s), "/b", "3", "/c", "4")
	_, before := pairsOf(t, connect(t, s))
	if _, err := Restore(bytes.NewReader(snapshot), dir, restoredAt); err == nil || !strings.Contains(err.Error(), "stop the server first") {
		t.Errorf("got error %v while the server runs, want that it must be stopped", err)
	}
	s.Stop()

	restored := must.Get(Restore(bytes.NewReader(snapshot), dir, restoredAt))(t)
	if want := filepath.Join(dir, "data", "etcd.before-20261123T030405Z"); restored.Previous != want || restored.TotalKey == 0 {
		t.Errorf("got %+v, want the data before in %s", restored, want)
	}
	s = run(t, dir, DefaultQuotaBytes)
	pairs, revision := pairsOf(t, connect(t, s))
	if want := []string{"/a", "1", "/b", "2"}; !slices.Equal(pairs, want) {
		t.Errorf("got %q, want %q", pairs, want)
	}
	is.True(t, revision > before, "got revision %d, want more than %d: clients that watch would not notice", revision, before)
	watch := connect(t, s).Watch(t.Context(), "/", clientv3.WithPrefix(), clientv3.WithRev(before))
	if answer := <-watch; answer.CompactRevision == 0 {
		t.Errorf("got %+v for a watch from before, want that it must list again", answer)
	}
	put(t, connect(t, s), "/d", "5")
	s.Stop()

	// The previous data is an ordinary data directory.
	must.Do(t, os.RemoveAll(filepath.Join(dir, "data", "etcd")))
	must.Do(t, os.Rename(restored.Previous, filepath.Join(dir, "data", "etcd")))
	s = run(t, dir, DefaultQuotaBytes)
	defer s.Stop()
	if pairs, _ := pairsOf(t, connect(t, s)); !slices.Equal(pairs, []string{"/a", "1", "/b", "3", "/c", "4"}) {
		t.Errorf("got %q of the data before", pairs)
	}
}

func TestRestoreToAnEmptyVolume(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	s := run(t, from, DefaultQuotaBytes)
	defer s.Stop()
	put(t, connect(t, s), "/a", "1")
	restored, err := Restore(bytes.NewReader(snapshotOf(t, from)), to, restoredAt)
	must.True(t, err == nil && restored.Previous == "", "got %+v, error %v, want no data before", restored, err)
	other := run(t, to, DefaultQuotaBytes)
	defer other.Stop()
	if pairs, _ := pairsOf(t, connect(t, other)); !slices.Equal(pairs, []string{"/a", "1"}) {
		t.Errorf("got %q", pairs)
	}
}

func TestDamagedSnapshotIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := run(t, dir, DefaultQuotaBytes)
	put(t, connect(t, s), "/a", "1")
	snapshot := snapshotOf(t, dir)
	s.Stop()
	flipped := bytes.Clone(snapshot)
	flipped[len(flipped)/2] ^= 1
	for name, damaged := range map[string][]byte{
		"a flipped bit": flipped, "half of it": snapshot[:len(snapshot)/2], "without its checksum": snapshot[:len(snapshot)-32],
		"nothing": {}, "text": []byte("error: container not found\n"),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Restore(bytes.NewReader(damaged), dir, restoredAt); err == nil {
				t.Error("got no error")
			}
			entries := must.Get(os.ReadDir(filepath.Join(dir, "data")))(t)
			for _, entry := range entries {
				if strings.Contains(entry.Name(), "restore") || strings.Contains(entry.Name(), "before") {
					t.Errorf("got %s left", entry.Name())
				}
			}
		})
	}
	s = run(t, dir, DefaultQuotaBytes)
	defer s.Stop()
	if pairs, _ := pairsOf(t, connect(t, s)); !slices.Equal(pairs, []string{"/a", "1"}) {
		t.Errorf("got %q, want the data as they were", pairs)
	}
}

// TestDefragment fills the database, deletes most of the data and defragments it, so that it
// accepts writes again.
func TestDefragment(t *testing.T) {
	dir := t.TempDir()
	s := run(t, dir, MinQuotaBytes)
	defer s.Stop()
	client := connect(t, s)
	value := strings.Repeat("x", 1<<20)
	for i := range 100 {
		if _, err := client.Put(t.Context(), fmt.Sprintf("/%d", i), value); err != nil {
			break
		}
	}
	member := must.Get(Connect(t.Context(), dir))(t)
	defer member.Close()
	full := must.Get(member.Status(t.Context()))(t)
	if !full.Full || full.QuotaBytes != MinQuotaBytes || full.Objects < 5 || full.DatabaseBytes < MinQuotaBytes/2 ||
		full.DiskFreeBytes <= 0 || full.Version == "" || full.Revision < full.Objects {
		t.Errorf("got %+v, want a full database", full)
	}
	must.Get(client.Delete(t.Context(), "/", clientv3.WithPrefix()))(t)
	must.Do(t, member.Defragment(t.Context()))
	status := must.Get(member.Status(t.Context()))(t)
	if status.Full || status.Objects != 0 || status.DatabaseBytes > full.DatabaseBytes/4 {
		t.Errorf("got %+v, want a small database", status)
	}
	put(t, client, "/a", "1")
}

func TestCopy(t *testing.T) {
	dir := t.TempDir()
	s := run(t, dir, DefaultQuotaBytes)
	client := connect(t, s)
	// Write more than one page of keys, and a value above the default limit of etcd.
	want := []string{"/ours/large", strings.Repeat("x", MaxRequestBytes*9/10)}
	for i := range copyPage + 1 {
		want = append(want, fmt.Sprintf("/ours/object-%04d", i), fmt.Sprint(i))
	}
	put(t, client, want...)
	put(t, client, "/oursnot", "1", "/other", "1")
	target := run(t, t.TempDir(), DefaultQuotaBytes)
	defer target.Stop()
	options, to := Options{DataDir: dir, QuotaBytes: DefaultQuotaBytes}, clientv3.Config{Endpoints: []string{target.Endpoint()}}
	if _, err := Copy(t.Context(), options, to, "/ours/"); err == nil || !strings.Contains(err.Error(), "stop the server first") {
		t.Errorf("got error %v while the server runs, want that it must be stopped", err)
	}
	s.Stop()

	count, err := Copy(t.Context(), options, to, "/ours/")
	if err != nil || count != len(want)/2 {
		t.Fatalf("got %d keys, error %v, want %d", count, err, len(want)/2)
	}
	if got, _ := pairsOf(t, connect(t, target)); !slices.Equal(got, want) {
		t.Errorf("got %d keys, want %d with their values", len(got)/2, len(want)/2)
	}
	if _, err := Copy(t.Context(), options, to, "/ours/"); err == nil || !strings.Contains(err.Error(), "must have none") {
		t.Errorf("got error %v of a second copy, want that the other etcd must have no such keys", err)
	}
	unreachable := clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(dir, "nothing.sock")}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := Copy(ctx, options, unreachable, "/ours/"); err == nil || !strings.Contains(err.Error(), "reach the other etcd") {
		t.Errorf("got error %v, want that the other etcd cannot be reached", err)
	}
}

func TestConnectNeedsARunningServer(t *testing.T) {
	dir := t.TempDir()
	s := run(t, dir, DefaultQuotaBytes)
	s.Stop()
	for name, dataDir := range map[string]string{"a stopped server": dir, "no folder": filepath.Join(dir, "nothing")} {
		if _, err := Connect(t.Context(), dataDir); err == nil || !strings.Contains(err.Error(), "--data-dir="+dataDir) {
			t.Errorf("%s: got error %v, want one that names the flag", name, err)
		}
	}
}
