/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package preemption

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// BenchmarkPostFilter compares our plugin with DefaultPreemption on 1,000 full nodes with 100 pods
// each under 500 budgets. Each iteration runs both, by turns; the metric "ratio" is the time of
// ours over that of upstream.
func BenchmarkPostFilter(b *testing.B) {
	for name, test := range map[string]struct {
		threshold string
		room      int32
	}{
		"without thresholds": {"", 1000},
		"victims found":      {"1000", 1000},
		"all held back":      {"1000", 0},
	} {
		b.Run(name, func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			c := largeCluster(test.threshold, test.room)
			pending := runningPod("pending", 100, onNode(""))
			pending.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3")
			pending.Status = corev1.PodStatus{Phase: corev1.PodPending}
			informed := c
			informed.pods = append(informed.pods[:len(c.pods):len(c.pods)], pending)

			ours := c.framework(b, ctx, informed.client(true))
			p, err := New(ctx, nil, ours)
			if err != nil {
				b.Fatal(err)
			}
			startInformers(b, ctx, ours)
			args, err := decodeArgs(nil)
			if err != nil {
				b.Fatal(err)
			}
			theirs := c.framework(b, ctx, informed.client(true))
			d, err := defaultpreemption.New(ctx, args.upstream(), theirs, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
			if err != nil {
				b.Fatal(err)
			}
			startInformers(b, ctx, theirs)
			nothing := func(context.Context, upstream.Candidate, upstream.ExecutorPreemptor, *corev1.Pod, string) (bool, error) {
				return false, nil
			}
			p.(*Plugin).Executor.PreemptPod, d.Executor.PreemptPod = nothing, nothing

			statuses := framework.NewDefaultNodeToStatus()
			for _, each := range c.nodes {
				statuses.Set(each.Name, fwk.NewStatus(fwk.Unschedulable, "Insufficient cpu"))
			}
			run := func(f framework.Framework, plugin fwk.PostFilterPlugin) time.Duration {
				state := framework.NewCycleState()
				if _, status, _ := f.RunPreFilterPlugins(ctx, state, pending); !status.IsSuccess() {
					b.Fatal(status.AsError())
				}
				begun := time.Now()
				plugin.PostFilter(ctx, state, pending, statuses)
				return time.Since(begun)
			}
			var our, their time.Duration
			for i := 0; b.Loop(); i++ {
				if i%2 == 0 {
					our += run(ours, p.(*Plugin))
					their += run(theirs, d)
				} else {
					their += run(theirs, d)
					our += run(ours, p.(*Plugin))
				}
			}
			b.ReportMetric(our.Seconds()/their.Seconds(), "ratio")
			b.ReportMetric(our.Seconds()*1000/float64(b.N), "ms/ours")
			b.ReportMetric(their.Seconds()*1000/float64(b.N), "ms/upstream")
		})
	}
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
