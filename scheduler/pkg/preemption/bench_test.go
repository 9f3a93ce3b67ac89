// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"haulout.dev/haulout/pkg/testing/must"
)

// BenchmarkPostFilter compares our plugin with DefaultPreemption on 1,000 full nodes with 100 pods
// each under 500 budgets. Each iteration runs both plugins in alternating order. The metrics are
// the median of the ratios of our plugin's time to upstream's time, and the bounds of its
// confidence interval of 95%. If all pods are held back, our plugin tries all nodes. Upstream must
// then try all nodes, too: by default, it stops after 100 nodes with victims.
//
//	go test ./pkg/preemption -run '^$' -bench PostFilter -benchtime 400x
//
// The benchmark fails if a limit is below the interval.
func BenchmarkPostFilter(b *testing.B) {
	for _, test := range []struct {
		name      string
		threshold string
		room      int32
		// percentage is the percentage of nodes on which upstream looks for victims.
		percentage int32
		limit      float64
	}{
		{"without thresholds", "", 1000, 10, 1.02},
		{"victims found", "1000", 1000, 10, 1.20},
		{"all held back", "1000", 0, 100, 1.40},
	} {
		b.Run(test.name, func(b *testing.B) {
			ours, theirs := rivals(b, largeCluster(test.threshold, test.room), test.percentage)
			var our, their []time.Duration
			for i := 0; b.Loop(); i++ {
				if i%2 == 0 {
					our = append(our, ours())
					their = append(their, theirs())
				} else {
					their = append(their, theirs())
					our = append(our, ours())
				}
			}
			ratios := make([]float64, len(our))
			for i := range our {
				ratios[i] = our[i].Seconds() / their[i].Seconds()
			}
			slices.Sort(ratios)
			slices.Sort(our)
			slices.Sort(their)
			middle, half := len(ratios)/2, int(math.Ceil(0.98*math.Sqrt(float64(len(ratios)))))
			lowest := ratios[max(middle-half, 0)]
			b.ReportMetric(ratios[middle], "ratio")
			b.ReportMetric(lowest, "ratio-from")
			b.ReportMetric(ratios[min(middle+half, len(ratios)-1)], "ratio-to")
			b.ReportMetric(our[middle].Seconds()*1000, "ms/ours")
			b.ReportMetric(their[middle].Seconds()*1000, "ms/upstream")
			// With few rounds, the confidence interval is too wide to compare.
			if len(ratios) >= 100 && lowest > test.limit {
				b.Errorf("the ratio to upstream is at least %.3f, want at most %.2f", lowest, test.limit)
			}
		})
	}
}

// rivals returns two functions that measure how long our plugin and upstream search for victims for
// the same pod. They delete no pods.
func rivals(b *testing.B, c cluster, percentage int32) (ours, theirs func() time.Duration) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	b.Cleanup(cancel)
	pending := runningPod("pending", 100, onNode(""), cpus(3))
	pending.Status = corev1.PodStatus{Phase: corev1.PodPending}
	informed := c
	informed.pods = append(informed.pods[:len(c.pods):len(c.pods)], pending)
	statuses := framework.NewDefaultNodeToStatus()
	for _, each := range c.nodes {
		statuses.Set(each.Name, fwk.NewStatus(fwk.Unschedulable, "Insufficient cpu"))
	}
	search := func(f framework.Framework, plugin fwk.PostFilterPlugin) func() time.Duration {
		return func() time.Duration {
			state := framework.NewCycleState()
			if _, status, _ := f.RunPreFilterPlugins(ctx, state, pending); !status.IsSuccess() {
				b.Fatal(status.AsError())
			}
			begun := time.Now()
			plugin.PostFilter(ctx, state, pending, statuses)
			return time.Since(begun)
		}
	}
	nothing := func(context.Context, upstream.Candidate, upstream.ExecutorPreemptor, *corev1.Pod, string) (bool, error) {
		return false, nil
	}
	p := pluginOf(b, ctx, c.framework(b, ctx, informed.client(true)))
	args := must.Get(decodeArgs(nil))(b)
	limited := args.upstream()
	limited.MinCandidateNodesPercentage = percentage
	d := newDefaultPreemption(b, c.framework(b, ctx, informed.client(true)), limited)
	p.Executor.PreemptPod, d.Executor.PreemptPod = nothing, nothing
	return search(p.handle.(framework.Framework), p), search(d.Evaluator.Handler.(framework.Framework), d)
}

// largeCluster has 1,000 nodes and 100,000 pods in 50 namespaces, each with ten budgets.
func largeCluster(threshold string, room int32) cluster {
	const nodes, podsPerNode, namespaces, apps = 1000, 100, 50, 10
	c := cluster{classes: []*schedulingv1.PriorityClass{class("guarded", threshold)}}
	for ns := range namespaces {
		for app := range apps {
			budget := budgetOf(fmt.Sprintf("app%d", app), room, func(b *policyv1.PodDisruptionBudget) { b.Namespace = fmt.Sprintf("ns%d", ns) })
			c.budgets = append(c.budgets, budget)
		}
	}
	for n := range nodes {
		name := fmt.Sprintf("n%d", n)
		c.nodes = append(c.nodes, node(name, podsPerNode))
		for i := range podsPerNode {
			pod := runningPod(fmt.Sprintf("p%d-%d", n, i), int32(i%10), onNode(name), ofClass("guarded"),
				ofApp(fmt.Sprintf("app%d", i%apps)), startedAfter(i))
			pod.Namespace = fmt.Sprintf("ns%d", (n+i/apps)%namespaces)
			c.pods = append(c.pods, pod)
		}
	}
	return c
}
