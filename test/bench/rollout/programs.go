// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"haulout.dev/haulout/test/bench/internal/goals"
	"haulout.dev/haulout/test/internal/program"
)

// decision has the times of a round of decisions and of a drain plan, one for each repetition.
type decision struct {
	RoundSeconds []float64 `json:"roundSeconds"`
	PlanSeconds  []float64 `json:"planSeconds"`
}

// measureDecision runs by turns the Go benchmarks of a round of decisions for 20 rollouts over
// 5,000 nodes, and of a plan for the drains of such a cluster. Make compiles their packages into
// the folder of the programs.
func measureDecision(ctx context.Context, s settings, r *report, out io.Writer) error {
	fmt.Fprintln(out, "Decide for 20 rollouts over 5,000 nodes, and plan the drains of such a cluster")
	r.Decision = &decision{}
	for range s.repetitions {
		for _, b := range []struct {
			program, pattern string
			times            *[]float64
		}{
			{"next.test", "^BenchmarkDecide$", &r.Decision.RoundSeconds},
			{"plan.test", "^BenchmarkPlan$/^plan=default$/^nodes=5000$", &r.Decision.PlanSeconds},
		} {
			result, err := program.Program{Path: filepath.Join(s.bin, b.program)}.Run(ctx, "-test.run=^$", "-test.bench="+b.pattern)
			if err != nil {
				return err
			}
			took, err := parseBenchmark(result.Output)
			if err != nil {
				return fmt.Errorf("%s: %w", b.program, err)
			}
			*b.times = append(*b.times, took)
		}
	}
	return nil
}

var benchmarkLine = regexp.MustCompile(`(?m)^Benchmark\S+\s+\d+\s+([\d.]+) ns/op`)

// parseBenchmark returns the time of the only benchmark in the output of a test program, in
// seconds.
func parseBenchmark(output string) (float64, error) {
	found := benchmarkLine.FindAllStringSubmatch(output, -1)
	if len(found) != 1 {
		return 0, fmt.Errorf("got %d benchmarks, want one, in:\n%s", len(found), output)
	}
	nanoseconds, err := strconv.ParseFloat(found[0][1], 64)
	return nanoseconds / float64(time.Second), err
}

// memory is the part of the report of `memory --rollout` that this program repeats.
type memory struct {
	Nodes          int          `json:"nodes"`
	Pods           int          `json:"pods"`
	RolloutSeconds float64      `json:"rolloutSeconds"`
	BeforeBytes    float64      `json:"heapBytesBefore"`
	AfterBytes     float64      `json:"heapBytesAfter"`
	Goals          []goals.Goal `json:"goals"`
}

// measureMemory runs the program memory, which has a cluster of its own.
func measureMemory(ctx context.Context, s settings, r *report, out io.Writer) error {
	fmt.Fprintf(out, "Roll %d nodes with %d pods, which stay, and compare the heap of the server\n", s.memoryNodes, s.memoryPods)
	var m memory
	err := runForReport(ctx, filepath.Join(s.bin, "memory"), &m, "--rollout", "--bin="+s.bin, fmt.Sprint("--gogc=", s.gogc),
		fmt.Sprint("--nodes=", s.memoryNodes), fmt.Sprint("--pods=", s.memoryPods), "--drain=1")
	if err == nil {
		r.Memory = &m
	}
	return err
}

// drains has the times of drains without rollouts by the programs in --bin and in --before, one for
// each repetition.
type drains struct {
	NowSeconds    []float64 `json:"nowSeconds"`
	BeforeSeconds []float64 `json:"beforeSeconds"`
}

// measureDrains runs the program bench with the server of each folder by turns, each time with a
// cluster of its own.
func measureDrains(ctx context.Context, s settings, r *report, out io.Writer) error {
	fmt.Fprintf(out, "Drain without rollouts, %d times with the programs in %s and in %s\n", s.drains, s.bin, s.before)
	r.Drains = &drains{}
	for repetition := range s.drains {
		turns := []struct {
			bin   string
			times *[]float64
		}{{s.bin, &r.Drains.NowSeconds}, {s.before, &r.Drains.BeforeSeconds}}
		if repetition%2 == 1 {
			turns[0], turns[1] = turns[1], turns[0]
		}
		for _, turn := range turns {
			var measured struct {
				Drains []struct {
					Seconds float64 `json:"seconds"`
					Failed  string  `json:"failed"`
				} `json:"drains"`
			}
			if err := runForReport(ctx, filepath.Join(s.bin, "bench"), &measured, "--bin="+turn.bin, fmt.Sprint("--gogc=", s.gogc),
				"--workloads=many-budgets", "--contenders=maintenance"); err != nil {
				return err
			}
			if len(measured.Drains) != 1 || measured.Drains[0].Failed != "" {
				return fmt.Errorf("drain with the programs in %s: %+v", turn.bin, measured.Drains)
			}
			*turn.times = append(*turn.times, measured.Drains[0].Seconds)
		}
	}
	return nil
}

// runForReport runs a program of a measurement and reads the report that it writes.
func runForReport(ctx context.Context, path string, report any, args ...string) error {
	dir, err := os.MkdirTemp("", "haulout-rollout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "report.json")
	if _, err := (program.Program{Path: path}).Run(ctx, append(args, "--json="+file)...); err != nil {
		return err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, report)
}
