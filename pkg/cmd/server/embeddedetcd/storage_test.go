// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package embeddedetcd

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"haulout.dev/haulout/pkg/testing/must"
)

// TestWatchesEndWhileEventsArrive ends a hundred watches at the same time, during other writes.
// Each watch must end, and the next watch must receive events. In etcd's in-process client, the end
// of a watch and the delivery of events can block each other.
func TestWatchesEndWhileEventsArrive(t *testing.T) {
	s := must.Get(Start(t.Context(), Options{DataDir: t.TempDir(), QuotaBytes: DefaultQuotaBytes}))(t)
	defer s.Stop()
	client := must.Get(s.Client())(t)
	defer client.Close()
	for range 10 {
		watching, end := context.WithCancel(t.Context())
		watches := make([]clientv3.WatchChan, 100)
		for i := range watches {
			watches[i] = client.Watch(watching, "/keys/", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
			next(t, watches[i])
		}
		var writer sync.WaitGroup
		writer.Go(func() {
			// Without an end, a slow machine writes faster than it delivers.
			for range 20 {
				if _, err := client.Put(t.Context(), "/keys/one", strings.Repeat("x", 1000)); err != nil {
					t.Error(err)
				}
			}
		})
		for _, watch := range watches {
			next(t, watch)
		}
		end()
		for _, watch := range watches {
			for next(t, watch) {
			}
		}
		writer.Wait()
	}
}

// next waits for an event. It returns false if the watch has ended.
func next(t *testing.T, watch clientv3.WatchChan) bool {
	t.Helper()
	select {
	case _, ok := <-watch:
		return ok
	case <-time.After(time.Minute):
		t.Fatal("a watch neither gets events nor ends")
		return false
	}
}
