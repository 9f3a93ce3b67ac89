// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command clients measures concurrent use of the API: each client watches, lists, creates and
// deletes NodeMaintenances through the aggregator, over its own connection. The command prints the
// latencies and the errors, and the goroutines and the memory of the server after the clients have
// ended.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	maintenanceclient "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/test/bench/internal/devcluster"
	"haulout.dev/haulout/test/bench/internal/goals"
	"haulout.dev/haulout/test/bench/internal/scrape"
)

type settings struct {
	clients        int
	duration, rest time.Duration
	gogc           int
	bin, json      string
}

func main() {
	// Logs of libraries would break up the table. The program receives all failures as errors.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	var s settings
	flag.IntVar(&s.clients, "clients", 200, "number of clients")
	flag.DurationVar(&s.duration, "duration", 5*time.Minute, "how long the clients use the API")
	flag.DurationVar(&s.rest, "rest", 5*time.Minute, "how long to measure the server after the clients have ended; Go collects garbage at least every two minutes")
	flag.IntVar(&s.gogc, "gogc", 50, "GOGC of haulout-apiserver; 50 is what its Deployment sets")
	flag.StringVar(&s.bin, "bin", "bin", "folder of the programs of the development cluster")
	flag.StringVar(&s.json, "json", "bin/bench-clients.json", "file to which the figures are written")
	flag.Parse()
	if err := s.check(); err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(2)
	}
	devcluster.Main("clients", func(ctx context.Context) error { return run(ctx, s, os.Stdout) })
}

func (s settings) check() error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unknown argument %q", flag.Arg(0))
	case s.clients < 1:
		return fmt.Errorf("--clients=%d: must be at least 1", s.clients)
	case s.gogc < 1:
		return fmt.Errorf("--gogc=%d: must be at least 1", s.gogc)
	case s.duration < time.Second || s.rest < 0:
		return fmt.Errorf("--duration=%v must be at least 1s, --rest=%v must not be negative", s.duration, s.rest)
	}
	return nil
}

func run(ctx context.Context, s settings, out io.Writer) (err error) {
	c, err := devcluster.Start(ctx, s.bin, 1, s.gogc)
	if c != nil {
		defer func() { err = errors.Join(err, c.Stop(ctx)) }()
	}
	if err != nil {
		return err
	}
	r, err := measure(ctx, s, c)
	if err != nil {
		return err
	}
	return r.publish(out, s.json)
}

// These constants limit the goroutines and the memory after the clients have ended, as multiples of
// the values before.
const (
	maxGoroutines = 1.1
	maxMemory     = 1.5
	scrapeEvery   = 5 * time.Second
	// firstTime is the length of a first load before the measurement. During this load the server
	// allocates what it keeps for clients in general, such as the events for their watches. Growth
	// after the second load is a leak.
	firstTime = 30 * time.Second
)

// report is the content of the JSON file.
type report struct {
	CPUs    int             `json:"cpus"`
	Started time.Time       `json:"started"`
	Clients int             `json:"clients"`
	Seconds float64         `json:"seconds"`
	Calls   map[string]call `json:"calls"`
	// Before is the minimum usage of the server after the first load, During the maximum during the
	// second load, After the minimum after the second load.
	Before usageOf      `json:"before"`
	During usageOf      `json:"during"`
	After  usageOf      `json:"after"`
	Goals  []goals.Goal `json:"goals"`
}

// call has the latencies of one kind of request, in milliseconds. The latency of a watch is the
// time until the watch began.
type call struct {
	Count  int     `json:"count"`
	Median float64 `json:"p50"`
	Most   float64 `json:"p99"`
	Errors int     `json:"errors"`
	// Example is one of the errors.
	Example string `json:"example,omitempty"`
}

type usageOf struct {
	Goroutines float64 `json:"goroutines"`
	HeapBytes  float64 `json:"heapBytes"`
}

// measure runs the clients and reads the usage of the server before, during and after the load.
func measure(ctx context.Context, s settings, c *devcluster.Cluster) (*report, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	scraper, err := scrape.New(config, c.Dir)
	if err != nil {
		return nil, err
	}
	r := &report{CPUs: runtime.NumCPU(), Started: time.Now().UTC(), Clients: s.clients}
	first, cancel := context.WithTimeout(ctx, firstTime)
	_, err = crowd(first, config, s.clients)
	cancel()
	if err != nil {
		return nil, err
	}
	if r.Before, err = follow(ctx, scraper, s.rest/2, least); err != nil {
		return nil, err
	}
	busy, cancel := context.WithTimeout(ctx, s.duration)
	defer cancel()
	var during usageOf
	var scrapeErr error
	var wg sync.WaitGroup
	wg.Go(func() { during, scrapeErr = follow(ctx, scraper, s.duration, most) })
	begin := time.Now()
	latencies, err := crowd(busy, config, s.clients)
	wg.Wait()
	if err := errors.Join(err, scrapeErr, ctx.Err()); err != nil {
		return nil, err
	}
	r.Seconds, r.During, r.Calls = time.Since(begin).Seconds(), during, latencies.summary()
	if r.After, err = follow(ctx, scraper, s.rest, least); err != nil {
		return nil, err
	}
	r.judge()
	return r, nil
}

// read reads the usage of the server from its metrics.
func read(ctx context.Context, s *scrape.Scraper) (usageOf, error) {
	metrics, err := s.Read(ctx)
	if err != nil {
		return usageOf{}, err
	}
	value := func(name string) float64 {
		for _, sample := range metrics[name] {
			return float64(sample.Value)
		}
		return math.NaN()
	}
	return usageOf{Goroutines: value("go_goroutines"), HeapBytes: value("go_memstats_heap_alloc_bytes")}, nil
}

func least(a, b float64) float64 { return min(a, b) }
func most(a, b float64) float64  { return max(a, b) }

// follow reads the usage for a while and returns the minimum or maximum. The heap includes garbage;
// the minimum includes the least.
func follow(ctx context.Context, s *scrape.Scraper, lasts time.Duration, which func(a, b float64) float64) (usageOf, error) {
	found, err := read(ctx, s)
	for end := time.Now().Add(lasts); err == nil && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return found, ctx.Err()
		case <-time.After(min(scrapeEvery, time.Until(end))):
		}
		var now usageOf
		now, err = read(ctx, s)
		found = usageOf{which(found.Goroutines, now.Goroutines), which(found.HeapBytes, now.HeapBytes)}
	}
	return found, err
}

func (r *report) judge() {
	failed := 0
	for _, c := range r.Calls {
		failed += c.Errors
	}
	r.Goals = goals.Judge([]goals.Goal{
		{Text: "errors", Value: float64(failed)},
		{
			Text: "goroutines afterwards, of those before", Value: r.After.Goroutines / r.Before.Goroutines,
			Bound: maxGoroutines,
		},
		{Text: "heap afterwards, of that before", Value: r.After.HeapBytes / r.Before.HeapBytes, Bound: maxMemory},
	}...)
}

// publish prints the figures and writes the file.
func (r *report) publish(out io.Writer, file string) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%d clients, %.0f s\nREQUEST\tCOUNT\tP50\tP99\tERRORS\n", r.Clients, r.Seconds)
	for _, kind := range slices.Sorted(maps.Keys(r.Calls)) {
		c := r.Calls[kind]
		fmt.Fprintf(table, "%s\t%d\t%.0f ms\t%.0f ms\t%d %s\n", kind, c.Count, c.Median, c.Most, c.Errors, c.Example)
	}
	fmt.Fprintln(table, "\nSERVER\tGOROUTINES\tHEAP")
	for _, row := range []struct {
		when string
		usageOf
	}{{"before", r.Before}, {"with clients, at most", r.During}, {"afterwards, at least", r.After}} {
		fmt.Fprintf(table, "%s\t%.0f\t%.0f MB\n", row.when, row.Goroutines, row.HeapBytes/1e6)
	}
	goals.Print(table, r.Goals)
	if err := table.Flush(); err != nil {
		return err
	}
	return goals.WriteReport(file, r)
}

const (
	// pause is the time between two requests of a client, patience the timeout of a request.
	pause    = 500 * time.Millisecond
	patience = 30 * time.Second
	// watchSeconds is the timeout of a watch.
	watchSeconds = 20
)

// latencies are the latencies and the errors by kind of request.
type latencies struct {
	mu     sync.Mutex
	took   map[string][]time.Duration
	failed map[string][]error
}

func (l *latencies) add(kind string, took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed[kind] = append(l.failed[kind], err)
		return
	}
	l.took[kind] = append(l.took[kind], took)
}

func (l *latencies) summary() map[string]call {
	calls := map[string]call{}
	for kind, took := range l.took {
		slices.Sort(took)
		at := func(share float64) float64 {
			return float64(took[int(share*float64(len(took)-1))].Microseconds()) / 1000
		}
		calls[kind] = call{Count: len(took), Median: at(0.5), Most: at(0.99)}
	}
	for kind, failed := range l.failed {
		c := calls[kind]
		c.Errors, c.Example = len(failed), failed[0].Error()
		calls[kind] = c
	}
	return calls
}

// crowd runs clients that use the API until the context ends.
func crowd(ctx context.Context, config *rest.Config, clients int) (*latencies, error) {
	l := &latencies{took: map[string][]time.Duration{}, failed: map[string][]error{}}
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range clients {
		own := rest.CopyConfig(config)
		// Clients with the same configuration would share a connection.
		own.Dial = (&net.Dialer{Timeout: patience}).DialContext
		client, err := clientset.NewForConfig(own)
		if err != nil {
			return l, err
		}
		c := client.MaintenanceV1alpha1().NodeMaintenances()
		wg.Go(func() { watch(ctx, c, l) })
		wg.Go(func() { use(ctx, c, l, i) })
	}
	return l, nil
}

// watch starts one watch after another.
func watch(ctx context.Context, c maintenanceclient.NodeMaintenanceInterface, l *latencies) {
	for ctx.Err() == nil {
		begin := time.Now()
		w, err := c.Watch(ctx, metav1.ListOptions{ResourceVersion: "0", TimeoutSeconds: ptr.To[int64](watchSeconds)})
		if ctx.Err() != nil {
			return
		}
		l.add("watch", time.Since(begin), err)
		if err != nil {
			waitABit(ctx)
			continue
		}
		for range w.ResultChan() {
		}
	}
}

// use lists, creates and deletes NodeMaintenances. It leaves none behind.
func use(ctx context.Context, c maintenanceclient.NodeMaintenanceInterface, l *latencies, i int) {
	for turn := 0; ctx.Err() == nil; turn++ {
		name := fmt.Sprintf("client-%d-%d", i, turn)
		ask(l, "list", func(ctx context.Context) error {
			_, err := c.List(ctx, metav1.ListOptions{})
			return err
		})
		waitABit(ctx)
		ask(l, "create", func(ctx context.Context) error {
			_, err := c.Create(ctx, idle(name), metav1.CreateOptions{})
			return err
		})
		waitABit(ctx)
		ask(l, "delete", func(ctx context.Context) error { return c.Delete(ctx, name, metav1.DeleteOptions{}) })
		waitABit(ctx)
	}
}

// ask sends a request. The request runs to its end even if the load ends.
func ask(l *latencies, kind string, request func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begin := time.Now()
	err := request(ctx)
	l.add(kind, time.Since(begin), err)
}

func waitABit(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// idle returns a maintenance that selects no node.
func idle(name string) *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageIdle,
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "clients.haulout.dev/none", Operator: corev1.NodeSelectorOpExists},
				},
			}}},
		},
	}
}
