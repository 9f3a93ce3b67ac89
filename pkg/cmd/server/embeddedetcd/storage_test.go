// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package embeddedetcd

import (
	"context"
	"fmt"
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
	writing, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	defer writers.Wait()
	defer stop()
	for i := range 8 {
		writers.Go(func() {
			for writing.Err() == nil {
				_, err := client.Put(writing, fmt.Sprintf("/keys/%d", i), strings.Repeat("x", 1000))
				if err != nil && writing.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	for range 10 {
		watching, end := context.WithCancel(t.Context())
		watches := make([]clientv3.WatchChan, 100)
		for i := range watches {
			watches[i] = client.Watch(watching, "/keys/", clientv3.WithPrefix(), clientv3.WithPrevKV())
		}
		for _, watch := range watches {
			next(t, watch)
		}
		end()
		for _, watch := range watches {
			for next(t, watch) {
			}
		}
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
