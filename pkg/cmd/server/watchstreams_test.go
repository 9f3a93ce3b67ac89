// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	serveroptions "k8s.io/apiserver/pkg/server/options"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/server/embeddedetcd"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestWatchesHaveStreamsOfTheirOwn opens watches of a resource without a watch cache, as the server
// does, and counts the watch streams in etcd.
func TestWatchesHaveStreamsOfTheirOwn(t *testing.T) {
	etcd := must.Get(embeddedetcd.Start(t.Context(),
		embeddedetcd.Options{DataDir: t.TempDir(), QuotaBytes: embeddedetcd.DefaultQuotaBytes}))(t)
	defer etcd.Stop()
	etcdOptions := NewOptions().Etcd
	etcdOptions.StorageConfig.Transport.ServerList = []string{etcd.Endpoint()}
	getter := ownStreams{&serveroptions.StorageFactoryRestOptionsFactory{
		Options:        *etcdOptions,
		StorageFactory: &serveroptions.SimpleStorageFactory{StorageConfig: etcdOptions.StorageConfig},
	}}
	options := must.Get(getter.GetRESTOptions(v1alpha1.Resource("nodemaintenances"), &maintenance.NodeMaintenance{}))(t)
	const prefix = "/nodemaintenances/"
	store, destroy, err := options.Decorator(options.StorageConfig, prefix,
		func(obj runtime.Object) (string, error) { return prefix + obj.(*maintenance.NodeMaintenance).Name, nil },
		func() runtime.Object { return &maintenance.NodeMaintenance{} },
		func() runtime.Object { return &maintenance.NodeMaintenanceList{} },
		apistorage.DefaultClusterScopedAttr, nil, &cache.Indexers{})
	if err != nil {
		t.Fatal(err)
	}
	defer destroy()

	const count = 3
	before := watchStreams(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var watches []watch.Interface
	for range count {
		w := must.Get(store.Watch(ctx, prefix, apistorage.ListOptions{
			ResourceVersion: "0", Recursive: true, Predicate: apistorage.Everything,
		}))(t)
		watches = append(watches, w)
	}
	waitForStreams(t, before+count)
	for i := range 5 {
		name := strconv.Itoa(i)
		one := &maintenance.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: name}}
		must.Do(t, store.Create(t.Context(), prefix+name, one, nil, 0))
		for _, w := range watches {
			if event := <-w.ResultChan(); event.Type != watch.Added {
				t.Errorf("got event %s, want Added", event.Type)
			}
		}
	}
	watches[0].Stop()
	waitForStreams(t, before+count-1)
}

func waitForStreams(t *testing.T, want float64) {
	t.Helper()
	var got float64
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		got = watchStreams(t)
		return got == want, nil
	}); err != nil {
		t.Fatalf("etcd has %v streams of watches, want %v", got, want)
	}
}

// watchStreams returns the number of watch streams in the etcd servers of this process.
func watchStreams(t *testing.T) float64 {
	t.Helper()
	families := must.Get(prometheus.DefaultGatherer.Gather())(t)
	for _, family := range families {
		if family.GetName() == "etcd_debugging_mvcc_watch_stream_total" {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("etcd does not count its streams")
	return 0
}
