// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command idle measures the cost of a drain that makes no progress: thousands of Evacuations of
// pods under budgets that allow no disruption. It creates the pods in a separate development
// cluster, drains their nodes, and waits until all pods are blocked. Then it measures for a while
// the processor time of haulout-apiserver, and counts its requests to kube-apiserver in the audit
// log.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/test/bench/internal/crowd"
	"haulout.dev/haulout/test/bench/internal/devcluster"
	"haulout.dev/haulout/test/bench/internal/goals"
	"haulout.dev/haulout/test/bench/internal/requests"
	"haulout.dev/haulout/test/bench/internal/usage"
	"haulout.dev/haulout/test/oracle"
)

// podsPerNode is the number of pods for which a simulated node has room.
const podsPerNode = 250

type settings struct {
	pods, budgets, nodes int
	settle, duration     time.Duration
	gogc                 int
	bin, use, json       string
	keep                 bool
}

func main() {
	// Logs of libraries would break up the table. The program receives all failures as errors.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	var s settings
	flag.IntVar(&s.pods, "pods", 10000, "number of pods that cannot leave")
	flag.IntVar(&s.budgets, "budgets", 60, "number of budgets of these pods")
	flag.IntVar(&s.nodes, "nodes", 100, "number of nodes of these pods")
	flag.DurationVar(&s.settle, "settle", time.Minute, "how long to wait after the last pod was reported as blocked")
	flag.DurationVar(&s.duration, "duration", time.Minute, "how long to measure")
	flag.IntVar(&s.gogc, "gogc", 50, "GOGC of haulout-apiserver; 50 is what its Deployment sets")
	flag.StringVar(&s.bin, "bin", "bin", "folder of the programs of the development cluster")
	flag.StringVar(&s.use, "use", "",
		"folder of the cluster of an earlier run with --keep and the same numbers: only measure")
	flag.BoolVar(&s.keep, "keep", false, "keep the cluster at the end")
	flag.StringVar(&s.json, "json", "bin/bench-idle.json", "file to which the figures are written")
	flag.Parse()
	if err := s.check(); err != nil {
		fmt.Fprintln(os.Stderr, "idle:", err)
		os.Exit(2)
	}
	devcluster.Main("idle", func(ctx context.Context) error { return run(ctx, s, os.Stdout) })
}

func (s settings) check() error {
	if flag.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flag.Arg(0))
	}
	for _, number := range []struct {
		flag       string
		value, min int
	}{{"pods", s.pods, s.budgets}, {"budgets", s.budgets, 1}, {"nodes", s.nodes, 1}, {"gogc", s.gogc, 1}} {
		if number.value < number.min {
			return fmt.Errorf("--%s=%d: must be at least %d", number.flag, number.value, number.min)
		}
	}
	if room := s.nodes * podsPerNode; s.pods > room {
		return fmt.Errorf("--pods=%d: must be at most %d, the number for which --nodes=%d has room",
			s.pods, room, s.nodes)
	}
	if s.settle < 0 || s.duration < time.Second {
		return fmt.Errorf("--settle=%v must not be negative, --duration=%v must be at least 1s", s.settle, s.duration)
	}
	return nil
}

func run(ctx context.Context, s settings, out io.Writer) (err error) {
	c := &cluster{Cluster: &devcluster.Cluster{Bin: s.bin, Dir: s.use}, out: out}
	defer func() {
		switch {
		case c.Cluster == nil:
		case s.keep || s.use != "":
			fmt.Fprintln(out, "The cluster is kept in", c.Dir)
		default:
			err = errors.Join(err, c.Stop(ctx))
		}
	}()
	if s.use == "" {
		if c.Cluster, err = devcluster.StartAudited(ctx, s.bin, s.nodes, s.gogc, requests.Policy()); err != nil {
			return err
		}
	}
	if err := c.connect(); err != nil {
		return err
	}
	if s.use == "" {
		if err := c.drain(ctx, s); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "Wait for %v, then measure for %v\n", s.settle, s.duration)
	if err := usage.Pause(ctx, s.settle); err != nil {
		return err
	}
	r, err := c.measure(ctx, s)
	if err != nil {
		return err
	}
	return r.publish(out, s.json)
}

const (
	// server and host are the names of the two main processes in the cluster program.
	server = "haulout-apiserver"
	host   = "kube-apiserver"

	// maxCPU is the share of one processor that a blocked drain may use. maxRequests is the maximum
	// number of requests per second. maxEvictions is the maximum number of evictions per minute:
	// the evictions that test whether any of the budgets allows a disruption now.
	maxCPU       = 0.05
	maxRequests  = 1
	maxEvictions = 10
	evictionKind = "create pods/eviction"
)

// report is the content of the JSON file.
type report struct {
	CPUs       int          `json:"cpus"`
	Started    time.Time    `json:"started"`
	Pods       int          `json:"pods"`
	Budgets    int          `json:"budgets"`
	Nodes      int          `json:"nodes"`
	Seconds    float64      `json:"seconds"`
	Settled    float64      `json:"settledSeconds"`
	ServerCPU  float64      `json:"hauloutAPIServerCPU"`
	HostCPU    float64      `json:"kubeAPIServerCPU"`
	PeakBytes  int64        `json:"hauloutAPIServerPeakBytes"`
	PerSecond  float64      `json:"requestsPerSecond"`
	Evictions  float64      `json:"evictionsPerMinute"`
	Requests   []request    `json:"requests"`
	EvacsStill int          `json:"evacuations"`
	Goals      []goals.Goal `json:"goals"`
}

// request is the number of requests of one kind that haulout-apiserver sent.
type request struct {
	Kind  string `json:"kind"`
	Count int    `json:"count"`
}

// measure measures for a while the processor time and the requests of haulout-apiserver.
func (c *cluster) measure(ctx context.Context, s settings) (*report, error) {
	running, err := usage.Open(c.Dir)
	if err != nil {
		return nil, err
	}
	log, err := oracle.OpenAuditLog(c.AuditLog())
	if err != nil {
		return nil, err
	}
	meter, err := running.Start()
	if err != nil {
		return nil, err
	}
	started := time.Now()
	if err := usage.Pause(ctx, s.duration); err != nil {
		return nil, err
	}
	costs, err := meter.Read()
	if err != nil {
		return nil, err
	}
	took := time.Since(started)
	var counts map[string]int
	err = log.Read(func(log io.Reader) (err error) {
		counts, err = requests.Count(log)
		return err
	})
	if err != nil {
		return nil, err
	}
	evacuations, err := c.haulout.MaintenanceV1alpha1().Evacuations(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	r := &report{
		CPUs: runtime.NumCPU(), Started: started.UTC(), Pods: s.pods, Budgets: s.budgets, Nodes: s.nodes,
		Seconds: took.Seconds(), Settled: s.settle.Seconds(), ServerCPU: costs[server].CPU.Seconds() / took.Seconds(),
		HostCPU: costs[host].CPU.Seconds() / took.Seconds(), PeakBytes: costs[server].Peak,
		Evictions: float64(counts[evictionKind]) / took.Minutes(), EvacsStill: len(evacuations.Items),
	}
	for kind, count := range counts {
		r.Requests = append(r.Requests, request{kind, count})
		r.PerSecond += float64(count) / took.Seconds()
	}
	slices.SortFunc(r.Requests, func(a, b request) int {
		return cmp.Or(b.Count-a.Count, strings.Compare(a.Kind, b.Kind))
	})
	if r.EvacsStill != s.pods {
		return nil, fmt.Errorf("got %d Evacuations, want one for each of %d pods: the measurement is invalid",
			r.EvacsStill, s.pods)
	}
	r.judge()
	return r, nil
}

func (r *report) judge() {
	r.Goals = goals.Judge([]goals.Goal{
		{Text: "processor time, in percent of one", Value: r.ServerCPU * 100, Bound: maxCPU * 100},
		{Text: "requests to kube-apiserver in a second", Value: r.PerSecond, Bound: maxRequests},
		{Text: "evictions in a minute", Value: r.Evictions, Bound: maxEvictions},
	}...)
}

// publish prints the figures and writes the file.
func (r *report) publish(out io.Writer, file string) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\nREQUEST\tCOUNT IN %.0f s\n", r.Seconds)
	for _, q := range r.Requests {
		fmt.Fprintf(table, "%s\t%d\n", q.Kind, q.Count)
	}
	goals.Print(table, r.Goals)
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d Evacuations under %d closed budgets; kube-apiserver uses %.1f%% of a processor.\n",
		r.EvacsStill, r.Budgets, r.HostCPU*100)
	return goals.WriteReport(file, r)
}

const (
	namespace   = "default"
	maintenance = "drain"
	// patience is the timeout of a step.
	patience = 15 * time.Minute
)

// cluster is the development cluster of the measurement.
type cluster struct {
	*devcluster.Cluster
	out     io.Writer
	kube    kubernetes.Interface
	haulout clientset.Interface
}

func (c *cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS = -1
	config.ContentType, config.AcceptContentTypes = apiruntime.ContentTypeProtobuf, apiruntime.ContentTypeProtobuf
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
				// Use a number, not a percentage: for a percentage, the disruption controller needs
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
