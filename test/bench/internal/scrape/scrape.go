// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package scrape reads the metrics of haulout-apiserver in a development cluster. It reads them
// from the server, since the aggregator proxies only the API.
package scrape

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/test/bench/internal/usage"
)

const (
	server = "haulout-apiserver"
	// heapEvery is the time between two reads of the heap.
	heapEvery = 5 * time.Second
)

// Scraper reads metrics. A server that was restarted needs another one.
type Scraper struct{ client *kubernetes.Clientset }

// New returns a Scraper for the cluster in a folder. config has the credentials of an
// administrator.
func New(config *rest.Config, dir string) (*Scraper, error) {
	running, err := usage.Open(dir)
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Host = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(running.Ports[server]))
	// The certificate is not from the cluster's CA; the programs read only figures from the server.
	config.Insecure, config.CAData, config.CAFile = true, nil, ""
	client, err := kubernetes.NewForConfig(config)
	return &Scraper{client}, err
}

// Read returns all metrics.
func (s *Scraper) Read(ctx context.Context) (testutil.Metrics, error) {
	text, err := s.client.Discovery().RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	metrics := testutil.NewMetrics()
	return metrics, testutil.ParseMetrics(string(text), &metrics)
}

// Value returns a metric without labels.
func (s *Scraper) Value(ctx context.Context, name string) (float64, error) {
	metrics, err := s.Read(ctx)
	if err != nil {
		return 0, err
	}
	for _, sample := range metrics[name] {
		return float64(sample.Value), nil
	}
	return 0, errors.New("haulout-apiserver has no metric " + name)
}

// LeastHeap reads the allocated heap for a while and returns the minimum, in bytes. The heap has
// garbage, of which the minimum has the least: Go collects it at least every two minutes.
func (s *Scraper) LeastHeap(ctx context.Context, lasts time.Duration) (least float64, err error) {
	for end := time.Now().Add(lasts); ; {
		now, err := s.Value(ctx, "go_memstats_heap_alloc_bytes")
		if err != nil {
			return 0, err
		}
		if least == 0 || now < least {
			least = now
		}
		if time.Now().After(end) {
			return least, nil
		}
		if err := usage.Pause(ctx, heapEvery); err != nil {
			return 0, err
		}
	}
}
