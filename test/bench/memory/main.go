// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command memory measures how much memory haulout-apiserver uses for a large cluster: it creates
// nodes and pods of realistic size in a separate development cluster, starts the server, drains
// some of the nodes and cancels the drain. No kubelet runs, so evicted pods stay: the figures of
// the drain are the maximum for that number of pods.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/test/bench/internal/crowd"
	"haulout.dev/haulout/test/bench/internal/devcluster"
	"haulout.dev/haulout/test/bench/internal/scrape"
	"haulout.dev/haulout/test/bench/internal/usage"
	"haulout.dev/haulout/test/internal/program"
)

type settings struct {
	nodes, pods, drain int
	gogc               int
	bin, use, json     string
	keep, rollout      bool
	rest               time.Duration
}

func main() {
	// Logs of libraries would break up the table. The program receives all failures as errors.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	var s settings
	flag.IntVar(&s.nodes, "nodes", 5000, "number of nodes")
	flag.IntVar(&s.pods, "pods", 150000, "number of pods, spread evenly over the nodes")
	flag.IntVar(&s.drain, "drain", 250, "number of nodes to drain")
	flag.IntVar(&s.gogc, "gogc", 50, "GOGC of haulout-apiserver; 50 is what its Deployment sets")
	flag.StringVar(&s.bin, "bin", "bin", "folder of the programs")
	flag.StringVar(&s.use, "use", "",
		"folder of the cluster of an earlier run with --keep and the same numbers; its server is restarted")
	flag.BoolVar(&s.keep, "keep", false, "keep the cluster at the end")
	flag.BoolVar(&s.rollout, "rollout", false,
		"instead of a drain, roll a maintenance over all nodes, whose pods stay, and compare the heap of the server before and after it")
	flag.DurationVar(&s.rest, "rest", 3*time.Minute,
		"with --rollout: how long to measure the heap, before and after the rollout; Go collects garbage at least every two minutes")
	flag.StringVar(&s.json, "json", "bin/bench-memory.json", "with --rollout: file to which the figures are written")
	flag.Parse()
	if s.nodes < 1 || s.pods < s.nodes || s.drain < 1 || s.drain > s.nodes {
		fmt.Fprintf(
			os.Stderr, "memory: --nodes is %d, --pods %d, --drain %d: "+
				"want --nodes of at least 1, --pods of at least --nodes, --drain of 1 to --nodes\n",
			s.nodes, s.pods, s.drain,
		)
		os.Exit(2)
	}
	devcluster.Main("memory", func(ctx context.Context) error { return run(ctx, s, os.Stdout) })
}

func run(ctx context.Context, s settings, out io.Writer) (err error) {
	c := &cluster{dir: s.use, bin: s.bin, out: out}
	if s.use == "" {
		if c.dir, err = os.MkdirTemp("", "haulout-memory-"); err != nil {
			return err
		}
	}
	// Disable the controllers that would evict pods: the nodes have no heartbeats.
	c.environment = []string{
		"CLUSTER_DIR=" + c.dir, "NODES=0",
		"CONTROLLER_MANAGER_FLAGS=--controllers=*," +
			"-node-lifecycle-controller,-taint-eviction-controller,-node-ipam-controller",
	}
	defer func() {
		if s.keep {
			fmt.Fprintln(c.out, "The cluster is kept in", c.dir)
			return
		}
		err = errors.Join(err, c.manage(context.WithoutCancel(ctx), "down"), os.RemoveAll(c.dir))
	}()
	if err := c.manage(ctx, "up", "HAULOUT=false"); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	if s.use == "" {
		started := time.Now()
		if err := c.fill(ctx, s); err != nil {
			return err
		}
		fmt.Fprintf(c.out, "%d nodes and %d pods created in %v\n", s.nodes, s.pods,
			time.Since(started).Round(time.Second))
	}
	if s.rollout {
		return c.compareRollout(ctx, s)
	}
	return c.measure(ctx, s)
}

// measure prints the figures after each step of a drain.
func (c *cluster) measure(ctx context.Context, s settings) error {
	if err := c.manage(ctx, "up", "HAULOUT=true", fmt.Sprintf("GOGC=%d", s.gogc)); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "%-24s %10s %10s %10s %8s\n", "STEP", "RESIDENT", "PEAK", "GO HEAP", "AFTER")
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"all pods known", func(ctx context.Context) error { return c.know(ctx, s) }},
		{"a minute later", func(ctx context.Context) error { return usage.Pause(ctx, time.Minute) }},
		{fmt.Sprintf("%d nodes draining", s.drain), func(ctx context.Context) error { return c.drain(ctx, s) }},
		{"a minute later", func(ctx context.Context) error { return usage.Pause(ctx, time.Minute) }},
		{"cancelled", c.cancel},
		{"a minute later", func(ctx context.Context) error { return usage.Pause(ctx, time.Minute) }},
	} {
		started := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		figures, err := c.figures(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(c.out, "%-24s %7d MB %7d MB %7d MB %8v\n", step.name, figures.resident/1e6, figures.peak/1e6,
			figures.heap/1e6, time.Since(started).Round(time.Second))
	}
	return nil
}

// manage runs bin/cluster.
func (c *cluster) manage(ctx context.Context, verb string, environment ...string) error {
	_, err := program.Program{
		Path: filepath.Join(c.bin, "cluster"), Environment: slices.Concat(c.environment, environment),
	}.Run(ctx, verb)
	return err
}

// patience is the timeout of a step.
const patience = 30 * time.Minute

func eventually(ctx context.Context, check func(context.Context) (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, time.Second, patience, true, check)
}

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
		// No kubelet reports a status.
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour)),
		}}
		_, err := c.kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("create nodes: %w", err)
	}
	apps := (s.pods + podsPerApp - 1) / podsPerApp
	owners := make([]types.UID, apps)
	if err := crowd.Each(ctx, apps, func(ctx context.Context, i int) error {
		// The garbage collector would delete pods whose owner does not exist. The owner is a
		// ConfigMap, because a ConfigMap creates no pods.
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

// fillPods creates the pods, spread evenly over the nodes.
func (c *cluster) fillPods(ctx context.Context, s settings, owners []types.UID) error {
	return crowd.Store(ctx, c.dir, s.pods, func(i int) *corev1.Pod {
		app := i / podsPerApp
		return crowd.NewPod(crowd.Name{Namespace: namespace, App: appName(app), Team: app % teams}, i, owners[app],
			nodeName(i%s.nodes))
	})
}

func nodeName(i int) string { return fmt.Sprintf("ip-10-%d-%d.example.internal", i/250, i%250) }

func appName(i int) string { return fmt.Sprintf("service-%d-7c9f6d5b8f", i) }

// know waits until the server has counted all pods on the nodes to drain: its cache then has all
// pods.
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

// figures has the memory usage of the server, in bytes.
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
	scraper, err := scrape.New(c.config, c.dir)
	if err != nil {
		return figures{}, err
	}
	// This is the size of the Go heap of the server, including free space in it.
	heap, err := scraper.Value(ctx, "go_memstats_heap_inuse_bytes")
	return figures{resident: memory.Resident, peak: memory.Peak, heap: int64(heap)}, err
}
