// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command api compares the API of haulout-apiserver with a CustomResourceDefinition of the same
// schema on the same kube-apiserver: the time to create objects, to update them, to list all of
// them, and to receive a change. haulout-apiserver also validates objects, records the history of
// stages and runs controllers that reconcile each object; no controller reconciles the custom
// resources.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/bench/internal/devcluster"
)

type settings struct {
	objects, evacuations, workers, turns, lists, samples, gogc int
	bin, json                                                  string
}

func main() {
	// Logs of libraries would be in the table. The program gets all failures as errors.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	var s settings
	flag.IntVar(&s.objects, "objects", 10000, "number of objects of each kind")
	flag.IntVar(&s.evacuations, "evacuations", 1000, "number of Evacuations whose status is written")
	flag.IntVar(&s.workers, "workers", 16, "number of requests at the same time")
	flag.IntVar(&s.turns, "turns", 4, "number of parts in which both APIs create and write their objects in turn")
	flag.IntVar(&s.lists, "lists", 5, "number of lists of all objects; the result is the median")
	flag.IntVar(&s.samples, "samples", 200, "number of changes to wait for; the result is the median")
	flag.IntVar(&s.gogc, "gogc", 50, "GOGC of haulout-apiserver; 50 is what its Deployment sets")
	flag.StringVar(&s.bin, "bin", "bin", "folder of the programs of the development cluster")
	flag.StringVar(&s.json, "json", "bin/bench-api.json", "file to which the figures are written")
	flag.Parse()
	if s.workers < 1 || s.turns < 1 || s.lists < 1 || s.samples < 1 || s.objects < s.turns ||
		s.evacuations < s.turns || s.gogc < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "bench-api: want --objects and --evacuations of at least --turns, "+
			"all other numbers of at least 1, and no arguments")
		os.Exit(2)
	}
	devcluster.Main("bench-api", func(ctx context.Context) error { return run(ctx, s, os.Stdout) })
}

func run(ctx context.Context, s settings, out io.Writer) (err error) {
	cluster, err := devcluster.Start(ctx, s.bin, 1, s.gogc)
	if cluster != nil {
		defer func() { err = errors.Join(err, cluster.Stop(ctx)) }()
	}
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	served, err := makeCRD(ctx, client, nodeMaintenances)
	if err != nil {
		return err
	}
	ours := newTarget(client.Resource(v1alpha1.SchemeGroupVersion.WithResource(nodeMaintenances.plural)),
		v1alpha1.GroupName, nodeMaintenances)
	theirs := newTarget(served, crdGroup, nodeMaintenances)
	spec, err := completeSpec(ctx, ours)
	if err != nil {
		return err
	}
	figures, err := compare(ctx, s, [2]*target{ours, theirs}, spec)
	if err != nil {
		return err
	}
	written, err := compareStatus(ctx, s, config, cluster.Dir)
	if err != nil {
		return err
	}
	// Next to the figures of the other writes.
	figures = slices.Insert(figures, 2, written)
	if err := printFigures(out, figures); err != nil {
		return err
	}
	content, err := json.MarshalIndent(map[string]any{
		"objects":     s.objects,
		"evacuations": s.evacuations,
		"workers":     s.workers,
		"figures":     figures,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(s.json, append(content, '\n'), 0o644)
}

// completeSpec returns the spec of a maintenance without nodes as haulout-apiserver defaults it, so
// that both store the same spec.
func completeSpec(ctx context.Context, ours *target) (map[string]any, error) {
	completed, err := ours.client.Create(ctx, ours.object(objectName(0), map[string]any{
		"reason": "new kernel",
		"nodeSelector": map[string]any{"nodeSelectorTerms": []any{map[string]any{
			"matchExpressions": []any{
				map[string]any{"key": "bench.haulout.dev/none", "operator": "In", "values": []any{"true"}},
			},
		}}},
	}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return nil, err
	}
	spec, _, err := unstructured.NestedMap(completed.Object, "spec")
	return spec, err
}

// figure is the time that both took for the same requests, in seconds.
type figure struct {
	Name string `json:"name"`
	// Ours is the time of haulout-apiserver, CRD the time of the CustomResourceDefinition, and
	// Ratio is Ours divided by CRD: less is better for haulout-apiserver.
	Ours  float64 `json:"ours"`
	CRD   float64 `json:"crd"`
	Ratio float64 `json:"ratio"`
}

func newFigure(name string, took [2]time.Duration, per int) figure {
	f := figure{Name: name, Ours: took[0].Seconds() / float64(per), CRD: took[1].Seconds() / float64(per)}
	if took[1] > 0 {
		f.Ratio = f.Ours / f.CRD
	}
	return f
}

// compare lets the two targets take turns, so that neither always runs first.
func compare(ctx context.Context, s settings, targets [2]*target, spec map[string]any) ([]figure, error) {
	var created, updated [2]time.Duration
	for _, phase := range []struct {
		sums *[2]time.Duration
		do   func(who, from, to int) (time.Duration, error)
	}{
		{&created, func(who, from, to int) (time.Duration, error) {
			return targets[who].create(ctx, from, to, s.workers, spec)
		}},
		{&updated, func(who, from, to int) (time.Duration, error) {
			return targets[who].update(ctx, from, to, s.workers)
		}},
	} {
		if err := byTurns(s, s.objects, phase.sums, phase.do); err != nil {
			return nil, err
		}
	}
	var lists, latencies [2][]time.Duration
	for turn := range s.lists {
		for _, i := range inTurn(turn) {
			took, err := targets[i].list(ctx, s.objects)
			if err != nil {
				return nil, err
			}
			lists[i] = append(lists[i], took)
		}
	}
	for i, t := range targets {
		var err error
		if latencies[i], err = t.latencies(ctx, s.samples); err != nil {
			return nil, err
		}
	}
	return []figure{
		newFigure("create, per object", created, s.objects),
		newFigure("read and update, per object", updated, s.objects),
		newFigure(fmt.Sprintf("list of %d", s.objects), [2]time.Duration{middle(lists[0]), middle(lists[1])}, 1),
		newFigure("from write to watch event", [2]time.Duration{middle(latencies[0]), middle(latencies[1])}, 1),
	}, nil
}

// byTurns lets each of the two targets do a part of the work, then the next part in reverse order,
// until all work is done. It adds the times to sums.
func byTurns(s settings, count int, sums *[2]time.Duration, do func(who, from, to int) (time.Duration, error)) error {
	for turn := range s.turns {
		from, to := count*turn/s.turns, count*(turn+1)/s.turns
		for _, who := range inTurn(turn) {
			took, err := do(who, from, to)
			if err != nil {
				return err
			}
			sums[who] += took
		}
	}
	return nil
}

// inTurn returns the index of the first and of the second target in a turn.
func inTurn(turn int) [2]int { return [2]int{turn % 2, (turn + 1) % 2} }

// middle returns the median; for an even number of durations the longer of the two in the middle.
func middle(durations []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(durations))[len(durations)/2]
}

func printFigures(out io.Writer, figures []figure) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "FIGURE\tOURS\tCRD\tOURS / CRD")
	for _, f := range figures {
		fmt.Fprintf(table, "%s\t%.2f ms\t%.2f ms\t%.2f\n", f.Name, f.Ours*1000, f.CRD*1000, f.Ratio)
	}
	return table.Flush()
}
