// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"haulout.dev/haulout/test/bench/internal/goals"
	"haulout.dev/haulout/test/bench/internal/usage"
	"haulout.dev/haulout/test/oracle"
)

const (
	// server and host are the names of the two main processes in the cluster program.
	server = "haulout-apiserver"
	host   = "kube-apiserver"

	// maxCPU is the share of one processor that a waiting drain may use, maxRequests the number of
	// requests that it may send in a second, maxEvictions the number of evictions in a minute:
	// the probes of all closed lanes together.
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

// request is how often haulout-apiserver sent a kind of request.
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
	log, err := oracle.OpenLog(c.AuditLog())
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
		counts, err = countRequests(log)
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

// countRequests counts the requests in an audit log by verb and resource.
func countRequests(log io.Reader) (map[string]int, error) {
	counts := map[string]int{}
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			// kube-apiserver is still writing a line without an end.
			return counts, nil
		}
		if err != nil {
			return nil, err
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		// A watch counts when its response begins, all other requests when their response ends.
		if goesOn := event.Verb == "watch"; goesOn == (event.Stage == auditv1.StageResponseStarted) {
			counts[kindOf(&event)]++
		}
	}
}

func kindOf(event *auditv1.Event) string {
	if event.ObjectRef == nil {
		path, _, _ := strings.Cut(event.RequestURI, "?")
		return event.Verb + " " + path
	}
	kind := event.Verb + " " + event.ObjectRef.Resource
	if event.ObjectRef.Subresource != "" {
		kind += "/" + event.ObjectRef.Subresource
	}
	return kind
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
