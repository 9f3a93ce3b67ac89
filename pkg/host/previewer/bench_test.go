// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package previewer

import (
	"context"
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/forecast"
	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
)

// These are the limits of the largest cluster that Kubernetes supports.
const (
	benchNodes = 5000
	benchPods  = 150_000
	// benchApps is the number of Deployments. Each Deployment has 30 pods and a budget, and each
	// namespace has ten Deployments.
	benchApps = benchPods / 30
)

// benchAllNodes returns the nodes as from the cache of the informer.
var benchAllNodes = func() func(context.Context) ([]*corev1.Node, error) {
	nodes := make([]*corev1.Node, 0, benchNodes)
	for i := range benchNodes {
		nodes = append(nodes, node(benchNode(i), "blue"))
	}
	return func(context.Context) ([]*corev1.Node, error) { return slices.Clone(nodes), nil }
}()

func benchNode(i int) string {
	return fmt.Sprintf("ip-10-%03d-%03d-100.eu-central-1.compute.internal", i/250, i%250)
}
func benchNamespace(app int) string { return fmt.Sprintf("team-%04d-production", app/10) }
func benchApp(app int) string       { return fmt.Sprintf("service-%05d", app) }

func benchSelector(app int) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": benchApp(app)}}
}

func benchBudget(app int) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace(app), Name: benchApp(app)},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: benchSelector(app), MaxUnavailable: ptr.To(intstr.FromString("10%")),
		},
		Status: policyv1.PodDisruptionBudgetStatus{
			DisruptionsAllowed: 3, CurrentHealthy: 30, DesiredHealthy: 27, ExpectedPods: 30,
		},
	}
}

func benchReplicaSet(app int) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: benchNamespace(app), Name: benchApp(app), UID: types.UID("rs-" + benchApp(app)),
			OwnerReferences: build.Owner("apps/v1", "Deployment", benchApp(app), types.UID("d-"+benchApp(app))),
		},
		Spec: appsv1.ReplicaSetSpec{Selector: benchSelector(app)}, Status: appsv1.ReplicaSetStatus{Replicas: 30},
	}
}

func benchDeployment(app int) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: benchNamespace(app), Name: benchApp(app), UID: types.UID("d-" + benchApp(app))},
		Spec:       appsv1.DeploymentSpec{Selector: benchSelector(app)},
	}
}

// benchPod returns a pod with a container, labels and conditions, and with a typical amount of
// fields that the preview does not need. One pod in a hundred has a higher priority.
func benchPod(i int) corev1.Pod {
	app := i % benchApps
	priority := int32(0)
	if i%100 == 0 {
		priority = 2_000_000_000
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: benchNamespace(app), Name: fmt.Sprintf("%s-6b59d9cb88-%05d", benchApp(app), i),
			UID: types.UID(fmt.Sprintf("f5823a89-e03f-4752-b013-%012d", i)),
			Labels: map[string]string{
				"app.kubernetes.io/name": benchApp(app), "app.kubernetes.io/part-of": benchNamespace(app),
				"pod-template-hash": "6b59d9cb88",
			},
			Annotations: map[string]string{"kubectl.kubernetes.io/restartedAt": "2026-11-21T08:00:00Z"},
			OwnerReferences: []metav1.OwnerReference{
				{
					APIVersion: "apps/v1", Kind: "ReplicaSet", Name: benchApp(app),
					UID: types.UID("rs-" + benchApp(app)), Controller: ptr.To(true),
				},
			},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{
					Manager:  "kube-controller-manager",
					FieldsV1: metav1.NewFieldsV1(`{"f:metadata":"` + strings.Repeat("x", 800) + `"}`),
				},
			},
		},
		Spec: corev1.PodSpec{
			NodeName: benchNode(i % benchNodes), Priority: &priority,
			Containers: []corev1.Container{
				{
					Name: "app", Image: "registry.example.com/team/service:v1.2.3",
					Env: []corev1.EnvVar{{Name: "A", Value: strings.Repeat("y", 200)}, {Name: "B", Value: "b"}},
				},
			},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.2.3", Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
			{Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}},
	}
}

// newLargeFixture returns a fixture with the objects of a large cluster in its caches.
func newLargeFixture(b *testing.B) *fixture {
	b.Helper()
	var objects []k8sruntime.Object
	for app := range benchApps {
		objects = append(objects, benchBudget(app), benchReplicaSet(app), benchDeployment(app))
	}
	f := newFixture(b, objects...)
	transform := podcache.NewTransform()
	for i := range benchPods {
		pod := benchPod(i)
		must.Do(b, f.caches.Pods.Store().Add(must.Get(transform(&pod))(b)))
	}
	return f
}

// BenchmarkPreview measures the preview of a maintenance of all nodes of a large cluster: its
// duration, with and without the evacuator of Deployments, the additional memory, and the size of
// the preview.
func BenchmarkPreview(b *testing.B) {
	f := newLargeFixture(b)
	for name, evacuators := range map[string][]string{"Eviction": nil, "Deployments": {v1alpha1.EvacuatorClassDeployment}} {
		b.Run(name, func(b *testing.B) {
			f.evacuators = evacuators
			p := f.previewer()
			p.config.Nodes, p.config.Clock = benchAllNodes, clock.RealClock{}
			nm := maintenance("all", idle, "blue")
			before := heap()
			peak := watchHeap(b)
			var out *v1alpha1.NodeMaintenancePreview
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if out, err = p.Preview(b.Context(), nm); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(peak()-before)/(1<<20), "MiB-peak")
			if out.PodCount != benchPods || out.NodeCount != benchNodes {
				b.Fatalf("%d pods, %d nodes", out.PodCount, out.NodeCount)
			}
			encoded := must.Get(json.Marshal(out))(b)
			b.ReportMetric(float64(len(encoded))/(1<<20), "MiB-JSON")
			b.ReportMetric(float64(out.Size())/(1<<20), "MiB-protobuf")
			b.ReportMetric(kept(b, p, nm), "MiB-kept")
		})
	}
}

// watchHeap returns a function that returns the largest heap since the call of watchHeap, with its
// garbage.
func watchHeap(b *testing.B) func() int64 {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	largest := make(chan int64)
	go func() {
		peak := int64(0)
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
			metrics.Read(sample)
			peak = max(peak, int64(sample[0].Value.Uint64()))
			<-ticker.C
		}
		largest <- peak
	}()
	return func() int64 { cancel(); return <-largest }
}

// kept returns how much additional memory is in use after all objects have been read.
func kept(b *testing.B, p *Previewer, nm *v1alpha1.NodeMaintenance) float64 {
	b.Helper()
	before := heap()
	nodes := must.Get(p.config.Nodes(b.Context()))(b)
	s := &forecast.Situation{Evacuators: p.evacuators}
	must.Do(b, p.choose(b.Context(), s, nm, nil, nodes))
	must.Do(b, p.look(b.Context(), s, nodes, p.config.Caches()))
	after := heap()
	runtime.KeepAlive(s)
	return float64(after-before) / (1 << 20)
}

func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
