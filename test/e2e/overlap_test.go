// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// size is the size of a fleet and of its test.
type size struct {
	// nodes is the number of nodes, drained the number of nodes that the three maintenances drain
	// together, pods the number of pods.
	nodes, drained, pods int
	// kills is the number of times that the server is killed, cancellations the number of cancelled
	// drains.
	kills, cancellations int
	// patience is the timeout of one step on a busy machine.
	patience time.Duration
}

var (
	smallSize = size{nodes: 40, drained: 12, pods: 600, kills: 3, cancellations: 2, patience: 5 * time.Minute}
	fullSize  = size{nodes: 200, drained: 60, pods: 6000, kills: 20, cancellations: 5, patience: 30 * time.Minute}
)

// leftRunning has the pod types that a drain keeps, because they have no evacuator yet.
var leftRunning = oracle.Rules{Running: []v1alpha1.PodType{v1alpha1.PodTypeStatic}}

// fleet is a set of nodes with workloads of mixed priority. A user has cordoned one of the nodes.
type fleet struct {
	size

	random          *rand.Rand
	pool, namespace string
	nodes           []string
	foreign         string
}

// workload is one workload of a fleet. share is its share of the pods, in thousandths.
type workload struct {
	name     string
	priority int32
	share    int
	// budget is the percentage of its pods that may be unavailable; 0 means no budget.
	budget int
	kind   string
}

// workloads are the workloads of a fleet besides its DaemonSets. Budgets slow down some of the
// lower waves, so that the judge detects a server that does not wait for their end.
var workloads = []workload{
	{name: "batch", priority: 0, share: 200},
	{name: "web", priority: 0, share: 150, budget: 15},
	{name: "reports", priority: 1000, share: 100},
	{name: "search", priority: 1000, share: 100, budget: 20},
	{name: "shop", priority: 5000, share: 150},
	{name: "carts", priority: 5000, share: 50, budget: 20},
	{name: "database", priority: 10000, share: 100, budget: 20, kind: "StatefulSet"},
	{name: "queue", priority: 50000, share: 100},
	{name: "dns", priority: v1alpha1.SystemClusterCritical, share: 50, budget: 25},
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{size: smallSize, random: framework.Random(t), namespace: cluster.NewNamespace(t)}
	if framework.Full(t) {
		f.size = fullSize
	}
	f.pool, f.nodes = cluster.NewPool(t, f.size.nodes, true)
	begin := time.Now()
	classes := map[int32]string{0: "", v1alpha1.SystemClusterCritical: "system-cluster-critical"}
	for _, name := range []string{"logs", "network"} {
		f.daemonSet(t, name)
	}
	for _, w := range workloads {
		if _, ok := classes[w.priority]; !ok {
			classes[w.priority] = cluster.PriorityClass(t, w.priority)
		}
		f.start(t, w, classes[w.priority])
	}
	f.settle(t)
	for _, w := range workloads {
		if w.budget > 0 {
			cluster.Budget(t, f.namespace, w.name, max(1, f.podsOf(w)*w.budget/100))
		}
	}
	f.foreign = f.nodes[f.random.IntN(len(f.nodes))]
	cluster.MustKubectl(t, "", "cordon", f.foreign)
	t.Logf("%d pods run on %d nodes after %v", f.size.pods, f.size.nodes, time.Since(begin).Round(time.Second))
	return f
}

// settle waits until every workload has exactly its number of pods, and no Deployment has a surge.
// The judge calculates the needed pods of the budgets from this state.
func (f *fleet) settle(t *testing.T) {
	t.Helper()
	want := map[string]int{"logs": len(f.nodes), "network": len(f.nodes)}
	for _, w := range workloads {
		want[w.name] = f.podsOf(w)
	}
	framework.EventuallyWithin(
		t, f.patience, "all pods are ready and no surge is left",
		func(ctx context.Context) (bool, error) {
			ready, err := f.readyPods(ctx, t)
			if err != nil {
				return false, err
			}
			for name, count := range want {
				if ready[name] != count {
					return false, fmt.Errorf("%d pods of %s are ready, want %d", ready[name], name, count)
				}
			}
			deployments, err := cluster.As(t).Kube.AppsV1().Deployments(f.namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			for i := range deployments.Items {
				d := &deployments.Items[i]
				if record, surges := d.Annotations[v1alpha1.AnnotationSurgeRecord]; surges ||
					int(*d.Spec.Replicas) != want[d.Name] {
					return false,
						fmt.Errorf("%s has %d replicas and the record %q, want %d",
							d.Name, *d.Spec.Replicas, record, want[d.Name])
				}
			}
			return true, nil
		},
	)
}

// podsOf returns the number of pods of a workload. The number of pods of the fleet includes two
// pods of DaemonSets on each node.
func (f *fleet) podsOf(w workload) int {
	return (f.size.pods - 2*f.size.nodes) * w.share / 1000
}

func (f *fleet) template(name, class string) (metav1.ObjectMeta, *metav1.LabelSelector, corev1.PodTemplateSpec) {
	labels := map[string]string{"app": name}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: framework.PodSpec(f.pool)}
	template.Spec.PriorityClassName = class
	return metav1.ObjectMeta{Namespace: f.namespace, Name: name}, &metav1.LabelSelector{MatchLabels: labels}, template
}

func (f *fleet) daemonSet(t *testing.T, name string) {
	t.Helper()
	meta, selector, template := f.template(name, "system-node-critical")
	must.Get(cluster.As(t).Kube.AppsV1().DaemonSets(f.namespace).Create(t.Context(),
		&appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}},
		metav1.CreateOptions{}))(t)
}

func (f *fleet) start(t *testing.T, w workload, class string) {
	t.Helper()
	apps := cluster.As(t).Kube.AppsV1()
	meta, selector, template := f.template(w.name, class)
	replicas := int32(f.podsOf(w))
	var err error
	if w.kind == "StatefulSet" {
		_, err = apps.StatefulSets(f.namespace).Create(
			t.Context(),
			&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
				Replicas: &replicas, Selector: selector, Template: template, ServiceName: w.name,
				PodManagementPolicy: appsv1.ParallelPodManagement,
			}},
			metav1.CreateOptions{},
		)
	} else {
		_, err = apps.Deployments(f.namespace).Create(
			t.Context(),
			&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, Selector: selector, Template: template,
			}},
			metav1.CreateOptions{},
		)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// readyPods counts the ready pods by the name of their workload.
func (f *fleet) readyPods(ctx context.Context, t *testing.T) (map[string]int, error) {
	t.Helper()
	list, err := cluster.As(t).Pods(f.namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	ready := map[string]int{}
	for i := range list.Items {
		p := &list.Items[i]
		if p.DeletionTimestamp == nil && oracle.IsReady(p) {
			ready[p.Labels["app"]]++
		}
	}
	return ready, nil
}

// drain is a set of three maintenances with common nodes.
type drain struct {
	nodes []string
	names []string
	// pods is the number of pods that the drain has to evict, without the pods of DaemonSets, which
	// it evicts later.
	pods int
}

// drain creates three maintenances of random nodes, including the node that a user has cordoned.
func (f *fleet) drain(t *testing.T) *drain {
	t.Helper()
	d := &drain{}
	for _, i := range f.random.Perm(len(f.nodes)) {
		if f.nodes[i] != f.foreign && len(d.nodes) < f.drained-1 {
			d.nodes = append(d.nodes, f.nodes[i])
		}
	}
	// Insert the cordoned node in the middle, where two maintenances share nodes.
	d.nodes = slices.Insert(d.nodes, f.drained/2-1, f.foreign)
	pods := must.Get(podsOn(t.Context(), t, d.nodes...))(t)
	d.pods = len(ordinary(pods))
	k := f.drained
	for i, part := range [][]string{d.nodes[:k/2], d.nodes[k/3 : k*5/6], d.nodes[k*2/3:]} {
		plans := [][]v1alpha1.DrainPlanEntry{
			{
				{PodPriority: 1000, PodType: v1alpha1.PodTypeDefault},
				{PodPriority: 10000, PodType: v1alpha1.PodTypeDefault},
			},
			{{PodPriority: 5000, PodType: v1alpha1.PodTypeDefault}},
			nil,
		}
		nm := cluster.Create(
			t,
			framework.Maintenance(f.pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.DrainPlan = plans[i]
				nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, part...)
			}),
		)
		d.names = append(d.names, nm.Name)
	}
	return d
}

// ordinary returns the pods that no DaemonSet owns.
func ordinary(pods []corev1.Pod) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool {
		owner := metav1.GetControllerOf(&p)
		return owner != nil && owner.Kind == "DaemonSet"
	})
}

// waitFor waits until check returns "" for the recorded state.
func waitFor(t *testing.T, recorder *oracle.Recorder, check func(*oracle.View) string) {
	t.Helper()
	patience := smallSize.patience
	if framework.Full(t) {
		patience = fullSize.patience
	}
	framework.Await(t, recorder, patience, check)
}

// finish waits for the end of a drain, completes its maintenances in random order, and calls judge.
// After each completion, it calls between.
func (f *fleet) finish(t *testing.T, recorder *oracle.Recorder, d *drain, between func()) {
	t.Helper()
	waitFor(t, recorder, oracle.Drained(d.names...))
	pods := must.Get(podsOn(t.Context(), t, d.nodes...))(t)
	if len(pods) > 0 {
		t.Errorf("%d pods are on drained nodes, the first is %s", len(pods), pods[0].Name)
	}
	for _, i := range f.random.Perm(len(d.names)) {
		stage(t, d.names[i], v1alpha1.NodeMaintenanceStageComplete)
		between()
	}
	waitFor(t, recorder, oracle.PutBack([]string{f.foreign}, d.names...))
	f.judge(t, recorder, d)
}

// judge fails the test for every violation that the recorder has observed.
func (f *fleet) judge(t *testing.T, recorder *oracle.Recorder, d *drain) {
	t.Helper()
	defer recorder.Stop()
	must.Do(t, recorder.Settle(t.Context()))
	found, err := recorder.Verdict(leftRunning, f.foreign)
	framework.Accept(t, found, err)
	log := must.Get(recorder.Log())(t)
	framework.Accept(t, oracle.Missed(log), nil)
	granted, tried := 0, sets.New[types.UID]()
	for _, call := range log.Calls {
		if call.Evicted() {
			granted++
		}
		if call.Subresource == "eviction" {
			tried.Insert(call.UID)
		}
	}
	evacuated := oracle.Evacuated(log)
	scaledDown := len(evacuated) - len(tried.Intersection(sets.New(evacuated...)))
	// Without observations, the judge would find no violations. A few observations may be missing:
	// an Evacuation can be created and deleted while the watch is interrupted because the server
	// was killed.
	if len(evacuated) < d.pods*9/10 {
		t.Errorf("the judge has observed %d of %d Evacuations whose pods left", len(evacuated), d.pods)
	}
	// Deployments without a budget are scaled up, so that pods are replaced first, and then scaled
	// down.
	is.True(t, scaledDown != 0, "no pod left by scale-down: was no Deployment scaled up?")
	t.Logf("%d pods have left, %d of them by scale-down; %d evictions were granted",
		len(evacuated), scaledDown, granted)
	f.settle(t)
}

// stage sets the stage of a maintenance, and retries while the server does not run.
func stage(t *testing.T, name string, stage v1alpha1.NodeMaintenanceStage) {
	t.Helper()
	framework.Eventually(
		t, fmt.Sprintf("%s has stage %s", name, stage),
		func(ctx context.Context) (bool, error) {
			_, err := cluster.As(t).Maintenances().Patch(ctx, name,
				types.MergePatchType, fmt.Appendf(nil, `{"spec":{"stage":%q}}`, stage), metav1.PatchOptions{})
			return err == nil, err
		},
	)
}

// TestOverlappingMaintenances drains a part of a fleet with three maintenances that share nodes:
// first without faults, then while the server is killed, then with cancellations. Each time a judge
// that reads only the API looks for violations.
func TestOverlappingMaintenances(t *testing.T) {
	f := newFleet(t)
	t.Run("drain their nodes in waves and release them", func(t *testing.T) {
		recorder := cluster.Judge(t, f.pool, f.namespace)
		begin := time.Now()
		d := f.drain(t)
		waitFor(t, recorder, oracle.Drained(d.names...))
		t.Logf("%d pods left %d nodes in %v", d.pods, len(d.nodes), time.Since(begin).Round(100*time.Millisecond))
		f.finish(t, recorder, d, func() {})
	})
	t.Run("have the same outcome when the leader is killed at random moments", func(t *testing.T) {
		f.killLeader(t)
	})
	t.Run("are cancelled at random moments", func(t *testing.T) {
		f.callOff(t)
	})
}

// killLeader repeats the drain until the server was killed often enough.
func (f *fleet) killLeader(t *testing.T) {
	t.Helper()
	for kills := 0; kills < f.kills; {
		recorder := cluster.Judge(t, f.pool, f.namespace)
		d := f.drain(t)
		for kills < f.kills {
			// Kill the server after a random number of further Evacuations, which may be 0. One
			// drain is long enough for most of the kills.
			later := f.random.IntN(max(1, d.pods/f.kills))
			asked := recorder.View().Asked()
			waitFor(t, recorder, func(v *oracle.View) string {
				if oracle.Drained(d.names...)(v) == "" {
					return ""
				}
				return oracle.Asked(asked + later)(v)
			})
			if oracle.Drained(d.names...)(recorder.View()) == "" {
				break
			}
			kills++
			f.kill(t)
		}
		f.finish(t, recorder, d, func() {
			if kills < f.kills && f.random.IntN(3) == 0 {
				kills++
				f.kill(t)
			}
		})
		t.Logf("%d kills so far, %d pods have left %d nodes", kills, d.pods, len(d.nodes))
	}
}

func (f *fleet) kill(t *testing.T) {
	t.Helper()
	cluster.KillServer(t)
	must.Do(t, cluster.Up())
}

// callOff completes or deletes the maintenances before the drain is complete.
func (f *fleet) callOff(t *testing.T) {
	t.Helper()
	for range f.cancellations {
		recorder := cluster.Judge(t, f.pool, f.namespace)
		d := f.drain(t)
		when := f.random.IntN(d.pods)
		waitFor(t, recorder, oracle.Asked(when))
		for _, i := range f.random.Perm(len(d.names)) {
			if f.random.IntN(2) == 0 {
				stage(t, d.names[i], v1alpha1.NodeMaintenanceStageComplete)
			} else if err := cluster.As(t).Maintenances().Delete(t.Context(),
				d.names[i], metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, recorder, oracle.Done(d.names...))
		// A maintenance that is done has withdrawn all Evacuations: none may be left, and no
		// eviction may follow.
		done := time.Now()
		evacuations := must.Get(cluster.As(t).Evacuations(f.namespace).List(t.Context(), metav1.ListOptions{}))(t)
		for i := range evacuations.Items {
			t.Errorf("Evacuation %s is left, with the finalizers %v",
				evacuations.Items[i].Name, evacuations.Items[i].Finalizers)
		}
		waitFor(t, recorder, oracle.PutBack([]string{f.foreign}, d.names...))
		must.Do(t, recorder.Settle(t.Context()))
		found, err := recorder.Verdict(leftRunning, f.foreign)
		framework.Accept(t, found, err)
		evicted := 0
		for _, call := range must.Get(recorder.Log())(t).Calls {
			if call.Evicted() {
				evicted++
			}
			if call.Subresource == "eviction" && call.Received.After(done) {
				t.Errorf("an eviction of pod %s was sent %v after all maintenances had ended",
					call.Name, call.Received.Sub(done))
			}
			if call.Evicted() && call.Answered.After(done) {
				t.Errorf("the eviction of pod %s was granted %v after all maintenances had ended",
					call.Name, call.Answered.Sub(done))
			}
		}
		recorder.Stop()
		t.Logf("cancelled when %d of %d pods had an Evacuation; %d were evicted", when, d.pods, evicted)
		f.settle(t)
	}
}
