// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"strconv"
	"sync/atomic"

	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// watchKey is the name of the gRPC metadata that distinguishes watches.
const watchKey = "haulout-watch"

// ownStreams gives each watch of etcd its own stream. The etcd client sends watches whose contexts
// have the same metadata over one stream. If a watch ends while events for it are pending, etcd
// keeps these events until the stream ends. The stream for resources without a watch cache would
// never end, since the controllers watch these resources, too.
type ownStreams struct{ generic.RESTOptionsGetter }

// GetRESTOptions implements generic.RESTOptionsGetter.
func (g ownStreams) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	decorate := options.Decorator
	options.Decorator = func(
		config *storagebackend.ConfigForResource, resourcePrefix string, key func(runtime.Object) (string, error),
		newObject, newList func() runtime.Object, attrs apistorage.AttrFunc, trigger apistorage.IndexerFuncs, indexers *cache.Indexers,
	) (apistorage.Interface, factory.DestroyFunc, error) {
		store, destroy, err := decorate(config, resourcePrefix, key, newObject, newList, attrs, trigger, indexers)
		if err != nil {
			return nil, nil, err
		}
		return &streamPerWatch{Interface: store}, destroy, nil
	}
	return options, nil
}

type streamPerWatch struct {
	apistorage.Interface
	last atomic.Uint64
}

// Watch implements storage.Interface.
func (s *streamPerWatch) Watch(ctx context.Context, key string, options apistorage.ListOptions) (watch.Interface, error) {
	number := strconv.FormatUint(s.last.Add(1), 10)
	return s.Interface.Watch(metadata.AppendToOutgoingContext(ctx, watchKey, number), key, options)
}
