// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/test/bench/internal/crowd"
	"haulout.dev/haulout/test/bench/internal/devcluster"
)

const (
	namespace   = "default"
	maintenance = "drain"
	// serverUser is the user name of haulout-apiserver.
	serverUser = "system:serviceaccount:haulout-system:haulout-apiserver"
	// patience is the timeout of a step.
	patience = 15 * time.Minute
)

// auditPolicy makes kube-apiserver log every request of haulout-apiserver.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["` + serverUser + `"]
- level: None
`

// cluster is the development cluster of the measurement.
type cluster struct {
	*devcluster.Cluster
	out     io.Writer
	kube    kubernetes.Interface
	haulout clientset.Interface
}

// start starts the cluster with auditPolicy instead of its default audit policy.
func (c *cluster) start(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp("", "haulout-idle-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	policy := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	c.Cluster, err = devcluster.Start(ctx, s.bin, s.nodes, s.gogc, "APISERVER_FLAGS=--audit-policy-file="+policy)
	return err
}

func (c *cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS = -1
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	if c.haulout, err = clientset.NewForConfig(config); err != nil {
		return err
	}
	c.kube, err = kubernetes.NewForConfig(config)
	return err
}

// drain creates the pods and their budgets, drains all nodes, and waits until every pod is blocked.
func (c *cluster) drain(ctx context.Context, s settings) error {
	for _, step := range []struct {
		name string
		do   func(context.Context, settings) error
	}{
		{"pods created", c.makePods},
		{"closed budgets created", c.makeBudgets},
		{"all pods blocked", c.drainAll},
	} {
		started := time.Now()
		if err := step.do(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(c.out, "%s after %v\n", step.name, time.Since(started).Round(time.Second))
	}
	return nil
}

func (c *cluster) makePods(ctx context.Context, s settings) error {
	nodes, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	owners := make([]types.UID, s.budgets)
	err = crowd.Each(ctx, s.budgets, func(ctx context.Context, i int) error {
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: appName(i)}}
		owner, err := c.kube.CoreV1().ConfigMaps(namespace).Create(ctx, configMap, metav1.CreateOptions{})
		if err == nil {
			owners[i] = owner.UID
		}
		return err
	})
	if err != nil {
		return err
	}
	return crowd.Store(ctx, c.Dir, s.pods, func(i int) *corev1.Pod {
		app, node := i%s.budgets, nodes.Items[i%len(nodes.Items)].Name
		return crowd.NewPod(crowd.Name{Namespace: namespace, App: appName(app)}, i, owners[app], node)
	})
}

func appName(i int) string { return fmt.Sprintf("service-%d", i) }

// makeBudgets creates budgets that need all of their pods, and waits until the disruption
// controller has counted the pods.
func (c *cluster) makeBudgets(ctx context.Context, s settings) error {
	budgets := c.kube.PolicyV1().PodDisruptionBudgets(namespace)
	if err := crowd.Each(ctx, s.budgets, func(ctx context.Context, i int) error {
		_, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: appName(i)},
			Spec: policyv1.PodDisruptionBudgetSpec{
				// A number and not a percentage: for a percentage the disruption controller needs
				// the number of replicas from the controller of the pods, and a ConfigMap has none.
				MinAvailable: ptr.To(intstr.FromInt(s.pods)),
				Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{crowd.AppLabel: appName(i)}},
			},
		}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		list, err := budgets.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		healthy := 0
		for i := range list.Items {
			healthy += int(list.Items[i].Status.CurrentHealthy)
			if list.Items[i].Status.DisruptionsAllowed > 0 {
				return false, fmt.Errorf("budget %s allows %d disruptions",
					list.Items[i].Name, list.Items[i].Status.DisruptionsAllowed)
			}
		}
		return healthy == s.pods, nil
	})
}

func (c *cluster) drainAll(ctx context.Context, s settings) error {
	maintenances := c.haulout.MaintenanceV1alpha1().NodeMaintenances()
	if _, err := maintenances.Create(ctx, &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: maintenance},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageDrain,
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpExists},
				},
			}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		nm, err := maintenances.Get(ctx, maintenance, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		blocked := 0
		for i := range nm.Status.NodeStatuses {
			blocked += int(nm.Status.NodeStatuses[i].PodsBlocked)
		}
		return blocked == s.pods, nil
	})
}

func eventually(ctx context.Context, check func(context.Context) (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, time.Second, patience, true, check)
}
