// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/evict"
)

// interception is the file of the webhook, seen from the folder in which the command runs.
const interception = "artifacts/eviction-interception/webhook.yaml"

const (
	webhookPairs   = 8
	blockEvictions = 500
)

// webhookCost measures Haulout's evictions without and with the webhook by turns, because single
// drains differ more than the webhook costs. The evictions are dry runs, one after another.
func (c *cluster) webhookCost(ctx context.Context, s settings) ([]pair, error) {
	if err := c.prepare(ctx, newWorkload(oneBudget, s)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, setupTime, fmt.Errorf("not measured within %v", setupTime))
	defer cancel()
	eviction, err := c.dryRun(ctx)
	if err != nil {
		return nil, err
	}
	eviction.Annotations = map[string]string{v1alpha1.AnnotationEvictNow: "bench"}
	if _, err := c.timeEvictions(ctx, eviction); err != nil { // The first block is only a warm-up.
		return nil, err
	}
	pairs := make([]pair, webhookPairs)
	for block := range 2 * webhookPairs {
		p := &pairs[block/2]
		result, end := &p.Without, func(context.Context) error { return nil }
		if (block/2+block)%2 == 1 { // The order alternates between pairs.
			result = &p.With
			if end, err = c.intercept(ctx); err != nil {
				return nil, err
			}
		}
		*result, err = c.timeEvictions(ctx, eviction)
		if err := errors.Join(err, end(ctx), until(ctx, c.evictionsAreFree)); err != nil {
			return nil, err
		}
	}
	return pairs, nil
}

// timeEvictions returns the seconds per eviction of a block.
func (c *cluster) timeEvictions(ctx context.Context, eviction *policyv1.Eviction) (float64, error) {
	begin := time.Now()
	for range blockEvictions {
		if err := (evict.Client{Host: c.kube}).Evict(ctx, eviction); err != nil {
			return 0, err
		}
	}
	return time.Since(begin).Seconds() / blockEvictions, nil
}

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

// dryRun returns a dry run of the eviction of a pod of the workload.
func (c *cluster) dryRun(ctx context.Context) (*policyv1.Eviction, error) {
	pods, err := c.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(pods.Items) == 0 {
		return nil, errors.New("there is no pod to evict")
	}
	return &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: namespace, Name: pods.Items[0].Name},
		DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	}, nil
}

// evictionsAreIntercepted evicts a pod of the workload in a dry run, as the administrator. It
// returns what is missing until the webhook answers that the pod would be evacuated, or "".
func (c *cluster) evictionsAreIntercepted(ctx context.Context) (string, error) {
	seen := &answers{}
	kube, err := c.administrator(seen)
	if err != nil {
		return "", err
	}
	eviction, err := c.dryRun(ctx)
	if err != nil {
		return "", err
	}
	// The budget may be closed. The webhook answers before it.
	if err := (evict.Client{Host: kube}).Evict(ctx, eviction); err != nil && !apierrors.IsTooManyRequests(err) {
		return "", err
	}
	if !strings.Contains(seen.last, "would not be evicted immediately") {
		return fmt.Sprintf("the webhook does not announce an evacuation; the last warning is %q", seen.last), nil
	}
	return "", nil
}

// evictionsAreFree is the opposite of evictionsAreIntercepted.
func (c *cluster) evictionsAreFree(ctx context.Context) (string, error) {
	missing, err := c.evictionsAreIntercepted(ctx)
	if err != nil || missing != "" {
		return "", err
	}
	return "the webhook still announces an evacuation", nil
}
