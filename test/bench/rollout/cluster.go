// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/test/bench/internal/apps"
	"haulout.dev/haulout/test/bench/internal/devcluster"
	"haulout.dev/haulout/test/bench/internal/requests"
	"haulout.dev/haulout/test/bench/internal/usage"
	"haulout.dev/haulout/test/oracle"
)

const (
	namespace = "default"
	// mayBeMissing is maxUnavailable of the budgets.
	mayBeMissing = "10%"
	// setupTime is the timeout for the cluster to reach a state.
	setupTime = 10 * time.Minute
	// quiet is how long the cluster rests before a measurement.
	quiet = 5 * time.Second
)

// cluster is the development cluster of the trips and the writes.
type cluster struct {
	*devcluster.Cluster
	config  *rest.Config
	kube    kubernetes.Interface
	haulout clientset.Interface
	nodes   []string
}

// startCluster starts a cluster. After an error, the caller has to stop a cluster that is not nil.
func startCluster(ctx context.Context, s settings) (*cluster, error) {
	running, err := devcluster.StartAudited(ctx, s.bin, s.nodes, s.gogc, requests.WritePolicy())
	if running == nil {
		return nil, err
	}
	c := &cluster{Cluster: running}
	if err != nil {
		return c, err
	}
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return c, err
	}
	c.config.QPS = -1
	binary := rest.CopyConfig(c.config)
	// The client also accepts JSON, because the version endpoint serves only JSON.
	binary.ContentType, binary.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	if c.kube, err = kubernetes.NewForConfig(binary); err != nil {
		return c, err
	}
	if c.haulout, err = clientset.NewForConfig(binary); err != nil {
		return c, err
	}
	list, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return c, err
	}
	for i := range list.Items {
		c.nodes = append(c.nodes, list.Items[i].Name)
	}
	slices.Sort(c.nodes)
	return c, nil
}

// prepare restores the state before a contender: no rollout, and a new workload on all nodes.
func (c *cluster) prepare(ctx context.Context, s settings) error {
	if err := c.removeRollouts(ctx); err != nil {
		return fmt.Errorf("remove the rollouts: %w", err)
	}
	if err := c.removeWorkload(ctx); err != nil {
		return fmt.Errorf("remove the workload: %w", err)
	}
	if err := c.startWorkload(ctx, s); err != nil {
		return fmt.Errorf("start the workload: %w", err)
	}
	return usage.Pause(ctx, quiet)
}

func (c *cluster) removeRollouts(ctx context.Context) error {
	background := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	api := c.haulout.MaintenanceV1alpha1()
	if err := api.NodeMaintenanceRollouts().DeleteCollection(ctx, background, metav1.ListOptions{}); err != nil {
		return err
	}
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		rollouts, err := api.NodeMaintenanceRollouts().List(ctx, metav1.ListOptions{})
		if err != nil || len(rollouts.Items) > 0 {
			return false, err
		}
		// The garbage collector deletes the maintenances of the rollouts.
		left, err := api.NodeMaintenances().List(ctx, metav1.ListOptions{})
		return err == nil && len(left.Items) == 0, err
	})
}

func (c *cluster) removeWorkload(ctx context.Context) error {
	background, all := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}, metav1.ListOptions{}
	if err := errors.Join(
		c.kube.AppsV1().Deployments(namespace).DeleteCollection(ctx, background, all),
		c.kube.PolicyV1().PodDisruptionBudgets(namespace).DeleteCollection(ctx, background, all),
	); err != nil {
		return err
	}
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		pods, err := c.kube.CoreV1().Pods(namespace).List(ctx, all)
		return err == nil && len(pods.Items) == 0, err
	})
}

// startWorkload starts Deployments that decline surges, each with a budget, and waits until the
// budgets allow what they should.
func (c *cluster) startWorkload(ctx context.Context, s settings) error {
	for i := range s.deployments {
		name := fmt.Sprintf("app-%03d", i)
		d := apps.Deployment(name, s.pods/s.deployments)
		d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
		b := apps.Budget(name, policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromString(mayBeMissing))})
		_, errD := c.kube.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{})
		_, errB := c.kube.PolicyV1().PodDisruptionBudgets(namespace).Create(ctx, b, metav1.CreateOptions{})
		if err := errors.Join(errD, errB); err != nil {
			return err
		}
	}
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		pods, err := c.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		ready := 0
		for i := range pods.Items {
			if oracle.IsReady(&pods.Items[i]) {
				ready++
			}
		}
		budgets, err := c.kube.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		closed := slices.ContainsFunc(budgets.Items, func(b policyv1.PodDisruptionBudget) bool {
			return b.Status.ExpectedPods == 0 || b.Status.CurrentHealthy < b.Status.ExpectedPods
		})
		return ready == s.pods && !closed, nil
	})
}

func eventually(ctx context.Context, check func(context.Context) (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, setupTime, true, check)
	if wait.Interrupted(err) && ctx.Err() == nil {
		return fmt.Errorf("not done within %v", setupTime)
	}
	return err
}
