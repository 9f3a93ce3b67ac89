// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
	hostinformers "k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/admission/initializer"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apiserver"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/drain/nodeselector"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/generated/openapi"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/host/previewer"
	"haulout.dev/haulout/pkg/identity"
	"haulout.dev/haulout/pkg/version"
)

// resync is the resync interval of the informers, in case a controller missed an event.
const resync = 10 * time.Minute

// previewQPS and previewBurst limit the requests of previews to the host cluster, separately from
// those of the controllers.
const previewQPS, previewBurst = 200, 400

// config converts the options to the configuration of a server.
func (o CompletedOptions) config(ctx context.Context, host *hostCluster, replica *replica) (*apiserver.Config, error) {
	generic := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	if err := o.ServerRun.ApplyTo(&generic.Config); err != nil {
		return nil, err
	}
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme)
	generic.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	generic.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	generic.OpenAPIConfig.Info.Title, generic.OpenAPIConfig.Info.Version = "Haulout", version.Get()
	generic.OpenAPIV3Config.Info.Title, generic.OpenAPIV3Config.Info.Version = "Haulout", version.Get()

	if err := o.applyStorage(generic); err != nil {
		return nil, err
	}
	if err := o.Traces.ApplyTo(nil, &generic.Config); err != nil {
		return nil, err
	}
	if err := o.SecureServing.ApplyToConfig(&generic.Config); err != nil {
		return nil, err
	}
	if err := o.applyAuth(generic); err != nil {
		return nil, err
	}
	if err := o.Audit.ApplyTo(&generic.Config); err != nil {
		return nil, err
	}
	o.Metrics.Apply()
	generic.ClientConfig = host.config
	generic.SharedInformerFactory = hostinformers.NewSharedInformerFactory(host.client, resync)
	if err := o.Features.ApplyTo(&generic.Config, host.client, generic.SharedInformerFactory); err != nil {
		return nil, err
	}
	extra, recorder, err := o.extraConfig(generic, host, replica)
	if err != nil {
		return nil, err
	}
	if err := o.applyEvictionReviews(generic, host, extra.Controllers, recorder); err != nil {
		return nil, err
	}
	own := initializer.Dependencies{
		Informers: extra.MaintenanceInformers, Identity: extra.Identity, Recorder: recorder, NodeName: os.Getenv("NODE_NAME"),
	}
	if err := o.applyAdmission(ctx, generic, host, own); err != nil {
		return nil, err
	}
	return &apiserver.Config{GenericConfig: generic, ExtraConfig: *extra}, nil
}

// applyStorage applies --storage-media-type to every resource; the method of the library ignores
// the flag.
func (o CompletedOptions) applyStorage(generic *genericapiserver.RecommendedConfig) error {
	backend := o.Etcd.StorageConfig
	backend.StorageObjectCountTracker = generic.StorageObjectCountTracker
	factory := serverstorage.NewDefaultStorageFactory(
		backend, o.Etcd.DefaultStorageMediaType, apiserver.Codecs,
		serverstorage.NewDefaultResourceEncodingConfig(apiserver.Scheme), serverstorage.NewResourceConfig(), nil)
	if err := o.Etcd.ApplyWithStorageFactoryTo(factory, &generic.Config); err != nil {
		return err
	}
	generic.RESTOptionsGetter = ownStreams{generic.RESTOptionsGetter}
	return nil
}

func (o CompletedOptions) applyAuth(generic *genericapiserver.RecommendedConfig) error {
	if err := o.Authentication.ApplyTo(&generic.Authentication, generic.SecureServing, generic.OpenAPIConfig); err != nil {
		return fmt.Errorf("set up authentication by the host cluster: %w", err)
	}
	generic.Authentication.Authenticator = refuseAnonymous(generic.Authentication.Authenticator, o.Authorization.AlwaysAllowPaths)
	if err := o.Authorization.ApplyTo(&generic.Authorization); err != nil {
		return fmt.Errorf("set up authorization by the host cluster: %w", err)
	}
	return nil
}

// refuseAnonymous rejects anonymous requests to all but the given paths, regardless of the cluster
// roles of the host cluster.
func refuseAnonymous(next authenticator.Request, paths []string) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		resp, ok, err := next.AuthenticateRequest(req)
		if ok && resp.User.GetName() == user.Anonymous && !slices.Contains(paths, req.URL.Path) {
			// Do not return an error, which would be logged for each request: the aggregator's
			// probes are anonymous until the CA of the front proxy is loaded.
			return nil, false, nil
		}
		return resp, ok, err
	})
}

// loopbackConfig returns the configuration of a client of this server with its own identity.
func loopbackConfig(generic *genericapiserver.RecommendedConfig, userAgent string) *rest.Config {
	loopback := rest.CopyConfig(generic.LoopbackClientConfig)
	loopback.ContentType = runtime.ContentTypeProtobuf
	loopback.AcceptContentTypes = runtime.ContentTypeProtobuf
	// The server is its own client here: compression would only cost CPU.
	loopback.DisableCompression = true
	return rest.AddUserAgent(loopback, userAgent)
}

func (o CompletedOptions) extraConfig(generic *genericapiserver.RecommendedConfig, host *hostCluster, replica *replica) (*apiserver.ExtraConfig, events.EventRecorder, error) {
	loopback := loopbackConfig(generic, "haulout-controllers")
	own, err := clientset.NewForConfig(loopback)
	if err != nil {
		return nil, nil, err
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: host.client.EventsV1()})
	recorder := broadcaster.NewRecorder(eventScheme(), "haulout")
	if err := generic.AddPostStartHook("start-event-recorder", func(hook genericapiserver.PostStartHookContext) error {
		if err := broadcaster.StartRecordingToSinkWithContext(hook); err != nil {
			return err
		}
		context.AfterFunc(hook, broadcaster.Shutdown)
		return nil
	}); err != nil {
		return nil, nil, err
	}
	maintenances := informers.NewSharedInformerFactoryWithOptions(own, resync, informers.WithTransform(podcache.Strip))
	nodes, err := slimNodes(generic.SharedInformerFactory)
	if err != nil {
		return nil, nil, err
	}
	hasNodes, nodeLister := nodes.Informer().HasSynced, nodes.Lister()
	// A preview may read hundreds of volumes and Jobs.
	limited := rest.CopyConfig(host.config)
	limited.QPS, limited.Burst, limited.RateLimiter = previewQPS, previewBurst, nil
	previews, err := kubernetes.NewForConfig(limited)
	if err != nil {
		return nil, nil, err
	}
	caches := &previewCaches{}
	extra := &apiserver.ExtraConfig{
		Identity:             &identity.Server{},
		MaintenanceInformers: maintenances,
		NewestNode: func() (*metav1.Time, bool) {
			all, err := nodeLister.List(labels.Everything())
			return nodeselector.Newest(all), hasNodes() && err == nil
		},
		Previewer: previewer.New(previewer.Config{
			Host: previews, Nodes: previewer.CachedNodes(nodes), Caches: caches.synced.Load, Stopping: generic.ShutdownInitiatedNotify(),
			Authorizer: generic.Authorization.Authorizer, Evacuators: o.Evacuators.BuiltIn,
			UnprotectedAllAtOnce: o.Controllers.Evictions.UnprotectedMaxUnavailable >= 100,
			Rules:                o.NodeRights.Rules, Clock: clock.RealClock{},
			Maintenances: previewer.NotDone(maintenances.Maintenance().V1alpha1().NodeMaintenances()),
		}),
		EvacuatorStartDeadline: o.Controllers.EvacuatorStartDeadline,
	}
	if !o.Controllers.Enabled {
		return extra, recorder, generic.AddPostStartHook("fill-caches-for-previews", func(hook genericapiserver.PostStartHookContext) error {
			go caches.fill(hook, host.client, 0)
			return nil
		})
	}
	extra.Controllers, err = o.controllers(host, replica, loopback, own, recorder, generic.Authorization.Authorizer, caches)
	if err != nil {
		return nil, nil, err
	}
	// A replica that begins to lead at its start, or after a leader that was killed, reads the pods
	// only once: it gets the Lease within this time, with retries that are up to 2.2 periods apart.
	le := o.Controllers.LeaderElection
	delay := min(le.LeaseDuration.Duration+3*le.RetryPeriod.Duration, maxFillDelay)
	extra.Controllers.StandBy = func(ctx context.Context) { caches.fill(ctx, host.client, delay) }
	return extra, recorder, nil
}

// slimNodes returns the informer of nodes in a factory. Every replica has it, so it omits the
// images of the nodes.
func slimNodes(factory hostinformers.SharedInformerFactory) (coreinformers.NodeInformer, error) {
	nodes := factory.Core().V1().Nodes()
	return nodes, nodes.Informer().SetTransform(podcache.StripImages)
}

// controllers returns the configuration of the controllers, which run while this replica leads.
func (o CompletedOptions) controllers(cluster *hostCluster, r *replica, loopback *rest.Config, own clientset.Interface, recorder events.EventRecorder,
	auth authorizer.Authorizer, caches *previewCaches) (*apiserver.Controllers, error) {
	registered, err := cluster.registeredService()
	if err != nil {
		return nil, err
	}
	alive := loop.NewTracker(clock.RealClock{})
	deps := controllerDependencies{
		newClients: func(ctx context.Context, mayAct func(grace time.Duration) error) (host.Clients, error) {
			return cluster.leaderClients(ctx, loopback, apiserver.CallGrace, mayAct)
		},
		recorder: recorder, authorizer: auth, liveness: alive, options: o.Controllers, evacuators: o.Evacuators,
		ownPod: ownPod(), storageID: r.storage.id, nodeRights: o.NodeRights.Rules,
		rawEvictionTTL: o.EvictionReviews.RawEvictionTTL, caches: caches,
	}
	le := o.Controllers.LeaderElection
	identified := &apiserver.Storage{
		ID: r.storage.id, Revision: r.storage.revision, Embedded: o.Embedded,
		Adopt: o.Controllers.AdoptStorage, AcceptRestored: o.Controllers.AcceptRestoredState,
		Forget: func(ctx context.Context) error {
			return own.MaintenanceV1alpha1().NodeTasks().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		},
	}
	if !o.Embedded {
		identified.Mark, identified.SetMark = r.storage.mark, r.storage.setMark
	}
	return &apiserver.Controllers{
		Leases: r.leases,
		Election: apiserver.LeaderElection{
			Enabled: le.LeaderElect, Namespace: o.Service.Namespace, Name: le.ResourceName, Identity: r.identity,
			LeaseDuration: le.LeaseDuration.Duration, RenewDeadline: le.RenewDeadline.Duration, RetryPeriod: le.RetryPeriod.Duration,
		},
		Storage:    identified,
		Service:    types.NamespacedName{Namespace: o.Service.Namespace, Name: o.Service.Name},
		Registered: registered,
		Recorder:   recorder,
		Run:        deps.run,
		Exit:       exit,
		Liveness:   alive.Check,
	}, nil
}

// exit exits the process immediately. No stored object is lost: the embedded etcd has synced all
// acknowledged writes.
func exit(reason error) {
	klog.Background().Error(reason, "The process exits, so that it cannot act at the same time as another replica")
	klog.FlushAndExit(klog.ExitFlushTimeout, 1)
}

// eventScheme has the kinds that events refer to: kinds of the host cluster and of Haulout.
func eventScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

func (o CompletedOptions) applyAdmission(ctx context.Context, generic *genericapiserver.RecommendedConfig, host *hostCluster,
	own initializer.Dependencies) error {
	if err := host.switchOffMissingPolicies(ctx, o.Admission); err != nil {
		return err
	}
	dynamicClient, err := dynamic.NewForConfig(host.config)
	if err != nil {
		return err
	}
	return o.Admission.ApplyTo(&generic.Config, policyInformers{generic.SharedInformerFactory}, host.client, dynamicClient,
		utilfeature.DefaultFeatureGate, generic.EffectiveVersion, admission.PluginInitializer(own))
}

// policyInformers are the informers that admission plugins share with the server.
type policyInformers struct {
	hostinformers.SharedInformerFactory
}

// ForResource returns the informer of a kind that the server reads anyway. The library reads other
// kinds of parameters of admission policies with informers of its own: the server may lack the
// right to read them, and a shared informer that cannot be filled keeps the server unready, even
// after the policy is deleted.
func (i policyInformers) ForResource(resource schema.GroupVersionResource) (hostinformers.GenericInformer, error) {
	switch resource {
	case corev1.SchemeGroupVersion.WithResource("nodes"), corev1.SchemeGroupVersion.WithResource("namespaces"):
		return i.SharedInformerFactory.ForResource(resource)
	}
	return nil, fmt.Errorf("the server shares no informer of %s", resource)
}

// ownPod returns the pod of this server from environment variables that the shipped Deployment
// sets.
func ownPod() types.NamespacedName {
	return types.NamespacedName{Namespace: os.Getenv("POD_NAMESPACE"), Name: os.Getenv("POD_NAME")}
}
