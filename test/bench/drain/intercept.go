// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"haulout.dev/haulout/pkg/host/evict"
)

// interception is the folder of the manifest, seen from the folder in which the command runs.
const interception = "artifacts/eviction-interception"

// intercept installs eviction interception, and waits until kube-apiserver calls the webhook. The
// returned function removes it.
func (c *cluster) intercept(ctx context.Context) (end func(context.Context) error, err error) {
	kubectl := func(ctx context.Context, verb string) error {
		_, err := c.Run(ctx, nil, c.Program("kubectl"), verb, "--kustomize="+interception)
		return err
	}
	if err := kubectl(ctx, "apply"); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, setupTime,
		fmt.Errorf("kube-apiserver did not call the webhook within %v", setupTime))
	defer cancel()
	if err := until(limited, c.evictionsAreIntercepted); err != nil {
		return nil, errors.Join(err, kubectl(context.WithoutCancel(ctx), "delete"))
	}
	return func(ctx context.Context) error { return kubectl(ctx, "delete") }, nil
}

// answers keeps the warning of the last response.
type answers struct{ last string }

// HandleWarningHeader implements rest.WarningHandler.
func (a *answers) HandleWarningHeader(_ int, _, text string) { a.last = text }

// evictionsAreIntercepted evicts a pod of the workload in a dry run, as the administrator. It
// returns what is missing until the webhook answers that the pod would be evacuated, or "".
func (c *cluster) evictionsAreIntercepted(ctx context.Context) (string, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return "", err
	}
	seen := &answers{}
	config.WarningHandler = seen
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil || len(pods.Items) == 0 {
		return "there is no pod to evict", err
	}
	err = evict.Client{Host: kube}.Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: namespace, Name: pods.Items[0].Name},
		DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	})
	// The budget may be closed. The webhook answers before it.
	if err != nil && !apierrors.IsTooManyRequests(err) {
		return "", err
	}
	if !strings.Contains(seen.last, "would not be evicted immediately") {
		return fmt.Sprintf("the webhook does not announce an evacuation; the last warning is %q", seen.last), nil
	}
	return "", nil
}
