// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/host/evict"
)

// interception is the file of the webhook, seen from the folder in which the command runs.
const interception = "artifacts/eviction-interception/webhook.yaml"

// intercept installs eviction interception, and waits until kube-apiserver calls the webhook. The
// returned function removes it.
func (c *cluster) intercept(ctx context.Context) (end func(context.Context) error, err error) {
	content, err := os.ReadFile(interception)
	if err != nil {
		return nil, err
	}
	webhook := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := yaml.UnmarshalStrict(content, webhook); err != nil {
		return nil, fmt.Errorf("%s: %w", interception, err)
	}
	kube, err := c.administrator(nil)
	if err != nil {
		return nil, err
	}
	// By client-go: kubectl would have kube-apiserver compute its OpenAPI documents in the drain.
	webhooks := kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := webhooks.Create(ctx, webhook, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	end = func(ctx context.Context) error { return webhooks.Delete(ctx, webhook.Name, metav1.DeleteOptions{}) }
	limited, cancel := context.WithTimeoutCause(ctx, setupTime,
		fmt.Errorf("kube-apiserver did not call the webhook within %v", setupTime))
	defer cancel()
	if err := until(limited, c.evictionsAreIntercepted); err != nil {
		return nil, errors.Join(err, end(context.WithoutCancel(ctx)))
	}
	return end, nil
}

// answers keeps the warning of the last response.
type answers struct{ last string }

// HandleWarningHeader implements rest.WarningHandler.
func (a *answers) HandleWarningHeader(_ int, _, text string) { a.last = text }

// administrator returns a client of kube-apiserver that passes warnings to warnings; nil is the
// default.
func (c *cluster) administrator(warnings rest.WarningHandler) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.WarningHandler = warnings
	return kubernetes.NewForConfig(config)
}

// evictionsAreIntercepted evicts a pod of the workload in a dry run, as the administrator. It
// returns what is missing until the webhook answers that the pod would be evacuated, or "".
func (c *cluster) evictionsAreIntercepted(ctx context.Context) (string, error) {
	seen := &answers{}
	kube, err := c.administrator(seen)
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
