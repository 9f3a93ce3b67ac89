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
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	etcdkubernetes "go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	serveroptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// RESTOptions returns options with which storage calls the etcd of this process directly, and not
// over gRPC and its socket. Everything else delegates to next; only the watch-cache setting is read
// from options. The storage has to be destroyed before the server stops.
func (s *Server) RESTOptions(next generic.RESTOptionsGetter, options *serveroptions.EtcdOptions) (generic.RESTOptionsGetter, error) {
	sizes, err := serveroptions.ParseWatchCacheSizes(options.WatchCacheSizes)
	if err != nil {
		return nil, err
	}
	return &inProcess{
		next: next, server: s,
		cached: func(resource schema.GroupResource) bool {
			size, set := sizes[resource]
			return options.EnableWatchCache && (!set || size > 0)
		},
	}, nil
}

type inProcess struct {
	next   generic.RESTOptionsGetter
	server *Server
	cached func(schema.GroupResource) bool

	mu        sync.Mutex
	compactor *sharedCompactor
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (p *inProcess) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := p.next.GetRESTOptions(resource, example)
	if err == nil {
		options.Decorator = p.decorate
	}
	return options, err
}

// decorate is a generic.StorageDecorator.
func (p *inProcess) decorate(config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	getAttrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
	store, destroy, err := p.store(config, resourcePrefix, newFunc, newListFunc)
	if err != nil || !p.cached(config.GroupResource) {
		return store, destroy, err
	}
	c, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: store, Versioner: storage.APIObjectVersioner{}, Codec: config.Codec,
		GroupResource: config.GroupResource, EventsHistoryWindow: config.EventsHistoryWindow,
		ResourcePrefix: resourcePrefix, KeyFunc: keyFunc, GetAttrsFunc: getAttrs, IndexerFuncs: triggers, Indexers: indexers,
		NewFunc: newFunc, NewListFunc: newListFunc,
	})
	if err != nil {
		destroy()
		return nil, nil, err
	}
	delegator := cacher.NewCacheDelegator(c, store)
	return delegator, sync.OnceFunc(func() {
		delegator.Stop()
		c.Stop()
		destroy()
	}), nil
}

// store returns the storage of one resource, without a cache.
func (p *inProcess) store(config *storagebackend.ConfigForResource, resourcePrefix string, newFunc, newListFunc func() runtime.Object) (storage.Interface, factory.DestroyFunc, error) {
	client := v3client.New(p.server.etcd.Server)
	client.KV = etcd3.NewETCDLatencyTracker(client.KV)
	// The library checks the features of each endpoint of a client. This client has none.
	feature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), member{client, p.server.endpoint}, storage.RequestWatchProgress)
	transformer := config.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	wrapped := &etcdkubernetes.Client{Client: client}
	wrapped.Kubernetes = wrapped
	compactor, release := p.compact(config)
	versioner := storage.APIObjectVersioner{}
	decoder := etcd3.NewDefaultDecoder(config.Codec, versioner)
	mayDeleteCorrupt := utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	if mayDeleteCorrupt {
		transformer, decoder = etcd3.WithCorruptObjErrorHandlingTransformer(transformer), etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	store, err := etcd3.New(wrapped, compactor, config.Codec, newFunc, newListFunc, config.Prefix, resourcePrefix, config.GroupResource, transformer,
		config.LeaseManagerConfig, decoder, versioner)
	if err != nil {
		release()
		_ = client.Close()
		return nil, nil, err
	}
	destroy := sync.OnceFunc(func() {
		release()
		store.Close()
		_ = client.Close()
	})
	if mayDeleteCorrupt {
		return etcd3.NewStoreWithUnsafeCorruptObjectDeletion(store, config.GroupResource), destroy, nil
	}
	return store, destroy, nil
}

// member is a client with the endpoint of the etcd that it calls directly.
type member struct {
	*clientv3.Client
	endpoint string
}

// Endpoints returns the endpoint.
func (m member) Endpoints() []string { return []string{m.endpoint} }

// sharedCompactor removes old versions for all resources, as long as one of them is in use.
type sharedCompactor struct {
	etcd3.Compactor
	users int
	stop  func()
}

// compact returns the compactor, or nil if compaction is disabled, and a function to call when it
// is not used any more.
func (p *inProcess) compact(config *storagebackend.ConfigForResource) (etcd3.Compactor, func()) {
	if config.CompactionInterval == 0 {
		return nil, func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.compactor == nil {
		client := v3client.New(p.server.etcd.Server)
		c := etcd3.NewCompactor(client, config.CompactionInterval, clock.RealClock{}, func() {})
		p.compactor = &sharedCompactor{Compactor: c, stop: func() {
			c.Stop()
			_ = client.Close()
		}}
	}
	p.compactor.users++
	return p.compactor, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.compactor.users--; p.compactor.users == 0 {
			p.compactor.stop()
			p.compactor = nil
		}
	}
}
