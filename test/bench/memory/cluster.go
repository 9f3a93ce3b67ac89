// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/test/bench/internal/crowd"
	"haulout.dev/haulout/test/bench/internal/scrape"
	"haulout.dev/haulout/test/bench/internal/usage"
	"haulout.dev/haulout/test/internal/program"
)

const (
	// podsPerApp is the number of pods of a Deployment.
	podsPerApp = 50
	// teams is the number of teams that own the Deployments. Each team has a namespace.
	teams = 40
	// groupLabel has the group of a node.
	groupLabel = "memory.haulout.dev/group"
	// The groups of nodes: those that the parts cancelled and finished drain, and all others.
	groupCancelled, groupFinished, groupOther = "cancelled", "finished", "other"

	maintenance = "drain"
	// server is the name of haulout-apiserver in the cluster program.
	server = "haulout-apiserver"
	// patience is the timeout of a step.
	patience = 30 * time.Minute
)

// cluster is the development cluster of the measurement.
type cluster struct {
	settings
	dir      string
	out      io.Writer
	config   *rest.Config
	kube     kubernetes.Interface
	metadata metadata.Interface
	haulout  clientset.Interface
}

// manage runs bin/cluster.
func (c *cluster) manage(ctx context.Context, verb string, environment ...string) error {
	_, err := program.Program{
		Path: filepath.Join(c.bin, "cluster"),
		Environment: slices.Concat([]string{
			"CLUSTER_DIR=" + c.dir, "NODES=0",
			// The nodes have no heartbeats, and the pods are not to be replaced.
			"CONTROLLER_MANAGER_FLAGS=--controllers=*,-node-lifecycle-controller,-taint-eviction-controller,-node-ipam-controller," +
				"-deployment-controller,-replicaset-controller",
		}, environment),
	}.Run(ctx, verb)
	return err
}

// restart starts the server in a new process, with more flags.
func (c *cluster) restart(ctx context.Context, flags string) error {
	if err := c.manage(ctx, "up", "HAULOUT=false"); err != nil {
		return err
	}
	return c.manage(ctx, "up", "HAULOUT=true", fmt.Sprintf("GOGC=%d", c.gogc), "GOMEMLIMIT="+c.memoryLimit, "HAULOUT_FLAGS="+flags)
}

func (c *cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "kubeconfig"))
	if err != nil {
		return err
	}
	config.QPS = -1
	c.config = rest.CopyConfig(config)
	if c.haulout, err = clientset.NewForConfig(config); err != nil {
		return err
	}
	if c.metadata, err = metadata.NewForConfig(config); err != nil {
		return err
	}
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	c.kube, err = kubernetes.NewForConfig(config)
	return err
}

// groupOf returns the group of a node.
func (c *cluster) groupOf(node int) string {
	switch {
	case node < c.settings.drain:
		return groupCancelled
	case node < 2*c.settings.drain:
		return groupFinished
	}
	return groupOther
}

// fill creates the nodes, the Deployments with their budgets, and the pods.
func (c *cluster) fill(ctx context.Context) error {
	if err := crowd.Each(ctx, c.nodes, func(ctx context.Context, i int) error {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			corev1.LabelHostname:           nodeName(i),
			corev1.LabelTopologyZone:       zoneOf(i),
			corev1.LabelInstanceTypeStable: "large",
			groupLabel:                     c.groupOf(i),
		}}}
		// No kubelet reports a status.
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour)),
		}}
		_, err := c.kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("create nodes: %w", err)
	}
	if err := crowd.Each(ctx, teams, func(ctx context.Context, i int) error {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceOf(i)}}
		_, err := c.kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("create namespaces: %w", err)
	}
	owners := make([]types.UID, (c.pods+podsPerApp-1)/podsPerApp)
	if err := crowd.Each(ctx, len(owners), func(ctx context.Context, i int) (err error) {
		owners[i], err = c.makeApp(ctx, i)
		return err
	}); err != nil {
		return fmt.Errorf("create the Deployments of the pods: %w", err)
	}
	if err := crowd.Store(ctx, c.dir, c.pods, func(i int) *corev1.Pod {
		app := i / podsPerApp
		pod := crowd.NewPod(crowd.Name{Namespace: namespaceOf(app), App: appName(app), Team: app % teams}, i, owners[app], nodeName(i%c.nodes))
		pod.OwnerReferences[0].APIVersion, pod.OwnerReferences[0].Kind = "apps/v1", "ReplicaSet"
		// kube-apiserver would give the pod this label when it is bound.
		pod.Labels[corev1.LabelTopologyZone] = zoneOf(i % c.nodes)
		return pod
	}); err != nil {
		return fmt.Errorf("create pods: %w", err)
	}
	return c.awaitBudgets(ctx, len(owners))
}

// makeApp creates a Deployment, its ReplicaSet and its budget, and returns the UID of the
// ReplicaSet. The controllers of Deployments and ReplicaSets do not run: the Deployment has opted
// out of surges, for which its evacuator would wait, and its budget allows every eviction, since no
// pod is replaced.
func (c *cluster) makeApp(ctx context.Context, app int) (types.UID, error) {
	namespace, labels := namespaceOf(app), map[string]string{crowd.AppLabel: appName(app)}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "none"}}},
	}
	deployment, err := c.kube.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: appName(app), Annotations: map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}},
		Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](podsPerApp), Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	sets := c.kube.AppsV1().ReplicaSets(namespace)
	set, err := sets.Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: appName(app), Labels: labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](podsPerApp), Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	set.Status.Replicas = podsPerApp
	if _, err := sets.UpdateStatus(ctx, set, metav1.UpdateOptions{}); err != nil {
		return "", err
	}
	_, err = c.kube.PolicyV1().PodDisruptionBudgets(namespace).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: appName(app)},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selector, MaxUnavailable: ptr.To(intstr.FromString("100%"))},
	}, metav1.CreateOptions{})
	return set.UID, err
}

// awaitBudgets waits until the disruption controller has counted the pods of all budgets.
func (c *cluster) awaitBudgets(ctx context.Context, count int) error {
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		list, err := c.kube.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		healthy := 0
		for i := range list.Items {
			healthy += int(list.Items[i].Status.DisruptionsAllowed)
		}
		return len(list.Items) == count && healthy == c.pods, nil
	})
}

func nodeName(i int) string { return fmt.Sprintf("ip-10-%d-%d.example.internal", i/250, i%250) }

func zoneOf(node int) string { return fmt.Sprint("zone-", node%3) }

func appName(i int) string { return fmt.Sprintf("service-%d-7c9f6d5b8f", i) }

func namespaceOf(app int) string { return fmt.Sprint("team-", app%teams) }

// podsOn returns the number of pods that the groups of nodes had at the start.
func (c *cluster) podsOn(groups ...string) int {
	pods := 0
	for i := range c.pods {
		if slices.Contains(groups, c.groupOf(i%c.nodes)) {
			pods++
		}
	}
	return pods
}

// know creates a maintenance for groups of nodes and waits until the server has counted their pods:
// its cache then has all pods.
func (c *cluster) know(ctx context.Context, groups ...string) error {
	if err := c.create(ctx, v1alpha1.NodeMaintenanceStageIdle, groups...); err != nil {
		return err
	}
	return c.counted(ctx, c.podsOn(groups...), func(n *v1alpha1.NodeMaintenanceNodeStatus) int { return int(n.PodsPendingEvacuation) })
}

func (c *cluster) create(ctx context.Context, stage v1alpha1.NodeMaintenanceStage, groups ...string) error {
	_, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Create(ctx, &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: maintenance},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: stage,
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: groupLabel, Operator: corev1.NodeSelectorOpIn, Values: groups},
				},
			}}},
		},
	}, metav1.CreateOptions{})
	return err
}

// setStage sets the stage of the maintenance.
func (c *cluster) setStage(ctx context.Context, stage v1alpha1.NodeMaintenanceStage) error {
	_, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Patch(ctx, maintenance, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"stage":%q}}`, stage), metav1.PatchOptions{})
	return err
}

// counted waits until the sum of a counter over the nodes of the maintenance is the number of pods.
func (c *cluster) counted(ctx context.Context, pods int, count func(*v1alpha1.NodeMaintenanceNodeStatus) int) error {
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		nm, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, maintenance, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		sum := 0
		for i := range nm.Status.NodeStatuses {
			sum += count(&nm.Status.NodeStatuses[i])
		}
		return sum == pods, nil
	})
}

// cancel deletes the NodeMaintenance, if there is one, and waits until it is gone.
func (c *cluster) cancel(ctx context.Context) error {
	maintenances := c.haulout.MaintenanceV1alpha1().NodeMaintenances()
	if err := maintenances.Delete(ctx, maintenance, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		list, err := maintenances.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + maintenance})
		return err == nil && len(list.Items) == 0, err
	})
}

func eventually(ctx context.Context, check func(context.Context) (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, time.Second, patience, true, check)
}

// process returns the process of the server.
func (c *cluster) process() (usage.Process, error) {
	running, err := usage.Open(c.dir)
	return running.Processes[server], err
}

// heap returns the size of the Go heap of the server in bytes, including free space in it.
func (c *cluster) heap(ctx context.Context) (int64, error) {
	scraper, err := scrape.New(c.config, c.dir)
	if err != nil {
		return 0, err
	}
	heap, err := scraper.Value(ctx, "go_memstats_heap_inuse_bytes")
	return int64(heap), err
}
