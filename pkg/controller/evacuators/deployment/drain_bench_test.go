// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/pdb"
	"haulout.dev/haulout/pkg/drain/surge"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/testing/must"
)

// BenchmarkDrain replaces the pods of a Deployment under one budget, at 20 pods a second, until 600
// have left. It measures the processor time of the handlers and the syncs of the evacuator alone,
// per pod, and counts the syncs and the reports.
func BenchmarkDrain(b *testing.B) {
	const measured = 600
	for _, size := range []struct{ nodes, pods int }{{20, measured}, {375, 5625}} {
		b.Run(fmt.Sprintf("pods=%d", size.pods), func(b *testing.B) {
			var spent time.Duration
			syncs, reports := 0, 0
			for b.Loop() {
				b.StopTimer()
				w := newLargeWorld(b, size.nodes, size.pods)
				b.StartTimer()
				for len(w.leaving) > size.pods-measured {
					w.step()
				}
				b.StopTimer()
				spent, syncs, reports = spent+w.spent, syncs+w.syncs, reports+w.reports
				b.StartTimer()
			}
			n := float64(b.N * measured)
			b.ReportMetric(spent.Seconds()*1000/n, "ms/pod")
			b.ReportMetric(float64(syncs)/float64(b.N), "syncs")
			b.ReportMetric(float64(reports)/n, "reports/pod")
			b.ReportMetric(0, "ns/op")
		})
	}
}

const (
	// perTick is how many pods are evicted in one step of a largeWorld if the budget allows it.
	perTick = 1
	// toStart and toStop are how long a pod takes to become ready, and to stop.
	toStart, toStop = 300 * time.Millisecond, 200 * time.Millisecond
)

// largeWorld is a Deployment whose pods all leave, and the other actors of its cluster. It writes
// their objects directly into the caches of the controller, and calls its handlers.
type largeWorld struct {
	tb        testing.TB
	c         *Controller
	clock     *clocktesting.FakeClock
	key       types.NamespacedName
	transform cache.TransformFunc
	// all are the pods that exist, by name. leaving are the original ones that have not left.
	all, leaving map[string]*corev1.Pod
	budget       *policyv1.PodDisruptionBudget
	// starting and stopping are pods in the order in which they become ready, or are deleted.
	starting, stopping []timedPod
	// evictable are the pods whose class is eviction, in their order.
	evictable []string
	ready     int
	created   int
	version   int

	// tick is the time between two steps.
	tick time.Duration

	spent          time.Duration
	syncs, reports int
	// told counts the reports to each pod without those of completion.
	told map[string]int
}

type timedPod struct {
	name string
	at   time.Time
}

func newLargeWorld(tb testing.TB, nodes, pods int) *largeWorld {
	tb.Helper()
	w := &largeWorld{
		tb: tb, clock: clocktesting.NewFakeClock(start), transform: podcache.NewTransform(),
		key: types.NamespacedName{Namespace: testNamespace, Name: testName},
		all: map[string]*corev1.Pod{}, leaving: map[string]*corev1.Pod{},
		tick: 50 * time.Millisecond, told: map[string]int{},
	}
	objects := []runtime.Object{newReplicaSet(), newNode("good", false), newDeployment(int32(pods))}
	for i := range nodes {
		objects = append(objects, newNode(fmt.Sprintf("drained-%03d", i), true))
	}
	client, own := fake.NewClientset(objects...), versionedfake.NewClientset()
	client.PrependReactor("patch", "deployments", w.scale)
	client.PrependReactor("get", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		d, _ := w.c.latestDeployments.Get(w.key.String())
		return true, d, nil
	})
	own.PrependReactor("update", "evacuations", w.report)
	cluster := must.Get(host.NewCluster(host.Clients{Client: client, Maintenance: own, Recorder: &events.FakeRecorder{}}, 0))(tb)
	w.c = must.Get(New(Config{
		Cluster: cluster, Selection: selectionOf(tb, cluster), Clock: w.clock, EvacuatorStartDeadline: 5 * time.Minute,
	}))(tb)
	w.c.Start(tb.Context())
	cache.WaitForCacheSync(tb.Context().Done(), w.c.synced...)
	w.c.servingSince.Store(ptr.To(start.Add(-time.Hour)))
	for i := range pods {
		p := newTestPod(fmt.Sprintf("web-5d4f8c9b7-%05d", i), leaves(ours), func(p *pod) {
			p.Spec.NodeName = fmt.Sprintf("drained-%03d", i%nodes)
		})
		w.all[p.Name], w.leaving[p.Name] = p.Pod, p.Pod
		w.storePod(p.Pod)
		w.storeEvacuation(p.evacuation)
	}
	w.ready = pods
	w.budget = newBudget()
	w.budget.Spec.MinAvailable, w.budget.Spec.MaxUnavailable = nil, percent("1%")
	w.updateBudget()
	return w
}

// do calls the controller, and counts the processor time that it takes.
func (w *largeWorld) do(call func()) {
	began := processorTime()
	call()
	w.spent += processorTime() - began
}

func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func (w *largeWorld) nextVersion() string {
	w.version++
	return fmt.Sprint(1000 + w.version)
}

func (w *largeWorld) storePod(p *corev1.Pod) {
	packed := must.Get(w.transform(p.DeepCopy()))(w.tb)
	must.Do(w.tb, w.c.Pods.Store().Update(packed))
}

// podChanged stores a new state of a pod, and sends the event.
func (w *largeWorld) podChanged(p *corev1.Pod) {
	w.all[p.Name] = p
	w.storePod(p)
	w.do(func() { w.c.podChanged(p) })
}

func (w *largeWorld) storeEvacuation(e *v1alpha1.Evacuation) {
	must.Do(w.tb, w.c.Evacuations.Informer().GetStore().Update(e))
}

func (w *largeWorld) evacuationChanged(e *v1alpha1.Evacuation) {
	w.storeEvacuation(e)
	w.do(func() { w.c.evacuationChanged(e) })
}

// report stores a status that the evacuator writes. A completed pod may be evicted then.
func (w *largeWorld) report(action clienttesting.Action) (bool, runtime.Object, error) {
	e := action.(clienttesting.UpdateAction).GetObject().(*v1alpha1.Evacuation)
	w.reports++
	if e.Status.ActiveEvacuatorCompleted {
		e = e.DeepCopy()
		e.Status.ActiveEvacuatorClass, e.Status.ActiveEvacuatorCompleted = lanes, false
		e.Status.ActiveEvacuatorSince = &metav1.Time{Time: w.clock.Now()}
		w.evictable = append(w.evictable, e.Spec.PodRef.Name)
	} else {
		w.told[e.Spec.PodRef.Name]++
	}
	w.storeEvacuation(e)
	w.c.evacuationChanged(e)
	return true, e, nil
}

// scale applies a patch of the Deployment.
func (w *largeWorld) scale(action clienttesting.Action) (bool, runtime.Object, error) {
	var patch struct {
		Metadata struct{ Annotations map[string]*string }
		Spec     struct{ Replicas *int32 }
	}
	must.Do(w.tb, json.Unmarshal(action.(clienttesting.PatchAction).GetPatch(), &patch))
	return true, w.deploymentChanged(func(d *appsv1.Deployment) {
		if d.Annotations == nil {
			d.Annotations = map[string]string{}
		}
		for key, value := range patch.Metadata.Annotations {
			if delete(d.Annotations, key); value != nil {
				d.Annotations[key] = *value
			}
		}
		if patch.Spec.Replicas != nil {
			d.Spec.Replicas = patch.Spec.Replicas
			d.Generation++
		}
	}), nil
}

func (w *largeWorld) deployment() *appsv1.Deployment {
	object, _, err := w.c.Deployments.Informer().GetStore().GetByKey(w.key.String())
	must.Do(w.tb, err)
	return object.(*appsv1.Deployment)
}

func (w *largeWorld) deploymentChanged(mod func(*appsv1.Deployment)) *appsv1.Deployment {
	d := w.deployment().DeepCopy()
	mod(d)
	d.ResourceVersion = w.nextVersion()
	must.Do(w.tb, w.c.Deployments.Informer().GetStore().Update(d))
	w.c.deploymentChanged(nil, d)
	return d
}

func (w *largeWorld) updateBudget() {
	before, expected := w.budget, surge.Replicas(w.deployment())
	w.budget = w.budget.DeepCopy()
	status := &w.budget.Status
	status.ObservedGeneration, status.ExpectedPods, status.CurrentHealthy = w.budget.Generation, expected, int32(w.ready)
	status.DesiredHealthy = pdb.DesiredHealthy(w.budget, expected)
	status.DisruptionsAllowed = max(0, status.CurrentHealthy-status.DesiredHealthy)
	w.budget.ResourceVersion = w.nextVersion()
	w.do(func() { w.c.budgetChanged(before, w.budget) })
}

// step lets one tick pass.
func (w *largeWorld) step() {
	w.clock.Step(w.tick)
	now := w.clock.Now()
	w.stop(now)
	w.replace(now)
	for range perTick {
		w.evict(now)
	}
	w.updateBudget()
	if now.Before(w.c.known.get(w.key).nextSync) {
		return
	}
	w.syncs++
	w.do(func() { must.Do(w.tb, w.c.syncDeployment(w.tb.Context(), w.key)) })
}

// stop deletes the pods that have stopped, and completes their Evacuations.
func (w *largeWorld) stop(now time.Time) {
	for ; len(w.stopping) > 0 && !now.Before(w.stopping[0].at); w.stopping = w.stopping[1:] {
		p := w.all[w.stopping[0].name]
		delete(w.all, p.Name)
		delete(w.leaving, p.Name)
		must.Do(w.tb, w.c.Pods.Store().Delete(p))
		w.do(func() { w.c.podChanged(p) })
		e := must.Get(w.c.evacuationLister.Evacuations(p.Namespace).Get(protocol.CanonicalName(p.Name, p.UID)))(w.tb).DeepCopy()
		e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: "Evacuated"}}
		w.evacuationChanged(e)
	}
}

// replace creates the pods that are missing, and makes created pods ready.
func (w *largeWorld) replace(now time.Time) {
	for ; len(w.starting) > 0 && !now.Before(w.starting[0].at); w.starting = w.starting[1:] {
		p := w.all[w.starting[0].name].DeepCopy()
		p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = corev1.ConditionTrue, metav1.NewTime(now)
		w.ready++
		w.podChanged(p)
	}
	want := int(surge.Replicas(w.deployment()))
	for n := len(w.all) - len(w.stopping); n < want; n++ {
		w.created++
		p := newTestPod(fmt.Sprintf("web-5d4f8c9b7-s%05d", w.created), unready, func(p *pod) {
			p.CreationTimestamp, p.Spec.NodeName = metav1.NewTime(now), ""
		}).Pod
		w.podChanged(p)
		p = p.DeepCopy()
		p.Spec.NodeName = "good"
		w.podChanged(p)
		w.starting = append(w.starting, timedPod{p.Name, now.Add(toStart)})
	}
	if status := w.deployment().Status; int(status.Replicas) != want {
		w.deploymentChanged(func(d *appsv1.Deployment) {
			d.Status.ObservedGeneration, d.Status.Replicas, d.Status.UpdatedReplicas = d.Generation, int32(want), int32(want)
		})
	}
}

// evict evicts a pod if the budget allows it.
func (w *largeWorld) evict(now time.Time) {
	if len(w.evictable) == 0 || w.ready-1 < int(w.budget.Status.DesiredHealthy) {
		return
	}
	p := w.all[w.evictable[0]].DeepCopy()
	w.evictable = w.evictable[1:]
	p.DeletionTimestamp = &metav1.Time{Time: now}
	w.ready--
	w.stopping = append(w.stopping, timedPod{p.Name, now.Add(toStop)})
	w.podChanged(p)
}
