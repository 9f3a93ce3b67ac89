// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package haulout prepares the cluster for haulout-apiserver, and waits until it serves its API.
package haulout

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"haulout.dev/haulout/test/cluster/internal/clients"
)

// Names in the manifests and in the server.
const (
	Namespace      = "haulout-system"
	ServiceAccount = "haulout-apiserver"
	Service        = "haulout-apiserver"
	APIService     = "v1alpha1.maintenance.haulout.dev"
)

const fieldManager = "haulout-cluster"

var (
	apiServiceKind = schema.GroupKind{Group: "apiregistration.k8s.io", Kind: "APIService"}
	serviceKind    = schema.GroupKind{Kind: "Service"}
	namespaceKind  = schema.GroupKind{Kind: "Namespace"}

	apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	services    = schema.GroupVersionResource{Version: "v1", Resource: "services"}
)

// Manifests are the objects of a kustomization, split into the steps in which they are applied.
type Manifests struct {
	// Prepare contains the objects that the server needs to start: namespace, service account,
	// roles.
	Prepare []*unstructured.Unstructured
	// Register contains the objects that add the API of the server to the cluster.
	Register []*unstructured.Unstructured
}

// Load builds the kustomization in a folder. The APIService in the result has the given port.
func Load(folder string, port int) (Manifests, error) {
	options := krusty.MakeDefaultOptions()
	built, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return Manifests{}, fmt.Errorf("kustomization in %s: %w", folder, err)
	}
	var manifests Manifests
	for _, resource := range built.Resources() {
		content, err := resource.Map()
		if err != nil {
			return Manifests{}, err
		}
		object := &unstructured.Unstructured{Object: content}
		switch object.GroupVersionKind().GroupKind() {
		case apiServiceKind:
			if err := unstructured.SetNestedField(object.Object, int64(port), "spec", "service", "port"); err != nil {
				return Manifests{}, err
			}
			manifests.Register = append(manifests.Register, object)
		case serviceKind:
			manifests.Register = append(manifests.Register, object)
		default:
			manifests.Prepare = append(manifests.Prepare, object)
		}
	}
	return manifests, nil
}

// Apply applies objects in parallel, namespaces before all others. It does not change fields that
// the manifests omit, such as the APIService's caBundle, which the server writes.
func Apply(ctx context.Context, c *clients.Clients, objects []*unstructured.Unstructured) error {
	resources, err := restmapper.GetAPIGroupResources(c.Kubernetes.Discovery())
	if err != nil {
		return err
	}
	mapper := restmapper.NewDiscoveryRESTMapper(resources)
	var rest []*unstructured.Unstructured
	for _, object := range objects {
		if object.GroupVersionKind().GroupKind() != namespaceKind {
			rest = append(rest, object)
			continue
		}
		if err := applyOne(ctx, c.Dynamic, mapper, object); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, object := range rest {
		group.Go(func() error { return applyOne(ctx, c.Dynamic, mapper, object) })
	}
	return group.Wait()
}

func applyOne(
	ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, object *unstructured.Unstructured,
) error {
	kind := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", kind.Kind, object.GetName(), err)
	}
	var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	if _, err := resource.Apply(ctx, object.GetName(), object, options); err != nil {
		return fmt.Errorf("apply %s %s: %w", kind.Kind, object.GetName(), err)
	}
	return nil
}

// UseEndpoints changes the Service among the objects: it removes the external name, and adds
// endpoints with a port.
func UseEndpoints(objects []*unstructured.Unstructured, port int) error {
	for _, object := range objects {
		if object.GroupVersionKind().GroupKind() != serviceKind {
			continue
		}
		ports := []any{map[string]any{"name": "https", "port": int64(port), "protocol": "TCP"}}
		if err := unstructured.SetNestedField(object.Object, map[string]any{"ports": ports}, "spec"); err != nil {
			return err
		}
	}
	return nil
}

// Unregister removes the API from the cluster, if this program has registered it. An APIService
// without a server would block every deletion of a namespace, because the namespace controller
// could not list the objects of the API.
func Unregister(ctx context.Context, c *clients.Clients) error {
	registered, err := c.Dynamic.Resource(apiServices).Get(ctx, APIService, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	isOurs := func(f metav1.ManagedFieldsEntry) bool { return f.Manager == fieldManager }
	if !slices.ContainsFunc(registered.GetManagedFields(), isOurs) {
		return nil // a server that runs as a pod
	}
	err = c.Dynamic.Resource(apiServices).Delete(ctx, APIService, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	err = c.Dynamic.Resource(services).Namespace(Namespace).Delete(ctx, Service, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}
