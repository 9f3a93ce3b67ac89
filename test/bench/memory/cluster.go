// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/test/bench/internal/crowd"
	"haulout.dev/haulout/test/bench/internal/usage"
)

const (
	// podsPerApp is the number of pods with the same controller.
	podsPerApp = 50
	// teams is the number of teams that own the controllers.
	teams = 40
	// drainLabel is true on the nodes to drain.
	drainLabel  = "memory.haulout.dev/drain"
	namespace   = "default"
	maintenance = "drain"
	// server is the name of haulout-apiserver in the cluster program.
	server = "haulout-apiserver"
)

// cluster is the development cluster of the measurement.
type cluster struct {
	dir, bin    string
	environment []string
	out         io.Writer
	config      *rest.Config
	kube        kubernetes.Interface
	haulout     clientset.Interface
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
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	c.kube, err = kubernetes.NewForConfig(config)
	return err
}

// fill creates the nodes and the pods.
func (c *cluster) fill(ctx context.Context, s settings) error {
	if err := crowd.Each(ctx, s.nodes, func(ctx context.Context, i int) error {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			corev1.LabelHostname:           nodeName(i),
			corev1.LabelTopologyZone:       fmt.Sprint("zone-", i%3),
			corev1.LabelInstanceTypeStable: "large",
			drainLabel:                     strconv.FormatBool(i < s.drain),
		}}}
		_, err := c.kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("create nodes: %w", err)
	}
	apps := (s.pods + podsPerApp - 1) / podsPerApp
	owners := make([]types.UID, apps)
	if err := crowd.Each(ctx, apps, func(ctx context.Context, i int) error {
		// The controller of the pods must exist, or the garbage collector would delete them, and
		// must not count them.
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: appName(i)}}
		owner, err := c.kube.CoreV1().ConfigMaps(namespace).Create(ctx, configMap, metav1.CreateOptions{})
		if err == nil {
			owners[i] = owner.UID
		}
		return err
	}); err != nil {
		return fmt.Errorf("create the controllers of the pods: %w", err)
	}
	if err := c.fillPods(ctx, s, owners); err != nil {
		return fmt.Errorf("create pods: %w", err)
	}
	return nil
}

// fillPods spreads the pods over the nodes.
func (c *cluster) fillPods(ctx context.Context, s settings, owners []types.UID) error {
	return crowd.Store(ctx, c.dir, s.pods, func(i int) *corev1.Pod {
		app := i / podsPerApp
		return crowd.NewPod(crowd.Name{Namespace: namespace, App: appName(app), Team: app % teams}, i, owners[app],
			nodeName(i%s.nodes))
	})
}

func nodeName(i int) string { return fmt.Sprintf("ip-10-%d-%d.example.internal", i/250, i%250) }

func appName(i int) string { return fmt.Sprintf("service-%d-7c9f6d5b8f", i) }

// know waits until the server has all pods in its cache, which has either all pods or none: the
// server counts the pods on the nodes to drain.
func (c *cluster) know(ctx context.Context, s settings) error {
	_, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Create(ctx, &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: maintenance},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: drainLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{"true"}},
				},
			}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return c.counted(ctx, s, func(n *v1alpha1.NodeMaintenanceNodeStatus) int { return int(n.PodsPendingEvacuation) })
}

// drain drains the nodes and waits until every pod on them has an Evacuation.
func (c *cluster) drain(ctx context.Context, s settings) error {
	_, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Patch(ctx, maintenance, types.MergePatchType,
		[]byte(`{"spec":{"stage":"Drain"}}`), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	return c.counted(ctx, s, func(n *v1alpha1.NodeMaintenanceNodeStatus) int { return int(n.PodsEvacuating) })
}

// counted waits until the sum of a counter over the nodes to drain is the number of their pods.
func (c *cluster) counted(ctx context.Context, s settings, count func(*v1alpha1.NodeMaintenanceNodeStatus) int) error {
	pods := 0
	for i := range s.pods {
		if i%s.nodes < s.drain {
			pods++
		}
	}
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

// cancel deletes the NodeMaintenance and waits until it is gone.
func (c *cluster) cancel(ctx context.Context) error {
	maintenances := c.haulout.MaintenanceV1alpha1().NodeMaintenances()
	if err := maintenances.Delete(ctx, maintenance, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return eventually(ctx, func(ctx context.Context) (bool, error) {
		list, err := maintenances.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + maintenance})
		return err == nil && len(list.Items) == 0, err
	})
}

// figures are the memory of the server, in bytes.
type figures struct {
	resident, peak, heap int64
}

// figures reads the memory of the server, from the kernel and from its metrics.
func (c *cluster) figures(ctx context.Context) (figures, error) {
	running, err := usage.Open(c.dir)
	if err != nil {
		return figures{}, err
	}
	memory, err := running.Processes[server].Memory()
	if err != nil {
		return figures{}, err
	}
	f := figures{resident: memory.Resident, peak: memory.Peak}
	f.heap, err = c.heap(ctx, running.Ports[server])
	return f, err
}

// heapMetric is the size of the Go heap of the server, including free space in it.
const heapMetric = "go_memstats_heap_inuse_bytes"

// heap reads the metric from the server and not through the aggregator, which only proxies the API.
func (c *cluster) heap(ctx context.Context, port int) (int64, error) {
	config := rest.CopyConfig(c.config)
	config.Host = fmt.Sprintf("https://127.0.0.1:%d", port)
	// The certificate is not from the cluster's CA; the program reads only figures from the server.
	config.TLSClientConfig.Insecure, config.TLSClientConfig.CAData, config.TLSClientConfig.CAFile = true, nil, ""
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	text, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == heapMetric {
			bytes, err := strconv.ParseFloat(value, 64)
			return int64(bytes), err
		}
	}
	return 0, fmt.Errorf("the server has no metric %s", heapMetric)
}
