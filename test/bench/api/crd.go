// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/openapi"
)

// crdGroup is the API group of the CustomResourceDefinitions.
const crdGroup = "crd.bench.haulout.dev"

// resource is a kind of Haulout that is compared with a CustomResourceDefinition of the same
// schema.
type resource struct {
	plural, kind string
	// model is its name in the OpenAPI.
	model      string
	namespaced bool
}

var nodeMaintenances = resource{
	plural: "nodemaintenances", kind: "NodeMaintenance", model: v1alpha1.NodeMaintenance{}.OpenAPIModelName(),
}

var crds = schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
}

// makeCRD creates a CustomResourceDefinition with the schema of the kind, and waits until
// kube-apiserver serves it.
func makeCRD(
	ctx context.Context, client dynamic.Interface, of resource,
) (dynamic.NamespaceableResourceInterface, error) {
	model, err := structural(openapi.GetOpenAPIDefinitions(reference), of.model)
	if err != nil {
		return nil, err
	}
	properties, ok := model["properties"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the model of %s has no properties", of.kind)
	}
	// The metadata of every object.
	properties["metadata"] = map[string]any{"type": "object"}
	scope := "Cluster"
	if of.namespaced {
		scope = "Namespaced"
	}
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": crds.GroupVersion().String(), "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": of.plural + "." + crdGroup},
		"spec": map[string]any{
			"group": crdGroup, "scope": scope,
			"names": map[string]any{"kind": of.kind, "plural": of.plural},
			"versions": []any{map[string]any{
				"name": v1alpha1.SchemeGroupVersion.Version, "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema":       map[string]any{"openAPIV3Schema": model},
			}},
		},
	}}
	if _, err := client.Resource(crds).Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	served := client.Resource(schema.GroupVersionResource{
		Group: crdGroup, Version: v1alpha1.SchemeGroupVersion.Version, Resource: of.plural,
	})
	isServed := func(ctx context.Context) (bool, error) {
		_, err := served.List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	}
	return served, wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, isServed)
}
