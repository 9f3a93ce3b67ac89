// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"haulout.dev/haulout/test/bench/internal/devcluster"
)

// bench measures all contenders with all workloads on a new cluster.
func bench(ctx context.Context, args []string, out io.Writer) (err error) {
	s, err := readSettings(args)
	if err != nil {
		return err
	}
	started := time.Now()
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	running, err := devcluster.Start(ctx, s.bin, s.nodes+s.spare+badNodes, s.gogc)
	if running != nil {
		defer func() { err = errors.Join(err, running.Stop(ctx)) }()
	}
	if err != nil {
		return err
	}
	c := &cluster{Cluster: running}
	if err := c.setUp(ctx, s); err != nil {
		return err
	}
	version, err := c.kube.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	minute, _, _ := strings.Cut(string(load), " ")
	r := report{
		Machine: machine{
			CPUs: runtime.NumCPU(), Go: runtime.Version(), Kubernetes: version.GitVersion, Load: minute,
			Started: started.UTC(),
		},
		Settings: figures{
			Pods: s.pods, Deployments: s.deployments, Nodes: s.nodes, Spare: s.spare, Workers: s.workers,
			Retry: s.retry.Seconds(), Singles: s.singles, Repetitions: s.repetitions, GOGC: s.gogc,
		},
	}
	fmt.Fprintf(out, "%d pods on %d nodes, %d processors, load before %s, Kubernetes %s\n\n", s.pods, s.nodes,
		r.Machine.CPUs, minute, version.GitVersion)
	for repetition := range s.repetitions {
		for _, name := range s.workloads {
			w := newWorkload(name, s)
			for position, contender := range order(s.contenders, repetition) {
				w := w
				if contender == noSurge {
					w = w.withoutSurge()
				}
				drain := result{
					Workload: name, Contender: contender, Repetition: repetition, Position: position, Pods: w.pods(),
				}
				if err := c.measure(ctx, s, w, &drain); err != nil {
					return fmt.Errorf("%s, %s: %w", name, contender, err)
				}
				fmt.Fprintln(out, line(&drain))
				r.Drains = append(r.Drains, drain)
			}
		}
	}
	r.Summaries = summarize(r.Drains, s.workloads, s.contenders)
	if slices.Contains(s.contenders, maintenance) {
		if r.Webhook, err = c.webhookCost(ctx, s); err != nil {
			return fmt.Errorf("measure the webhook: %w", err)
		}
	}
	r.Goals = judgeGoals(r.Summaries, r.Webhook)
	return r.publish(out, s.json)
}

// line describes the result of a drain in one line.
func line(r *result) string {
	text := fmt.Sprintf("%s, %s: %.1f s, %d calls, %d of them rejected", r.Workload, r.Contender, r.Seconds, r.Calls,
		r.Rejected)
	if r.Failed != "" {
		text += fmt.Sprintf("; FAILED, %d pods left: %s", r.Left, strings.ReplaceAll(r.Failed, "\n", "; "))
	}
	return text
}

// publish prints the tables and writes the file.
func (r *report) publish(out io.Writer, file string) error {
	fmt.Fprintln(out)
	if err := printSummaries(out, r.Summaries); err != nil {
		return err
	}
	fmt.Fprintln(out)
	if err := printGoals(out, r.Goals); err != nil {
		return err
	}
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, append(content, '\n'), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nAll figures of each drain are in %s.\n", file)
	return nil
}

// measure prepares the cluster and runs a contender. A failed drain is a result too; measure
// returns an error only if there is no valid result.
func (c *cluster) measure(ctx context.Context, s settings, w workload, r *result) (err error) {
	if err := c.prepare(ctx, w); err != nil {
		return err
	}
	begins := map[string]func(context.Context) (end func(context.Context) error, err error){
		badInput: c.disturb, drainPoolWebhook: c.intercept,
	}
	if begin := begins[r.Contender]; begin != nil {
		end, beginErr := begin(ctx)
		if beginErr != nil {
			return fmt.Errorf("before the drain: %w", beginErr)
		}
		defer func() { err = errors.Join(err, end(ctx)) }()
	}
	recorder, err := c.watchDrain(ctx, w)
	if err != nil {
		return err
	}
	defer recorder.Stop()
	meter, err := c.running.Start()
	if err != nil {
		return err
	}

	limit, why := s.timeout, fmt.Errorf("not done within %v", s.timeout)
	if w.isHopeless(r.Contender) {
		limit, why = s.patience, fmt.Errorf("never ends: given up after %v", s.patience)
	}
	limited, cancel := context.WithTimeoutCause(ctx, limit, why)
	defer cancel()
	begin := time.Now()
	took, failed := c.drain(limited, r.Contender, s)
	done := time.Now()
	if failed == nil {
		if failed = c.waitEmpty(limited, recorder); failed != nil {
			done = time.Now()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	costs, err := meter.Read()
	if err != nil {
		return err
	}
	log, err := recorder.Log()
	if err != nil {
		return err
	}
	emptied := r.enterLog(log, c.drained, begin)
	if failed != nil {
		r.Failed, emptied = failed.Error(), done
	}
	if emptied.After(done) {
		done = emptied
	}
	r.Seconds, r.DoneSeconds = emptied.Sub(begin).Seconds(), done.Sub(begin).Seconds()
	r.Starts, r.ClientCPUSeconds = took.starts, took.cpu.Seconds()
	r.enterCosts(costs)
	return nil
}
