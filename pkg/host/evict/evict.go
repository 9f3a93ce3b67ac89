// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package evict posts evictions to the host cluster.
package evict

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

// Client evicts and deletes pods of the host cluster.
type Client struct {
	// Host is the client of the host cluster. It should have no rate limit if the caller limits its
	// requests itself.
	Host kubernetes.Interface
}

// Evict posts an eviction once and never retries. Every response except success is an error. With
// dryRun in the delete options, budgets, webhooks and policies are checked but the pod is not
// evicted.
//
// Evict does not use the typed client for two reasons. The typed client sleeps and retries up to
// ten times on every response with a Retry-After header, so that one stale budget would block a
// worker for minutes. And it does not read the body of a 201 response, in which the API server
// reports the failure for a pod that several budgets select.
func (c Client) Evict(ctx context.Context, eviction *policyv1.Eviction) error {
	// Webhooks read the dry run from the options of the request, and not from its body.
	options := metav1.CreateOptions{}
	if eviction.DeleteOptions != nil {
		options.DryRun = eviction.DeleteOptions.DryRun
	}
	_, err := c.Host.CoreV1().RESTClient().Post().
		Namespace(eviction.Namespace).
		Resource("pods").
		Name(eviction.Name).
		SubResource("eviction").
		VersionedParams(&options, scheme.ParameterCodec).
		MaxRetries(0).
		Body(eviction).
		Do(ctx).
		Get()
	return err
}

// Finish deletes a pod whose eviction the budget has already granted.
func (c Client) Finish(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
	return c.Host.CoreV1().Pods(namespace).Delete(ctx, name, options)
}

// Pod reads a pod from the API, not from a cache.
func (c Client) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return c.Host.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}
