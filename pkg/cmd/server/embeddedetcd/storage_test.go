/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package embeddedetcd

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	serveroptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/registrytest"
)

var (
	resource = schema.GroupResource{Group: maintenance.GroupName, Resource: "nodemaintenances"}
	other    = schema.GroupResource{Group: maintenance.GroupName, Resource: "evacuations"}
)

const prefix = "/maintenance/nodemaintenances"

// parts are what storage of one resource is made from.
type parts struct {
	network generic.RESTOptionsGetter
	direct  generic.RESTOptionsGetter
}

func newParts(t *testing.T, s *Server, cached bool) parts {
	t.Helper()
	options := serveroptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", registrytest.StorageCodec()))
	options.EnableWatchCache = true
	options.StorageConfig.Transport.ServerList = []string{s.Endpoint()}
	if !cached {
		options.WatchCacheSizes = []string{resource.String() + "#0"}
	}
	network := &serveroptions.StorageFactoryRestOptionsFactory{
		Options: *options, StorageFactory: &serveroptions.SimpleStorageFactory{StorageConfig: options.StorageConfig},
	}
	direct, err := s.RESTOptions(network, options)
	if err != nil {
		t.Fatal(err)
	}
	return parts{network, direct}
}

func open(t *testing.T, getter generic.RESTOptionsGetter, resource schema.GroupResource) (storage.Interface, func()) {
	t.Helper()
	options, err := getter.GetRESTOptions(resource, &maintenance.NodeMaintenance{})
	if err != nil {
		t.Fatal(err)
	}
	store, destroy, err := options.Decorator(options.StorageConfig, prefix,
		func(obj runtime.Object) (string, error) {
			return prefix + "/" + obj.(*maintenance.NodeMaintenance).Name, nil
		},
		func() runtime.Object { return &maintenance.NodeMaintenance{} },
		func() runtime.Object { return &maintenance.NodeMaintenanceList{} },
		storage.DefaultClusterScopedAttr, nil, &cache.Indexers{})
	if err != nil {
		t.Fatal(err)
	}
	if err := wait.PollUntilContextTimeout(
		t.Context(), 5*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			return store.ReadinessCheck() == nil, nil
		},
	); err != nil {
		t.Fatal(err)
	}
	return store, destroy
}

func annotate(ctx context.Context, store storage.Interface, name, key string) error {
	return store.GuaranteedUpdate(
		ctx, prefix+"/"+name, &maintenance.NodeMaintenance{}, false, nil,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			metav1.SetMetaDataAnnotation(&obj.(*maintenance.NodeMaintenance).ObjectMeta, key, "x")
			return obj, nil
		}),
		nil,
	)
}

func TestStorageInTheProcess(t *testing.T) {
	for name, cached := range map[string]bool{"cached": true, "not cached": false} {
		t.Run(name, func(t *testing.T) {
			s, err := Start(t.Context(), Options{DataDir: t.TempDir(), QuotaBytes: DefaultQuotaBytes})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Stop()
			p := newParts(t, s, cached)
			store, destroy := open(t, p.direct, resource)
			defer destroy()
			if got := strings.Contains(reflect.TypeOf(store).String(), "cacher."); got != cached {
				t.Errorf("the storage is a %T", store)
			}

			ctx := t.Context()
			events, err := store.Watch(ctx, prefix+"/", storage.ListOptions{
				ResourceVersion: "0",
				Predicate:       storage.Everything,
				Recursive:       true,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer events.Stop()
			if err := store.Create(
				ctx, prefix+"/one", &maintenance.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, nil, 0,
			); err != nil {
				t.Fatal(err)
			}
			if err := store.Create(
				ctx, prefix+"/one", &maintenance.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, nil, 0,
			); !storage.IsExist(err) {
				t.Errorf("created twice: %v", err)
			}
			// None of the writers may overwrite another.
			const writers = 20
			var wg sync.WaitGroup
			for i := range writers {
				wg.Go(func() {
					if err := annotate(ctx, store, "one", fmt.Sprintf("writer-%d", i)); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			// Consistent reads see all that was written before.
			list := &maintenance.NodeMaintenanceList{}
			if err := store.GetList(
				ctx, prefix+"/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list,
			); err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != 1 || len(list.Items[0].Annotations) != writers {
				t.Errorf("got %d objects, want one with the annotations of all writers: %v",
					len(list.Items), list.Items)
			}
			if err := store.Delete(
				ctx, prefix+"/one", &maintenance.NodeMaintenance{}, nil, storage.ValidateAllObjectFunc, nil,
				storage.DeleteOptions{},
			); err != nil {
				t.Fatal(err)
			}
			if err := annotate(ctx, store, "one", "late"); !storage.IsNotFound(err) {
				t.Errorf("an object that is gone was updated: %v", err)
			}
			modified := slices.Repeat([]watch.EventType{watch.Modified}, writers)
			for _, want := range slices.Concat(
				[]watch.EventType{watch.Added}, modified, []watch.EventType{watch.Deleted},
			) {
				select {
				case got := <-events.ResultChan():
					if got.Type != want {
						t.Fatalf("got event %s (%v), want %s", got.Type, apierrors.FromObject(got.Object), want)
					}
				case <-time.After(time.Minute):
					t.Fatalf("no event %s", want)
				}
			}
		})
	}
}

// What one way has stored the other one finds: the data of a server that was updated, and what a
// client of etcd is asked about.
func TestBothWaysToTheStorageMeet(t *testing.T) {
	s, err := Start(t.Context(), Options{DataDir: t.TempDir(), QuotaBytes: DefaultQuotaBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	p := newParts(t, s, true)
	network, destroyNetwork := open(t, p.network, resource)
	defer destroyNetwork()
	direct, destroyDirect := open(t, p.direct, resource)
	defer destroyDirect()
	if err := network.Create(t.Context(), prefix+"/one", sized("one", 1<<20), nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := annotate(t.Context(), direct, "one", "direct"); err != nil {
		t.Fatal(err)
	}
	got := &maintenance.NodeMaintenance{}
	if err := network.Get(t.Context(), prefix+"/one", storage.GetOptions{}, got); err != nil {
		t.Fatal(err)
	}
	if got.Annotations["direct"] == "" || len(got.Annotations["x"]) != 1<<20 {
		t.Errorf("got %d bytes and the annotation %q", len(got.Annotations["x"]), got.Annotations["direct"])
	}
	// What etcd takes is bounded by its own limit alone.
	if err := direct.Create(t.Context(), prefix+"/large", sized("large", MaxRequestBytes*3/4), nil, 0); err != nil {
		t.Error(err)
	}
	err = direct.Create(t.Context(), prefix+"/too-large", sized("too-large", MaxRequestBytes), nil, 0)
	if err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("an object that is too large was stored: %v", err)
	}
}

func sized(name string, bytes int) *maintenance.NodeMaintenance {
	return &maintenance.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"x": strings.Repeat("x", bytes)}},
	}
}

func TestOneCompactorForAllStorage(t *testing.T) {
	s, err := Start(t.Context(), Options{DataDir: t.TempDir(), QuotaBytes: DefaultQuotaBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	direct := newParts(t, s, true).direct.(*inProcess)
	_, destroyOne := open(t, direct, resource)
	first := direct.compactor
	_, destroyOther := open(t, direct, other)
	if first == nil || direct.compactor != first || first.users != 2 {
		t.Fatalf("got %v and %v", first, direct.compactor)
	}
	destroyOne()
	destroyOne()
	if direct.compactor != first {
		t.Errorf("the compactor was stopped while it was in use")
	}
	destroyOther()
	if direct.compactor != nil {
		t.Errorf("the compactor goes on")
	}
}
