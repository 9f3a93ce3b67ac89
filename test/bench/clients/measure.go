// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"text/tabwriter"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/test/bench/internal/devcluster"
	"haulout.dev/haulout/test/bench/internal/goals"
	"haulout.dev/haulout/test/bench/internal/usage"
)

// server is the name of the measured process in the cluster program.
const server = "haulout-apiserver"

// The goals: what may be left of the goroutines and of the memory that the clients have taken, as
// shares of what there was before.
const (
	maxGoroutines = 1.1
	maxMemory     = 1.5
	scrapeEvery   = 5 * time.Second
	// firstTime is how long the clients are there for a first time, before anything is measured.
	// What the server keeps for clients in general, such as the events for their watches, has its
	// size after that. A leak is what a second time leaves behind.
	firstTime = 30 * time.Second
)

// report is the content of the JSON file.
type report struct {
	CPUs    int             `json:"cpus"`
	Started time.Time       `json:"started"`
	Clients int             `json:"clients"`
	Seconds float64         `json:"seconds"`
	Calls   map[string]call `json:"calls"`
	// Before, During and After are the server after clients were there for a first time, at its
	// fullest, and at its emptiest after they were gone again.
	Before usageOf      `json:"before"`
	During usageOf      `json:"during"`
	After  usageOf      `json:"after"`
	Goals  []goals.Goal `json:"goals"`
}

// call is how long the answers to one kind of request took, in milliseconds. Of a watch it is the
// time until it began.
type call struct {
	Count  int     `json:"count"`
	Median float64 `json:"p50"`
	Most   float64 `json:"p99"`
	Errors int     `json:"errors"`
	// Example is one of the errors.
	Example string `json:"example,omitempty"`
}

// usageOf is what the server takes.
type usageOf struct {
	Goroutines float64 `json:"goroutines"`
	HeapBytes  float64 `json:"heapBytes"`
}

// measure lets the clients run and reads what the server uses before, while they run, and
// afterwards.
func measure(ctx context.Context, s settings, c *devcluster.Cluster) (*report, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	scraper, err := newScraper(config, c.Dir)
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
	if r.Before, err = scraper.follow(ctx, s.rest/2, least); err != nil {
		return nil, err
	}
	busy, cancel := context.WithTimeout(ctx, s.duration)
	defer cancel()
	var during usageOf
	var scrapeErr error
	var wg sync.WaitGroup
	wg.Go(func() { during, scrapeErr = scraper.follow(ctx, s.duration, most) })
	begin := time.Now()
	latencies, err := crowd(busy, config, s.clients)
	wg.Wait()
	if err := errors.Join(err, scrapeErr, ctx.Err()); err != nil {
		return nil, err
	}
	r.Seconds, r.During, r.Calls = time.Since(begin).Seconds(), during, latencies.summary()
	if r.After, err = scraper.follow(ctx, s.rest, least); err != nil {
		return nil, err
	}
	r.judge()
	return r, nil
}

// scraper reads the server's own metrics.
type scraper struct{ client *kubernetes.Clientset }

func newScraper(config *rest.Config, dir string) (*scraper, error) {
	running, err := usage.Open(dir)
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Host = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(running.Ports[server]))
	// Its certificate is not the cluster's; nothing but figures comes from there.
	config.Insecure, config.CAData, config.CAFile = true, nil, ""
	client, err := kubernetes.NewForConfig(config)
	return &scraper{client}, err
}

func (s *scraper) read(ctx context.Context) (usageOf, error) {
	text, err := s.client.Discovery().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return usageOf{}, err
	}
	metrics := testutil.NewMetrics()
	if err := testutil.ParseMetrics(string(text), &metrics); err != nil {
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

// follow reads for a while and returns the least or the most of what there was. The heap has
// garbage, of which the least has the smallest part.
func (s *scraper) follow(ctx context.Context, lasts time.Duration, which func(a, b float64) float64) (usageOf, error) {
	found, err := s.read(ctx)
	for end := time.Now().Add(lasts); err == nil && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return found, ctx.Err()
		case <-time.After(min(scrapeEvery, time.Until(end))):
		}
		var now usageOf
		now, err = s.read(ctx)
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
