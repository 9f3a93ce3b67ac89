// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/testutil"
)

// Metrics are what a server measures, by the names of the samples.
type Metrics testutil.Metrics

// ScrapeServer reads what haulout-apiserver measures: from itself, past the aggregator, which
// passes on the API only.
func (c *Cluster) ScrapeServer(tb testing.TB) (Metrics, error) {
	tb.Helper()
	return c.scrapeProcess(tb, "haulout-apiserver")
}

// ScrapeScheduler returns the metrics of the scheduler, stock or ours.
func (c *Cluster) ScrapeScheduler(tb testing.TB) (Metrics, error) {
	tb.Helper()
	return c.scrapeProcess(tb, "kube-scheduler")
}

func (c *Cluster) scrapeProcess(tb testing.TB, process string) (Metrics, error) {
	tb.Helper()
	content, err := os.ReadFile(filepath.Join(c.dir, "state.json"))
	if err != nil {
		return nil, err
	}
	var state struct {
		Ports map[string]int `json:"ports"`
	}
	if err := json.Unmarshal(content, &state); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(c.As(tb).Config)
	config.Host = fmt.Sprintf("https://127.0.0.1:%d", state.Ports[process])
	// Its certificate is not the cluster's; nothing but figures comes from there.
	config.Insecure, config.CAData, config.CAFile = true, nil, ""
	return scrape(tb, config)
}

// ScrapeHost reads what kube-apiserver measures.
func (c *Cluster) ScrapeHost(tb testing.TB) (Metrics, error) {
	tb.Helper()
	return scrape(tb, c.As(tb).Config)
}

func scrape(tb testing.TB, config *rest.Config) (Metrics, error) {
	tb.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	text, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").Do(tb.Context()).Raw()
	if err != nil {
		return nil, err
	}
	metrics := testutil.NewMetrics()
	return Metrics(metrics), testutil.ParseMetrics(string(text), &metrics)
}

// Sum adds up the samples of a name that have the given labels, each as a name and a value.
func (m Metrics) Sum(name string, labels ...string) float64 {
	var sum float64
	for _, sample := range m[name] {
		matches := true
		for i := 0; i < len(labels); i += 2 {
			matches = matches && string(sample.Metric[testutil.LabelName(labels[i])]) == labels[i+1]
		}
		if matches {
			sum += float64(sample.Value)
		}
	}
	return sum
}
