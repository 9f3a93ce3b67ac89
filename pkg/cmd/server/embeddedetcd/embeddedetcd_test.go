// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package embeddedetcd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func connect(t *testing.T, s *Server) *clientv3.Client {
	t.Helper()
	client := must.Get(clientv3.New(clientv3.Config{
		Endpoints: []string{s.Endpoint()}, DialTimeout: 10 * time.Second, MaxCallSendMsgSize: 16 << 20,
	}))(t)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestDataSurvivesARestart(t *testing.T) {
	cases := map[string]string{
		"with the sockets beside the data":                   filepath.Join(t.TempDir(), "d"),
		"with a path that is too long for sockets beside it": filepath.Join(t.TempDir(), strings.Repeat("long/", 30)),
	}
	for name, dir := range cases {
		t.Run(name, func(t *testing.T) {
			first := must.Get(Start(t.Context(), Options{DataDir: dir, QuotaBytes: DefaultQuotaBytes}))(t)
			large := strings.Repeat("x", MaxRequestBytes*9/10)
			if _, err := connect(t, first).Put(t.Context(), "key", large); err != nil {
				t.Errorf("a value of %d bytes is refused: %v", len(large), err)
			}
			must.Get(Connect(t.Context(), dir))(t).Close()
			first.Stop()
			_, err := Connect(t.Context(), dir)
			is.True(t, err != nil && strings.Contains(err.Error(), "no server"), "got %v without a server", err)

			second := must.Get(Start(t.Context(), Options{DataDir: dir, QuotaBytes: DefaultQuotaBytes}))(t)
			defer second.Stop()
			got := must.Get(connect(t, second).Get(t.Context(), "key"))(t)
			is.True(t, len(got.Kvs) == 1 && string(got.Kvs[0].Value) == large, "the value is not what was written")
		})
	}
}

// TestAMovedDirectoryHasItsOwnSockets: a killed server has left the folder of other sockets.
func TestAMovedDirectoryHasItsOwnSockets(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.Mkdir(filepath.Join(dir, privateName), 0o700))
	must.Do(t, os.WriteFile(filepath.Join(dir, privateName, socketsName), []byte("/nowhere"), 0o600))
	defer must.Get(Start(t.Context(), Options{DataDir: dir, QuotaBytes: DefaultQuotaBytes}))(t).Stop()
	must.Get(Connect(t.Context(), dir))(t).Close()
}

// TestWritesDoNotStayInMemory writes far more than the heap may keep, and starts etcd again.
func TestWritesDoNotStayInMemory(t *testing.T) {
	options := Options{DataDir: t.TempDir(), QuotaBytes: DefaultQuotaBytes}
	value := strings.Repeat("x", 32<<10)
	before := heapSize()
	grown := func(what string) {
		t.Helper()
		got := (int64(heapSize()) - int64(before)) >> 20
		t.Logf("%s: %d MiB", what, got)
		is.True(t, got < 24, "%s, the heap has %d MiB more, want less than 24", what, got)
	}
	for run := range 2 {
		s := must.Get(Start(t.Context(), options))(t)
		grown(fmt.Sprintf("after start %d", run))
		client := connect(t, s)
		for i := range 1200 {
			must.Get(client.Put(t.Context(), fmt.Sprintf("/registry/%d", i%10), value))(t)
		}
		grown(fmt.Sprintf("after 1200 writes of 32 KiB in run %d", run))
		s.Stop()
	}
}

// heapSize returns the size of all objects on the heap that are in use, in bytes.
func heapSize() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// TestClientThatMissedTheLastWriteListsAgain continues a watch after a restart, at the previous
// revision: the client may have missed one or more writes.
func TestClientThatMissedTheLastWriteListsAgain(t *testing.T) {
	options := Options{DataDir: t.TempDir(), QuotaBytes: DefaultQuotaBytes}
	first := must.Get(Start(t.Context(), options))(t)
	var last int64
	for range 3 {
		put := must.Get(connect(t, first).Put(t.Context(), "/registry/object", "value"))(t)
		last = put.Header.Revision
	}
	first.Stop()
	second := must.Get(Start(t.Context(), options))(t)
	defer second.Stop()
	for _, seen := range []int64{last - 2, last - 1} {
		watch := connect(t, second).Watch(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithRev(seen+1), clientv3.WithPrevKV())
		if got := <-watch; got.CompactRevision == 0 {
			t.Errorf("a watch from version %d of %d got %+v, want that it is too old", seen+1, last, got)
		}
	}
	// A client that has received all writes need not list again.
	client := connect(t, second)
	watch := client.Watch(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithRev(last+1), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	if got := <-watch; !got.Created || got.CompactRevision != 0 {
		t.Errorf("a watch from version %d got %+v, want it to begin", last+1, got)
	}
	must.Get(client.Put(t.Context(), "/registry/object", "next"))(t)
	if got := <-watch; len(got.Events) != 1 || string(got.Events[0].Kv.Value) != "next" || got.Events[0].PrevKv == nil {
		t.Errorf("got %+v, want the next write with the previous value", got)
	}
}

func TestDataFolderIsPrivateAndUsedOnce(t *testing.T) {
	given := filepath.Join(t.TempDir(), "volume")
	dir := filepath.Join(given, privateName)
	must.Do(t, os.MkdirAll(dir, 0o755))
	s := must.Get(Start(t.Context(), Options{DataDir: given, QuotaBytes: DefaultQuotaBytes}))(t)
	defer s.Stop()
	for folder, want := range map[string]os.FileMode{given: 0o755, dir: 0o700} {
		info := must.Get(os.Stat(folder))(t)
		if info.Mode().Perm() != want {
			t.Errorf("mode of %s is %v, want %v", folder, info.Mode().Perm(), want)
		}
	}
	if !strings.HasPrefix(s.Endpoint(), "unix:///") {
		t.Errorf("endpoint %q is not a unix socket", s.Endpoint())
	}
	for _, name := range []string{"client.sock", "peer.sock"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Type() != os.ModeSocket {
			t.Errorf("%s is not a socket in the private folder: %v, %v", name, info, err)
		}
	}
	entries, err := os.ReadDir(given)
	is.True(t, err == nil && len(entries) == 1, "the server has put %v beside its own folder (%v)", entries, err)
	// A second server waits for the first to end, and then fails.
	ctx, cancel := context.WithTimeout(t.Context(), 2*lockRetry)
	defer cancel()
	_, err = Start(ctx, Options{DataDir: given, QuotaBytes: DefaultQuotaBytes})
	if err == nil || !strings.Contains(err.Error(), dir+" is in use by another server") {
		t.Errorf("got error %v of a second server, want that the directory is in use", err)
	}
	if _, err := connect(t, s).Get(t.Context(), "key"); err != nil {
		t.Errorf("the attempt of a second server hurt the first: %v", err)
	}
}

// TestReplacementWaitsForTheDataFolder stops a server after its replacement was started.
func TestReplacementWaitsForTheDataFolder(t *testing.T) {
	dir := t.TempDir()
	first := must.Get(Start(t.Context(), Options{DataDir: dir, QuotaBytes: DefaultQuotaBytes}))(t)
	started := make(chan error)
	go func() {
		replacement, err := Start(t.Context(), Options{DataDir: dir, QuotaBytes: DefaultQuotaBytes})
		if err == nil {
			replacement.Stop()
		}
		started <- err
	}()
	select {
	case err := <-started:
		t.Errorf("the replacement did not wait: %v", err)
	case <-time.After(2 * lockRetry):
	}
	first.Stop()
	if err := <-started; err != nil {
		t.Errorf("the replacement did not start after the end of the first server: %v", err)
	}
}
