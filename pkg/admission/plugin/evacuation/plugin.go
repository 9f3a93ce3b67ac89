// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package evacuation is the admission plugin for Evacuations: it reads the pod from the host
// cluster, determines its evacuators, and checks whether the user is allowed to evacuate it.
package evacuation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	genericinitializer "k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"haulout.dev/haulout/pkg/admission/initializer"
	"haulout.dev/haulout/pkg/admission/noderights"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancevalidation "haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/host/owners"
	"haulout.dev/haulout/pkg/identity"
)

// PluginName is the name of the plugin in the list of enabled plugins.
const PluginName = "Evacuation"

// Plugin admits Evacuations.
type Plugin struct {
	*admission.Handler

	// enabled has the enabled built-in evacuators, and builtIn finds those of a pod. With a
	// disabled evacuator, an Evacuation would make no progress until the deadline.
	enabled    sets.Set[string]
	builtIn    owners.BuiltIn
	client     kubernetes.Interface
	authorizer authorizer.UnconditionalAuthorizer
	identity   *identity.Server
	recorder   events.EventRecorder
	// stored has the keys of all Evacuations; the plugin counts them.
	stored cache.Indexer
	// podCounts caches the number of pods of namespaces.
	podCounts *utilcache.LRUExpireCache
}

var (
	_ admission.MutationInterface                     = &Plugin{}
	_ admission.ValidationInterface                   = &Plugin{}
	_ genericinitializer.WantsExternalKubeClientSet   = &Plugin{}
	_ genericinitializer.WantsUnconditionalAuthorizer = &Plugin{}
	_ initializer.WantsDependencies                   = &Plugin{}
)

// Register adds the plugin to the admission plugins that can be enabled. builtIn is called when the
// plugin is created, after flag parsing, and returns the classes of the enabled built-in
// evacuators; nil means none.
func Register(plugins *admission.Plugins, builtIn func() []string) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		var classes []string
		if builtIn != nil {
			classes = builtIn()
		}
		return New(classes...)
	})
}

// New returns the plugin with the enabled built-in evacuators.
func New(builtIn ...string) (*Plugin, error) {
	for _, class := range builtIn {
		if !slices.Contains(protocol.BuiltInClasses, class) {
			return nil, fmt.Errorf("%q is not a built-in evacuator: the built-in evacuators are %q", class, protocol.BuiltInClasses)
		}
	}
	return &Plugin{
		Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete),
		enabled: sets.New(builtIn...),

		podCounts: utilcache.NewLRUExpireCache(podCountsAtMost),
	}, nil
}

// SetExternalKubeClientSet sets the client of the host cluster.
func (p *Plugin) SetExternalKubeClientSet(client kubernetes.Interface) {
	p.client, p.builtIn = client, owners.NewBuiltIn(client, p.enabled)
}

// SetUnconditionalAuthorizer sets the authorizer.
func (p *Plugin) SetUnconditionalAuthorizer(authz authorizer.UnconditionalAuthorizer) {
	p.authorizer = authz
}

// SetDependencies sets the identity of the server, the recorder for events on pods, and the cache
// of Evacuations.
func (p *Plugin) SetDependencies(d initializer.Dependencies) {
	p.identity, p.recorder = d.Identity, d.Recorder
	p.countIn(d.Informers)
}

// ValidateInitialization returns an error that names the missing dependencies.
func (p *Plugin) ValidateInitialization() error {
	var missing []error
	for what, isMissing := range map[string]bool{
		"client of the host cluster": p.client == nil,
		"authorizer":                 p.authorizer == nil,
		"server identity":            p.identity == nil,
		"event recorder":             p.recorder == nil,
		"cache of Evacuations":       p.stored == nil,
	} {
		if isMissing {
			missing = append(missing, fmt.Errorf("%s needs a %s", PluginName, what))
		}
	}
	return errors.Join(missing...)
}

// Admit completes a new Evacuation from its pod. It runs twice on the same object if a webhook
// changes the object after the first run.
func (p *Plugin) Admit(ctx context.Context, attrs admission.Attributes, _ admission.ObjectInterfaces) error {
	if attrs.GetResource().GroupResource() != resource || attrs.GetSubresource() != "" || attrs.GetOperation() != admission.Create {
		return nil
	}
	evacuation, ok := attrs.GetObject().(*maintenance.Evacuation)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("object to admit is not an Evacuation but %T", attrs.GetObject()))
	}
	podRef := evacuation.Spec.PodRef
	if len(validation.IsDNS1123Subdomain(podRef.Name)) > 0 || podRef.UID == "" {
		// A pod with this reference cannot exist. Validation reports the invalid reference.
		return nil
	}
	// Check this before reading the pod: the errors below reveal whether the pod exists, and its
	// UID.
	if err := p.mayDeletePod(ctx, attrs, podRef.Name); err != nil {
		return err
	}
	pod, err := p.getReferredPod(ctx, attrs.GetNamespace(), evacuation)
	if err != nil {
		return err
	}
	if err := ownLabels(evacuation, copyLabels(ctx, evacuation, pod)); err != nil {
		return apierrors.NewInternalError(err)
	}
	evacuation.Spec.NodeName = pod.Spec.NodeName
	if err := p.resolveEvacuators(ctx, attrs, evacuation, pod); err != nil {
		return err
	}
	p.reportResponders(ctx, attrs, pod)
	return nil
}

func (p *Plugin) getReferredPod(ctx context.Context, namespace string, evacuation *maintenance.Evacuation) (*corev1.Pod, error) {
	podRef, path := evacuation.Spec.PodRef, field.NewPath("spec", "podRef")
	pod, err := p.client.CoreV1().Pods(namespace).Get(ctx, podRef.Name, metav1.GetOptions{})
	var invalid *field.Error
	switch {
	case apierrors.IsNotFound(err):
		invalid = field.NotFound(path.Child("name"), podRef.Name)
		invalid.Detail = fmt.Sprintf("pod not found in namespace %s", namespace)
	case err != nil:
		return nil, apierrors.NewInternalError(fmt.Errorf("get pod %s/%s from the host cluster: %w", namespace, podRef.Name, err))
	case pod.UID != podRef.UID:
		invalid = field.Invalid(path.Child("uid"), podRef.UID,
			fmt.Sprintf("pod %s has a different UID: %s", podRef.Name, pod.UID))
	default:
		return pod, nil
	}
	name := evacuation.Name
	if name == "" {
		name = protocol.CanonicalName(podRef.Name, podRef.UID)
	}
	return nil, apierrors.NewInvalid(maintenance.Kind("Evacuation"), name, field.ErrorList{invalid})
}

// Validate checks whether the user is allowed to make the request. It refuses the deletion of an
// Evacuation that can no longer be cancelled.
func (p *Plugin) Validate(ctx context.Context, attrs admission.Attributes, _ admission.ObjectInterfaces) error {
	if attrs.GetResource().GroupResource() != resource {
		return nil
	}
	evacuation, old, err := noderights.ObjectsOf[maintenance.Evacuation](attrs)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	switch {
	case attrs.GetSubresource() == "status":
		return p.mayProgress(ctx, attrs, old)
	case attrs.GetSubresource() != "":
		return nil
	case attrs.GetOperation() == admission.Create:
		if err := p.mayDeletePod(ctx, attrs, evacuation.Spec.PodRef.Name); err != nil {
			return err
		}
		if err := p.mayUseInstigators(ctx, attrs, evacuation.Finalizers, nil); err != nil {
			return err
		}
		return p.validateCount(ctx, attrs, evacuation)
	case attrs.GetOperation() == admission.Update:
		// The garbage collector deletes an object whose owner does not exist, so setting an owner
		// can delete the object.
		if !equality.Semantic.DeepEqual(evacuation.OwnerReferences, old.OwnerReferences) {
			if err := p.mayDeletePod(ctx, attrs, old.Spec.PodRef.Name); err != nil {
				return err
			}
			if err := p.mayEndRequests(ctx, attrs, slices.Concat(evacuation.Finalizers, old.Finalizers)); err != nil {
				return err
			}
		}
		return p.mayUseInstigators(ctx, attrs, evacuation.Finalizers, old.Finalizers)
	default:
		if err := p.mayDeletePod(ctx, attrs, old.Spec.PodRef.Name); err != nil {
			return err
		}
		if err := p.mayEndRequests(ctx, attrs, old.Finalizers); err != nil {
			return err
		}
		return p.mayBeCalledOff(ctx, old)
	}
}

// mayBeCalledOff refuses the deletion of an Evacuation while the evacuator forbids the cancellation
// and the pod has not left.
func (p *Plugin) mayBeCalledOff(ctx context.Context, evacuation *maintenance.Evacuation) error {
	if evacuation.Status.EvacuationCancellationPolicy != maintenance.EvacuationCancellationPolicyForbid || maintenancevalidation.IsEvacuationComplete(evacuation) {
		return nil
	}
	podRef := evacuation.Spec.PodRef
	pod, err := p.client.CoreV1().Pods(evacuation.Namespace).Get(ctx, podRef.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && pod.UID != podRef.UID {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("get pod %s/%s from the host cluster: %w", evacuation.Namespace, podRef.Name, err))
	}
	return apierrors.NewConflict(resource, evacuation.Name,
		fmt.Errorf("evacuator %s does not allow a cancellation now (evacuationCancellationPolicy is Forbid); the Evacuation can be deleted once pod %s is gone",
			evacuation.Status.ActiveEvacuatorClass, podRef.Name))
}

// Reasons of the events of this plugin.
const (
	// EventEvacuatorIgnored: annotations of a pod about its evacuators are invalid and ignored. A
	// new Evacuation sends one event, which names the first three. About the pod.
	EventEvacuatorIgnored = "EvacuatorAnnotationIgnored"
	// EventRespondersNotAsked: the pod of a new Evacuation names eviction responders
	// (spec.evictionResponders, KEP-4563), which Haulout does not ask. About the pod.
	EventRespondersNotAsked = "EvictionRespondersNotAsked"
)

// actionResolve is the action in these events.
const actionResolve = "ResolveEvacuators"
