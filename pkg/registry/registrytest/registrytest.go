// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package registrytest runs the registry of a kind on a real etcd in the process of the test, so
// that tests observe the same behaviour as a client of the server: transactions, conflicts,
// finalizers, and the effect of the storage encoding.
package registrytest

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

var (
	// Scheme has the types of the maintenance API. It is not the scheme of the server, which would
	// cause an import cycle.
	Scheme = runtime.NewScheme()
	// Codecs encodes and decodes the types of Scheme.
	Codecs = serializer.NewCodecFactory(Scheme)
)

func init() {
	install.Install(Scheme)
	metav1.AddToGroupVersion(Scheme, schema.GroupVersion{Version: "v1"})
}

// StorageCodec returns the storage codec of the server: protobuf of v1alpha1.
func StorageCodec() runtime.Codec {
	info, ok := runtime.SerializerInfoForMediaType(Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		panic("the scheme has no protobuf serializer")
	}
	return Codecs.CodecForVersions(info.Serializer, Codecs.UniversalDeserializer(), v1alpha1.SchemeGroupVersion, maintenance.SchemeGroupVersion)
}

// Etcd is a running etcd. A start takes almost a second: start one in each test function and share
// it between its subtests.
type Etcd struct {
	// Client is an etcd client for reading stored bytes.
	Client *kubernetes.Client

	prefixes atomic.Int64
}

// RunEtcd starts an etcd and stops it at the end of the test.
func RunEtcd(t testing.TB) *Etcd {
	t.Helper()
	return &Etcd{Client: testserver.RunEtcd(t, nil)}
}

// RESTOptions returns the options of separate storage under a unique prefix. Without a watch cache,
// reads return every earlier write.
func (e *Etcd) RESTOptions(resource schema.GroupResource) generic.RESTOptions {
	config := storagebackend.NewDefaultConfig(fmt.Sprintf("/registry-%d", e.prefixes.Add(1)), StorageCodec())
	config.Transport.ServerList = e.Client.Endpoints()
	return generic.RESTOptions{
		StorageConfig:           config.ForResource(resource),
		Decorator:               generic.UndecoratedStorage,
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: 1,
		ResourcePrefix:          path.Join("/", resource.Group, resource.Resource),
	}
}

// CachedRESTOptions returns the options of separate storage with a watch cache, which serves lists
// by index. It waits until the cache is filled, since the cache refuses requests before.
func (e *Etcd) CachedRESTOptions(resource schema.GroupResource) generic.RESTOptions {
	options := e.RESTOptions(resource)
	options.Decorator = func(config *storagebackend.ConfigForResource, resourcePrefix string, keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object, getAttrs storage.AttrFunc, trigger storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		cached, destroy, err := genericregistry.StorageWithCacher()(config, resourcePrefix, keyFunc, newFunc, newListFunc, getAttrs, trigger, indexers)
		if err != nil {
			return nil, nil, err
		}
		err = wait.PollUntilContextTimeout(context.Background(), 5*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			return cached.ReadinessCheck() == nil, nil
		})
		if err != nil {
			destroy()
			return nil, nil, fmt.Errorf("wait for the watch cache: %w", err)
		}
		return cached, destroy, nil
	}
	return options
}

// StoredBytes returns the value of an object in etcd; name is "namespace/name" for an object in a
// namespace.
func (e *Etcd) StoredBytes(ctx context.Context, t testing.TB, options generic.RESTOptions, name string) []byte {
	t.Helper()
	key := path.Join(options.StorageConfig.Prefix, options.ResourcePrefix, name)
	response, err := e.Client.KV.Get(ctx, key)
	if err != nil {
		t.Fatalf("read %s from etcd: %v", key, err)
	}
	if len(response.Kvs) != 1 {
		t.Fatalf("etcd has %d values for %s, want 1", len(response.Kvs), key)
	}
	return response.Kvs[0].Value
}

// Request has the request information in the context of the handlers.
type Request struct {
	// User is the user of the request.
	User user.Info
	// Verb is the request's verb. Only admission plugins depend on it.
	Verb string
	// Resource and Subresource are the plural name of the kind and, if any, of the subresource.
	Resource, Subresource string
	// Namespace is empty for a cluster-scoped kind.
	Namespace string
	// Name is the name of the object; empty in a create.
	Name string
}

// Context returns the context of the request for v1alpha1.
func (r Request) Context(ctx context.Context) context.Context {
	ctx = genericapirequest.WithUser(ctx, r.User)
	ctx = genericapirequest.WithNamespace(ctx, r.Namespace)
	requestPath := path.Join("/apis", v1alpha1.GroupName, v1alpha1.SchemeGroupVersion.Version)
	if r.Namespace != "" {
		requestPath = path.Join(requestPath, "namespaces", r.Namespace)
	}
	return genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true,
		Path:              path.Join(requestPath, r.Resource, r.Name, r.Subresource),
		Verb:              r.Verb,
		APIPrefix:         "apis",
		APIGroup:          v1alpha1.GroupName,
		APIVersion:        v1alpha1.SchemeGroupVersion.Version,
		Namespace:         r.Namespace,
		Resource:          r.Resource,
		Subresource:       r.Subresource,
		Name:              r.Name,
		Parts:             strings.FieldsFunc(path.Join(r.Resource, r.Name, r.Subresource), func(c rune) bool { return c == '/' }),
	})
}

// Warnings collects the warnings of a request.
type Warnings struct {
	mu    sync.Mutex
	texts []string
}

var _ warning.Recorder = &Warnings{}

// AddWarning implements warning.Recorder.
func (w *Warnings) AddWarning(_, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// Texts returns the warnings so far.
func (w *Warnings) Texts() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.texts...)
}

// WithWarnings returns a context that adds its warnings to the returned collection.
func WithWarnings(ctx context.Context) (context.Context, *Warnings) {
	w := &Warnings{}
	return warning.WithWarningRecorder(ctx, w), w
}
