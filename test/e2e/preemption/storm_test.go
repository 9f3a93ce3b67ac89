// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// stormThreshold is the threshold of the guarded pods.
const stormThreshold = 1000

// stormSize is the size of a storm. Ten guarded pods fill a node.
type stormSize struct {
	nodes, guarded, budgets, wanting int
	duration                         time.Duration
}

func sizeOf(t *testing.T) stormSize {
	t.Helper()
	if framework.Full(t) {
		return stormSize{nodes: 200, guarded: 2000, budgets: 20, wanting: 500, duration: 5 * time.Minute}
	}
	return smallStorm
}

var smallStorm = stormSize{nodes: 20, guarded: 200, budgets: 5, wanting: 50, duration: 30 * time.Second}

// belowThreshold has priorities of pods that must not exceed budgets.
var belowThreshold = []int32{100, 200, 300, 400, 500, 600, 700, 800, stormThreshold - 1}

// storm is a pool whose nodes are full with guarded pods, and many pending pods.
type storm struct {
	world
	stormSize
	names    []string // of the budgets and their Deployments
	recorder *oracle.Recorder
	// priorities of the pending pods, by name.
	priorities map[string]int32
	uids       map[types.UID]string
	begin      time.Time
}

// podCPU is the CPU request of each pod of a storm: exactly ten fit on a node.
const podCPU = "6"

// TestStorm creates pods of mixed priority that preempt guarded pods, while the budgets change at
// random. It prints figures and judges haulout-scheduler. With STORM_SCHEDULER=stock, it only
// prints the figures of kube-scheduler, for a comparison.
func TestStorm(t *testing.T) {
	s := newStorm(t, sizeOf(t))
	s.createPending(t, append(slices.Clone(belowThreshold), stormThreshold))
	s.moveBudgets(t, framework.Random(t), func() {})
	s.waitSettled(t)
	s.report(t)
}

func newStorm(t *testing.T, size stormSize) *storm {
	t.Helper()
	pool, _ := cluster.NewPool(t, size.nodes, true)
	s := &storm{
		world:      world{pool: pool, namespace: cluster.NewNamespace(t)},
		stormSize:  size,
		priorities: map[string]int32{},
		uids:       map[types.UID]string{},
	}
	class := cluster.PriorityClass(t, 10)
	annotate(t, class, fmt.Sprint(stormThreshold))
	replicas := size.guarded / size.budgets
	for i := range size.budgets {
		name := fmt.Sprintf("web-%d", i)
		cluster.Deployment(t, s.namespace, name, pool, int32(replicas), func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.PriorityClassName = class
			request(&d.Spec.Template.Spec, podCPU)
		})
		cluster.Budget(t, s.namespace, name, 0)
		s.names = append(s.names, name)
	}
	s.recorder = s.record(t)
	return s
}

// record records the changes of the pods and budgets of the world from now on.
func (w world) record(t *testing.T) *oracle.Recorder {
	t.Helper()
	return cluster.Record(t, oracle.Scope{
		Namespaces: []string{w.namespace}, Only: []string{"pods", "poddisruptionbudgets"},
	})
}

// settled returns the log of a recorder when nothing changes any more.
func settled(t *testing.T, recorder *oracle.Recorder) oracle.Log {
	t.Helper()
	must.Do(t, recorder.Settle(t.Context()))
	return must.Get(recorder.Log())(t)
}

// judge judges what the scheduler did to the guarded pods of a log.
func judge(log oracle.Log, priorityFor func(victim string) int32) oracle.Preemption {
	return oracle.JudgePreemption(log, oracle.Scheduler{
		User: scheduler, Threshold: stormThreshold, PriorityFor: priorityFor,
	})
}

// createPending creates the pending pods. It assigns the priorities in rotation.
func (s *storm) createPending(t *testing.T, priorities []int32) {
	t.Helper()
	classes := make([]string, len(priorities))
	for i, priority := range priorities {
		classes[i] = cluster.PriorityClass(t, priority)
	}
	s.begin = time.Now()
	pods := cluster.As(t).Kube.CoreV1().Pods(s.namespace)
	for i := range s.wanting {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("wants-%03d", i)}, Spec: framework.PodSpec(s.pool),
		}
		pod.Spec.PriorityClassName = classes[i%len(classes)]
		request(&pod.Spec, podCPU)
		created := must.Get(pods.Create(t.Context(), pod, metav1.CreateOptions{}))(t)
		s.priorities[created.Name] = priorities[i%len(priorities)]
		s.uids[created.UID] = created.Name
	}
}

// moveBudgets changes the disruptions that budgets allow at random. At the end, no budget allows a
// disruption. After each change, it calls the function after.
func (s *storm) moveBudgets(t *testing.T, random *rand.Rand, after func()) {
	t.Helper()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for end := s.begin.Add(s.duration); time.Now().Before(end); {
		<-tick.C
		name := s.names[random.IntN(len(s.names))]
		room := 0
		if random.IntN(2) == 0 {
			// Pods that left before cannot return: the budget counts them as missing.
			room = s.missing(name) + 1 + random.IntN(3)
		}
		s.allow(t, name, room)
		after()
	}
	for _, name := range s.names {
		s.allow(t, name, 0)
	}
}

// missing returns how many pods of a Deployment are not healthy.
func (s *storm) missing(name string) int {
	missing := s.guarded / s.budgets
	for _, pod := range s.recorder.View().Pods() {
		if pod.Labels["app"] == name && pod.DeletionTimestamp == nil && oracle.IsReady(pod) {
			missing--
		}
	}
	return missing
}

// waitSettled waits until each pod is scheduled, was preempted by a more important one, or reports
// why it waits. With haulout-scheduler, budgets must be the reason.
func (s *storm) waitSettled(t *testing.T) {
	t.Helper()
	framework.Eventually(t, "every pod is scheduled or reports why not", func(ctx context.Context) (bool, error) {
		list, err := cluster.As(t).Kube.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			pod := &list.Items[i]
			if _, wants := s.priorities[pod.Name]; !wants || pod.Spec.NodeName != "" {
				continue
			}
			said := message(pod)
			if said == "" || !stock() && !strings.Contains(said, "PodDisruptionBudgets protect") {
				return false, fmt.Errorf("pod %s of priority %d has the message %q", pod.Name, s.priorities[pod.Name], said)
			}
		}
		return true, nil
	})
}

// preemptors returns the preemptor of each victim, by pod name, from the events of the scheduler.
// It waits for the event about each victim that one of the calls has deleted.
func (s *storm) preemptors(t *testing.T, calls []oracle.Call) map[string]string {
	t.Helper()
	preemptors := map[string]string{}
	framework.Eventually(t, "each deleted pod has an event with its preemptor", func(ctx context.Context) (bool, error) {
		events, err := cluster.As(t).Kube.EventsV1().Events(s.namespace).List(
			ctx, metav1.ListOptions{FieldSelector: "reason=Preempted"},
		)
		if err != nil {
			return false, err
		}
		for i := range events.Items {
			for word := range strings.FieldsSeq(events.Items[i].Note) {
				if name, ok := s.uids[types.UID(word)]; ok {
					preemptors[events.Items[i].Regarding.Name] = name
				}
			}
		}
		for i := range calls {
			if calls[i].User == scheduler && calls[i].Deleted() && preemptors[calls[i].Name] == "" {
				return false, fmt.Errorf("no event about pod %s", calls[i].Name)
			}
		}
		return true, nil
	})
	return preemptors
}

// placed returns how many of the pending pods were ever scheduled, and when the last one was.
func (s *storm) placed(log oracle.Log) (count int, last time.Time) {
	known := map[string]bool{}
	for o, pod := range oracle.Each[*corev1.Pod](log) {
		if _, wants := s.priorities[pod.Name]; wants && pod.Spec.NodeName != "" && !known[pod.Name] {
			known[pod.Name], last = true, o.Seen
		}
	}
	return len(known), last
}

// report judges the calls and prints the figures.
func (s *storm) report(t *testing.T) {
	t.Helper()
	log := settled(t, s.recorder)
	preemptors := s.preemptors(t, log.Calls)
	verdict := judge(log, func(victim string) int32 { return s.priorities[preemptors[victim]] })
	placed, last := s.placed(log)
	name := "haulout-scheduler"
	if stock() {
		name = "kube-scheduler"
	}
	t.Logf("storm: %s, %d nodes, %d guarded pods, %d pending pods, %v", name, s.nodes, s.guarded, s.wanting, s.duration)
	t.Logf("storm: budgets broken: %d of %d, by %d deletions for pods below the threshold (%d by %d for all pods)",
		len(verdict.BrokenBelow), len(s.names), verdict.DeletedBelow, len(verdict.Broken), verdict.Deleted)
	t.Logf("storm: evictions: %d, pods placed: %d of %d, seconds until the last one: %.1f",
		verdict.Evicted, placed, s.wanting, last.Sub(s.begin).Seconds())
	if stock() {
		return
	}
	framework.Accept(t, verdict.Found, nil)
	is.True(t, verdict.Evicted != 0, "no pod was evicted: the storm has not tested anything")
}
