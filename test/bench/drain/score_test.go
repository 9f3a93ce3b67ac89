// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/bench/internal/apps"
	"haulout.dev/haulout/test/oracle"
)

func TestEnterCalls(t *testing.T) {
	begin := time.Unix(100, 0)
	call := func(namespace, subresource string, code int32, after time.Duration) oracle.Call {
		return oracle.Call{Namespace: namespace, Subresource: subresource, Code: code, Received: begin.Add(after)}
	}
	var r result
	r.enterCalls([]oracle.Call{
		call("bench", "eviction", http.StatusTooManyRequests, 3*time.Second),
		call("bench", "eviction", http.StatusCreated, 2*time.Second),
		call("bench", "eviction", http.StatusCreated, 4*time.Second),
		call("bench", "eviction", http.StatusNotFound, 5*time.Second),
		call("bench", "eviction", http.StatusInternalServerError, 5*time.Second),
		call("bench", "", http.StatusOK, time.Second),
		call("other", "eviction", http.StatusTooManyRequests, time.Second),
	}, begin)
	want := result{Calls: 5, Rejected: 2, FirstSeconds: 2, Answers: map[int32]int{201: 2, 404: 1, 429: 1, 500: 1}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
}

func TestEnterLog(t *testing.T) {
	begin := time.Unix(100, 0)
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, UID: types.UID(name), Labels: map[string]string{apps.Label: "app-00"},
			},
			Spec: corev1.PodSpec{NodeName: node}, Status: build.Ready(),
		}
	}
	budgets := apps.Budget("app-00", policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1))})
	budgets.Namespace = namespace
	see := func(kind watch.EventType, object runtime.Object, after int) oracle.Observation {
		return oracle.Observation{
			Event: watch.Event{Type: kind, Object: object}, Seen: begin.Add(time.Duration(after) * time.Second),
			Initial: after == 0,
		}
	}
	log := oracle.Log{Observations: []oracle.Observation{
		see(watch.Added, budgets, 0), see(watch.Added, pod("old", "drained"), 0), see(watch.Added, pod("new", ""), 1),
		see(watch.Modified, pod("new", "spare"), 2), see(watch.Deleted, pod("old", "drained"), 3),
		see(watch.Deleted, pod("new", "spare"), 4),
	}}
	var r result
	emptied := r.enterLog(log, []string{"drained"}, begin)
	want := result{
		Created: 1, Answers: map[int32]int{},
		Budgets: []budget{{Name: "bench/app-00", Expected: 1, Needed: 1, Lowest: 0, Below: 1}},
	}
	if diff := cmp.Diff(want, r); diff != "" || !emptied.Equal(begin.Add(3*time.Second)) {
		t.Errorf("emptied at %v: %s", emptied, diff)
	}
}

// newResult returns the result of a drain of 100 pods with this duration.
func newResult(contender string, seconds float64, modifiers ...func(*result)) result {
	r := result{
		Workload: oneBudget, Contender: contender, Pods: 100, Seconds: seconds, DoneSeconds: seconds + 1, Calls: 100,
	}
	return *build.With(&r, modifiers...)
}

func withRejected(n int) func(*result) {
	return func(r *result) { r.Calls, r.Rejected = r.Calls+n, n }
}

func withBudget(lowest, below int) func(*result) {
	return func(r *result) {
		r.Budgets = append(r.Budgets, budget{Expected: 100, Needed: 90, Lowest: lowest, Below: below})
	}
}

func failed(r *result) { r.Failed = "it did" }

// allAvailable sets full availability.
func allAvailable(r *result) { withBudget(100, 0)(r) }

func withCPU(seconds float64) func(*result) {
	return func(r *result) { r.Processes = map[string]cost{server: {CPUSeconds: seconds}} }
}

func withoutBudgets(r result) result {
	r.Workload = noBudgets
	return r
}

func single(r result) result {
	r.Workload = singleReplicas
	return r
}

func TestSummarize(t *testing.T) {
	for name, test := range map[string]struct {
		results []result
		want    []summary
	}{
		"figures are medians": {
			results: []result{
				newResult(bareLoop, 10, withCPU(3)), newResult(bareLoop, 50, withCPU(1)),
				newResult(bareLoop, 20, withRejected(100), withCPU(2), func(r *result) { r.ClientCPUSeconds = 5 }),
			},
			want: []summary{{
				Workload: oneBudget, Contender: bareLoop, Drains: 3, Pods: 100, Seconds: 20, DoneSeconds: 21, PodsPerSecond: 5,
				CallsPerPod: 1, LowestShare: 1, Server: cost{CPUSeconds: 2}, AllCPUSeconds: 3,
			}},
		},
		"a failed drain adds no figures": {
			results: []result{newResult(bareLoop, 10, withRejected(100)), newResult(bareLoop, 1, failed)},
			want: []summary{{
				Workload: oneBudget, Contender: bareLoop, Drains: 2, Failed: 1, Pods: 100, Seconds: 10, DoneSeconds: 11,
				PodsPerSecond: 10, CallsPerPod: 2, Rejected: 100, RejectedShare: 0.5, LowestShare: 1,
			}},
		},
		"budgets show the worst of all repetitions, including failed drains": {
			results: []result{
				newResult(bareLoop, 10, withBudget(95, 0), withBudget(91, 0)),
				newResult(bareLoop, 10, failed, withBudget(88, 3), withBudget(93, 1)),
			},
			want: []summary{{
				Workload: oneBudget, Contender: bareLoop, Drains: 2, Failed: 1, Pods: 100, Seconds: 10, DoneSeconds: 11,
				PodsPerSecond: 10, CallsPerPod: 1, Budgets: 2, LowestShare: 0.88, NeededShare: 0.9, Below: 4,
			}},
		},
		"contenders keep the given order, missing contenders are omitted": {
			results: []result{newResult(maintenance, 10), newResult(drainPool, 10)},
			want: []summary{
				{
					Workload: oneBudget, Contender: drainPool, Drains: 1, Pods: 100, Seconds: 10, DoneSeconds: 11,
					PodsPerSecond: 10, CallsPerPod: 1, LowestShare: 1,
				},
				{
					Workload: oneBudget, Contender: maintenance, Drains: 1, Pods: 100, Seconds: 10, DoneSeconds: 11,
					PodsPerSecond: 10, CallsPerPod: 1, LowestShare: 1,
				},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, summarize(test.results, workloadNames, contenderNames)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMedian(t *testing.T) {
	for name, test := range map[string]struct {
		values []float64
		want   float64
	}{
		"no values":                {nil, 0},
		"an odd number of values":  {[]float64{9, 1, 2}, 2},
		"an even number of values": {[]float64{9, 1, 2, 4}, 3},
		"one value":                {[]float64{7}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, median(test.values), test.want)
		})
	}
}

func TestGoals(t *testing.T) {
	for name, test := range map[string]struct {
		results []result
		// goals is the number of goals, missed the texts of those that were not reached.
		goals  int
		missed []string
	}{
		"a maintenance that is a fifth slower than the loop": {
			[]result{newResult(drainPool, 40), newResult(bareLoop, 8), newResult(maintenance, 10, allAvailable)}, 9, nil,
		},
		"a maintenance that is even slower, and not much quicker than the pool": {
			[]result{newResult(drainPool, 39), newResult(bareLoop, 7.9), newResult(maintenance, 10, allAvailable)}, 9,
			[]string{"maintenance: times the rate of bare-loop", "maintenance: times the rate of drain-pool"},
		},
		"without surge a tenth slower than the loop": {[]result{newResult(bareLoop, 9), newResult(noSurge, 10)}, 7, nil},
		"without surge more than a tenth slower than the loop": {
			[]result{newResult(bareLoop, 8.9), newResult(noSurge, 10)}, 7, []string{"maintenance-no-surge: times the rate of bare-loop"},
		},
		"without budgets a third of the loop's rate is enough": {
			[]result{withoutBudgets(newResult(bareLoop, 10)), withoutBudgets(newResult(noSurge, 30))}, 6, nil,
		},
		"without budgets less than a third is not enough": {
			[]result{withoutBudgets(newResult(bareLoop, 10)), withoutBudgets(newResult(noSurge, 31))}, 6,
			[]string{"maintenance-no-surge: times the rate of bare-loop"},
		},
		"surge takes half as much CPU again": {
			[]result{newResult(maintenance, 10, allAvailable, withCPU(1.2)), newResult(noSurge, 10, withCPU(0.8))}, 14, nil,
		},
		"surge takes even more CPU": {
			[]result{newResult(maintenance, 10, allAvailable, withCPU(1.2)), newResult(noSurge, 10, withCPU(0.79))}, 14,
			[]string{"maintenance: times our CPU of maintenance-no-surge"},
		},
		"both take more CPU for each pod than they may": {
			[]result{newResult(maintenance, 10, allAvailable, withCPU(1.21)), newResult(noSurge, 10, withCPU(0.81))}, 14,
			[]string{"maintenance: our CPU for each pod, in ms", "maintenance-no-surge: our CPU for each pod, in ms"},
		},
		"a pod more was made than left": {
			[]result{newResult(maintenance, 10, allAvailable, func(r *result) { r.Created = 101 })}, 7, []string{"maintenance: pods made for each pod"},
		},
		"with surge one replica was missing for a moment": {
			[]result{newResult(maintenance, 10, withBudget(99, 0))}, 7, []string{"maintenance: lowest availability, in percent"},
		},
		"the pool drain with the webhook has no goals": {[]result{newResult(drainPoolWebhook, 10, withRejected(100))}, 0, nil},
		"two rejected calls of a hundred":              {[]result{newResult(noSurge, 10, func(r *result) { r.Rejected = 2 })}, 6, nil},
		"three rejected calls of a hundred": {
			[]result{newResult(noSurge, 10, func(r *result) { r.Rejected = 3 })}, 6, []string{"maintenance-no-surge: rejected evictions, in percent"},
		},
		"an eviction that was sent while its budget allowed none": {
			[]result{newResult(noSurge, 10, func(r *result) { r.ToClosed = 1 })}, 6, []string{"maintenance-no-surge: evictions sent to closed budgets"},
		},
		"fewer available pods than a budget needs, for a moment": {
			[]result{newResult(noSurge, 10, withBudget(89, 1))}, 6, []string{"maintenance-no-surge: moments below a budget"},
		},
		"a maintenance that failed reaches no goal": {
			[]result{newResult(bareLoop, 10), newResult(maintenance, 1, allAvailable, failed)}, 8,
			[]string{
				"maintenance: times the rate of bare-loop", "maintenance: our CPU for each pod, in ms", "maintenance: pods made for each pod",
				"maintenance: lowest availability, in percent", "maintenance: rejected evictions, in percent",
				"maintenance: evictions sent to closed budgets", "maintenance: moments below a budget", "maintenance: failed drains",
			},
		},
		"a failed contender is not compared": {
			[]result{newResult(bareLoop, 1, failed), newResult(maintenance, 10, allAvailable)}, 7, nil,
		},
		"single replicas are not drained without surge": {
			[]result{single(newResult(noSurge, 60, failed)), single(newResult(maintenance, 10, allAvailable))}, 6, nil,
		},
		"no goals without a NodeMaintenance": {[]result{newResult(bareLoop, 1)}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			goals := judgeGoals(summarize(test.results, workloadNames, contenderNames), nil)
			var missed []string
			for _, g := range goals {
				if !g.Kept {
					missed = append(missed, g.Text)
				}
			}
			is.Equal(t, len(goals), test.goals, "goals")
			if diff := cmp.Diff(test.missed, missed); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWebhookGoal(t *testing.T) {
	// A drain takes 100 ms per pod. The medians of both sides are the same.
	noise := []pair{{Without: 0.02, With: 0.02}, {Without: 0.03, With: 0.05}}
	summaries := summarize([]result{newResult(maintenance, 10), newResult(noSurge, 10), newResult(badInput, 10)},
		workloadNames, contenderNames)
	for with, want := range map[float64]bool{0.0059: true, 0.0061: false} {
		var kept []bool
		for _, g := range judgeGoals(summaries, append(noise, pair{Without: 0.004, With: with})) {
			if g.Text == "maintenance: share of a drain that the webhook takes, in percent" {
				kept = append(kept, g.Kept)
			}
		}
		if diff := cmp.Diff([]bool{want}, kept); diff != "" {
			t.Errorf("%v s per eviction instead of 0.004: %s", with, diff)
		}
	}
}

func TestTable(t *testing.T) {
	results := []result{
		newResult(bareLoop, 10, withRejected(50), withBudget(91, 0)), newResult(noSurge, 8, withCPU(2.5)),
		newResult(drainPool, 8, failed),
	}
	results[0].Processes = map[string]cost{
		host: {CPUSeconds: 3.14, PeakBytes: 400e6}, server: {CPUSeconds: 0.2, PeakBytes: 99e6},
	}
	summaries := summarize(results, workloadNames, contenderNames)
	var out strings.Builder
	must.Do(t, printSummaries(&out, summaries))
	must.Do(t, printGoals(&out, judgeGoals(summaries, nil)))
	want := `WORKLOAD    CONTENDER              FIRST  SECONDS  DONE  PODS/S  MADE  CALLS/POD  REJECTED    TO CLOSED  API CPU  API MB  OUR CPU  OUR MB  CLIENT CPU  LOWEST  NEEDED  BELOW
one-budget  drain-pool (not done)  -      -        -     -       -     -          -           -          -        -       -        -       -           -       -       -
one-budget  bare-loop              0.0    10.0     11.0  10.0    0     1.50       50 (33.3%)  0          3.1      400     0.2      99      0.0         91.0%   90.0%   0
one-budget  maintenance-no-surge   0.0    8.0      9.0   12.5    0     1.00       0 (0.0%)    0          0.0      0       2.5      0       0.0         -       -       -
WORKLOAD    GOAL                                                    MEASURED  CEILING  WANTED  RESULT
one-budget  maintenance-no-surge: times the rate of bare-loop       1.25      1.34     >= 0.9  kept
one-budget  maintenance-no-surge: our CPU for each pod, in ms       25.00     -        <= 8    MISSED
one-budget  maintenance-no-surge: pods made for each pod            0.00      -        <= 1    kept
one-budget  maintenance-no-surge: rejected evictions, in percent    0.00      -        <= 2    kept
one-budget  maintenance-no-surge: evictions sent to closed budgets  0.00      -        <= 0    kept
one-budget  maintenance-no-surge: moments below a budget            0.00      -        <= 0    kept
one-budget  maintenance-no-surge: failed drains                     0.00      -        <= 0    kept
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}
