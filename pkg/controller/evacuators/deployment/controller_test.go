// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/drain/surge"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/inflight"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// world has a controller and two fake clusters. The test acts as the other controllers.
type world struct {
	*testing.T
	recorder *events.FakeRecorder
	host     *fake.Clientset
	own      *versionedfake.Clientset
	inFlight inflight.Evictions
	webhook  webhook
	asks     func(*v1alpha1.Evacuation) bool
	stop     func()
	c        *Controller
}

// webhook answers the questions whether pods may leave. It refuses the pods for which refuses has
// an error, by name.
type webhook struct {
	eviction.Host
	mu      sync.Mutex
	refuses map[string]error
	asked   []string
}

func (w *webhook) Evict(_ context.Context, asked *policyv1.Eviction) error {
	if !slices.Equal(asked.DeleteOptions.DryRun, []string{metav1.DryRunAll}) {
		panic("the evacuator evicts pod " + asked.Name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, asked.Name)
	return w.refuses[asked.Name]
}

func newWorld(t *testing.T, evacuations []runtime.Object, host ...runtime.Object) *world {
	t.Helper()
	w := newUnstartedWorld(t, evacuations, host...)
	w.run()
	return w
}

func newUnstartedWorld(t *testing.T, evacuations []runtime.Object, host ...runtime.Object) *world {
	t.Helper()
	w := &world{
		T: t, recorder: events.NewFakeRecorder(1000), stop: func() {}, host: fake.NewClientset(host...),
		own: versionedfake.NewClientset(evacuations...),
	}
	informertest.Versioned(t, w.host)
	informertest.Versioned(t, w.own)
	t.Cleanup(func() { w.stop() })
	return w
}

// run starts a new controller on the clusters.
func (w *world) run() {
	w.Helper()
	cluster := must.Get(host.NewCluster(host.Clients{Client: w.host, Maintenance: w.own, Recorder: w.recorder}, 0))(w)
	cluster.InFlight = &w.inFlight
	c := must.Get(New(Config{Cluster: cluster, Selection: selectionOf(w, cluster), Evictions: &w.webhook, Asks: w.asks}))(w)
	w.c = c
	ctx, cancel := context.WithCancel(w.Context())
	watches := informertest.Count(w.host, w.own)
	cluster.Start(ctx)
	watches.Wait(w.T, 0, "nodes", "pods", "deployments", "horizontalpodautoscalers", "poddisruptionbudgets",
		"nodemaintenances", "evacuations")
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx, 2)
	}()
	w.stop = func() {
		cancel()
		<-done
		cluster.Shutdown()
	}
}

// selectionOf returns which maintenances select the nodes of a cluster.
func selectionOf(tb testing.TB, cluster *host.Cluster) *selection.Selection {
	tb.Helper()
	return must.Get(selection.New(cluster.Nodes.Informer(), cluster.NodeMaintenances.Informer(), clock.RealClock{}))(tb)
}

func (w *world) until(what string, condition func() (bool, string)) {
	w.Helper()
	state := ""
	err := wait.PollUntilContextTimeout(
		w.Context(), 2*time.Millisecond, 20*time.Second, true,
		func(context.Context) (bool, error) {
			var done bool
			done, state = condition()
			return done, nil
		},
	)
	if err != nil {
		w.Fatalf("timed out waiting until %s: %s", what, state)
	}
}

func (w *world) deployment() *appsv1.Deployment {
	w.Helper()
	return must.Get(w.host.AppsV1().Deployments(testNamespace).Get(w.Context(), testName, metav1.GetOptions{}))(w)
}

// scaled waits until the Deployment has the given replicas, with or without a record. Then it sets
// the status as the deployment controller does.
func (w *world) scaled(replicas int32, withRecord bool) {
	w.Helper()
	w.until(fmt.Sprintf("the Deployment has %d replicas", replicas), func() (bool, string) {
		d := w.deployment()
		_, ok := d.Annotations[v1alpha1.AnnotationSurgeRecord]
		return surge.Replicas(d) == replicas &&
			ok == withRecord, fmt.Sprintf("%d, annotations %v", surge.Replicas(d), d.Annotations)
	})
	must.Do(w, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		d := w.deployment()
		d.Status.Replicas, d.Status.UpdatedReplicas = replicas, replicas
		_, err := w.host.AppsV1().Deployments(testNamespace).UpdateStatus(w.Context(), d, metav1.UpdateOptions{})
		return err
	}))
}

// reported waits until the message of an Evacuation contains the given words.
func (w *world) reported(pod string, completed bool, words string) {
	w.Helper()
	name := "uid-" + pod + "-" + pod
	w.until(fmt.Sprintf("the Evacuation of %s says %q", pod, words), func() (bool, string) {
		e := must.Get(w.own.MaintenanceV1alpha1().Evacuations(testNamespace).Get(w.Context(), name, metav1.GetOptions{}))(w)
		return e.Status.ActiveEvacuatorCompleted == completed &&
			strings.Contains(e.Status.Message, words), e.Status.Message
	})
}

func (w *world) create(p pod) {
	w.Helper()
	must.Get(w.host.CoreV1().Pods(testNamespace).Create(w.Context(), p.Pod, metav1.CreateOptions{}))(w)
}

func (w *world) remove(name string) {
	w.Helper()
	must.Do(w, w.host.CoreV1().Pods(testNamespace).Delete(w.Context(), name, metav1.DeleteOptions{}))
}

func newReplicaSet() *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: testNamespace, Name: "web-1", UID: "uid-web-1", Labels: podLabels,
			OwnerReferences: build.Owner("apps/v1", "Deployment", testName, testUID),
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: podLabels},
		},
	}
}

func newNode(name string, unschedulable bool) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-node"}, Spec: corev1.NodeSpec{Unschedulable: unschedulable},
	}
}

func newBudget() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: testName},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: podLabels},
		},
		Status: policyv1.PodDisruptionBudgetStatus{ExpectedPods: 1, CurrentHealthy: 1, DesiredHealthy: 1},
	}
}

// on binds a pod to a node.
func on(node string) podMod {
	return func(p *pod) { p.Spec.NodeName = node }
}

// scene returns a pod of a Deployment on a node that is drained, and another node for its
// replacement.
func scene(more ...runtime.Object) (evacuations, host []runtime.Object) {
	leaving := newTestPod("web-0", leaves(ours), on("drained"))
	host = append(
		[]runtime.Object{
			newDeployment(1), newReplicaSet(), leaving.Pod, newNode("drained", true), newNode("good", false),
		},
		more...,
	)
	return []runtime.Object{leaving.evacuation}, host
}

// allows sets the status of the budget as the disruption controller does for healthy pods.
func (w *world) allows(healthy int32) {
	w.Helper()
	b := newBudget()
	b.Status.ExpectedPods, b.Status.CurrentHealthy, b.Status.DisruptionsAllowed = healthy, healthy, healthy-1
	must.Get(w.host.PolicyV1().PodDisruptionBudgets(testNamespace).UpdateStatus(w.Context(), b, metav1.UpdateOptions{}))(w)
}

func TestPodUnderABudgetIsExchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuations, host := scene(newBudget())
		w := newWorld(t, evacuations, host...)
		w.scaled(2, true)
		w.reported("web-0", false, "scaled from 1 to 2")
		w.create(newTestPod("web-1", on("good"), fresh))
		w.reported("web-0", false, "waits until PodDisruptionBudget web allows a disruption")
		w.stop()
		w.run() // the next leader knows only the record
		w.allows(2)
		w.scaled(1, false)
		is.True(t, slices.Contains(w.webhook.asked, "web-0") && !slices.Contains(w.webhook.asked, "web-1"), "asked for %v", w.webhook.asked)
	})
}

// TestPodThatAWebhookRefusesStays removes a pod with a budget whose dry run is refused: the surge
// stays until the pod is evicted.
func TestPodThatAWebhookRefusesStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuations, host := scene(newBudget())
		w := newUnstartedWorld(t, evacuations, host...)
		w.refuse("web-0")
		w.run()
		w.scaled(2, true)
		w.create(newTestPod("web-1", on("good"), fresh))
		w.allows(2)
		w.reported("web-0", true, "The eviction is refused for now: ")
		w.scaled(2, true)
		w.remove("web-0")
		w.scaled(1, false)
	})
}

// refuse makes a webhook refuse the eviction of a pod.
func (w *world) refuse(pod string) {
	w.webhook.refuses = map[string]error{
		pod: apierrors.NewForbidden(corev1.Resource("pods"), pod, errors.New("not today")),
	}
}

func TestPodWithoutABudgetLeavesWithTheScaleDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuations, host := scene()
		w := newWorld(t, evacuations, host...)
		w.scaled(2, true)
		w.create(newTestPod("web-1", on("good"), fresh))
		w.scaled(1, false)
		pods := must.Get(w.host.CoreV1().Pods(testNamespace).List(w.Context(), metav1.ListOptions{}))(w)
		for i := range pods.Items {
			cost, lowered := pods.Items[i].Annotations[corev1.PodDeletionCost]
			if want := pods.Items[i].Name == "web-0"; lowered != want || want && cost != "-2147483647" {
				t.Errorf("the deletion cost of %s is %q", pods.Items[i].Name, cost)
			}
		}
	})
}

func TestDeclines(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "data"},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
	}
	withClaim := func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	}
	for name, tc := range map[string]struct {
		change func(host []runtime.Object) []runtime.Object
		says   string
	}{
		"a claim for one node": {
			change: func(host []runtime.Object) []runtime.Object {
				return append(slices.Replace(host, 0, 1, runtime.Object(newDeployment(1, withClaim))), claim)
			},
			says: "volume claim data",
		},
		"a pod whose Deployment is gone": {
			change: func(host []runtime.Object) []runtime.Object { return host[1:] },
			says:   "no longer belongs to a Deployment",
		},
		"a pod whose ReplicaSet is gone": {
			change: func(host []runtime.Object) []runtime.Object { return host[2:] }, says: "belongs to no Deployment",
		},
		"a pod of an older Deployment": {
			change: func(host []runtime.Object) []runtime.Object {
				return slices.Replace(host, 0, 1,
					runtime.Object(newDeployment(1, func(d *appsv1.Deployment) { d.UID = "newer" })))
			},
			says: "no longer belongs to a Deployment",
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			evacuations, host := scene()
			newWorld(t, evacuations, tc.change(host)...).reported("web-0", true, tc.says)
		})
	}
}

func TestSeveralNodesAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newTestPod("web-0", leaves(ours), on("drained"),
			minOne(3, 3)), newTestPod("web-1", leaves(ours), on("drained"))
		w := newWorld(t, []runtime.Object{first.evacuation, second.evacuation}, newDeployment(2, surging("100%")),
			newReplicaSet(), first.Pod, second.Pod, newBudget(), newNode("drained", true), newNode("good", false))
		w.until("the surge is for both", func() (bool, string) {
			d := w.deployment()
			return surge.Replicas(d) == 4 &&
				strings.Count(d.Annotations[v1alpha1.AnnotationSurgeRecord],
					"uid-web-") == 2, fmt.Sprint(d.Annotations)
		})
		w.scaled(4, true)
		w.create(newTestPod("web-2", on("good"), fresh))
		w.create(newTestPod("web-3", on("good"), fresh))
		w.allows(4)
		w.scaled(2, false)
	})
}

func TestDeploymentThatGoesAwayIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuations, host := scene(newBudget())
		w := newWorld(t, evacuations, host...)
		w.scaled(2, true)
		must.Do(w, w.host.AppsV1().Deployments(testNamespace).Delete(t.Context(), testName, metav1.DeleteOptions{}))
		w.reported("web-0", true, "no longer belongs to a Deployment")
		if _, err := w.host.AppsV1().Deployments(testNamespace).Get(t.Context(), testName,
			metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("got %v, want it gone", err)
		}
	})
}

// drains returns a NodeMaintenance that drains the node "drained" and is not authorized for the
// node "good".
func drains(name, reason string) *v1alpha1.NodeMaintenance {
	selector := build.Named("drained")
	selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, build.Named("good").NodeSelectorTerms...)
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageDrain, Reason: reason, NodeSelector: selector,
		},
		Status: v1alpha1.NodeMaintenanceStatus{NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{
			{
				NodeRef:      v1alpha1.NodeReference{Name: "drained", UID: "uid-node"},
				DrainTargets: []v1alpha1.DrainPlanEntry{{PodType: v1alpha1.PodTypeDefault}},
			},
			{NodeRef: v1alpha1.NodeReference{Name: "good", UID: "uid-node"}},
		}},
	}
}

func TestNodeThatAMaintenanceWasRefusedIsAHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuations, host := scene(newBudget())
		w := newWorld(t, append(evacuations, drains("rack-7", "")), host...)
		w.scaled(2, true)
		w.create(newTestPod("web-1", on("good"), fresh))
		w.allows(2)
		w.scaled(1, false)
	})
}

func TestPurposeIsTheFirstMaintenanceThatDrainsTheNode(t *testing.T) {
	own := make([]runtime.Object, 0, 5)
	for _, name := range []string{"rack-9", "rack-7", "rack-8", "rack-6", "rack-5"} {
		nm := drains(name, "")
		if name < "rack-7" {
			nm.Spec.Stage = v1alpha1.NodeMaintenanceStageCordon
		}
		own = append(own, nm)
	}
	c := newKnowing(t, own, []runtime.Object{newNode("drained", true), newNode("good", false)})
	for range 20 {
		for node, want := range map[string]string{"drained": " for NodeMaintenance rack-7", "good": "", "other": ""} {
			if got := c.drainOf(node).purpose; got != want {
				t.Fatalf("node %s: got %q, want %q", node, got, want)
			}
		}
	}
}

func TestMessagesNameTheMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuations, host := scene(newBudget())
		w := newWorld(t, append(evacuations, drains("rack-8", "later"), drains("rack-7", "Kernel\x1b update")), host...)
		const purpose = " for NodeMaintenance rack-7 (Kernel update)"
		w.scaled(2, true)
		w.reported("web-0", false, "before it leaves"+purpose)
		w.create(newTestPod("web-1", on("good"), fresh))
		w.allows(2)
		w.scaled(1, false)
	})
}

func TestCostThatCannotBeRestoredDoesNotKeepTheSurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, other := newTestPod("web-0", on("good"), cheapest), newTestPod("web-1", on("good"), cheapest)
		w := newUnstartedWorld(t, nil, newDeployment(3, recorded(2, 3, web0)), newReplicaSet(), refused.Pod, other.Pod,
			newNode("good", false))
		var attempts atomic.Int32
		w.host.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.(clienttesting.PatchAction).GetName() != "web-0" {
				return false, nil, nil
			}
			attempts.Add(1)
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "web-0",
				errors.New("a policy refuses it"))
		})
		w.run()
		<-time.After(costPatience)
		w.scaled(2, false)
		w.until("the cost of the other pod is restored", func() (bool, string) {
			p := must.Get(w.host.CoreV1().Pods(testNamespace).Get(t.Context(), "web-1", metav1.GetOptions{}))(w)
			return len(p.Annotations) == 0, fmt.Sprint(p.Annotations)
		})
		tried := attempts.Load()
		<-time.After(time.Hour)
		if now := attempts.Load(); tried == 0 || now != tried {
			t.Errorf("tried it %d times, and %d times when the surge was over", tried, now-tried)
		}
	})
}

// TestScaleThatIsRefusedIsTold: a policy refuses every write of the Deployment. The Evacuation and
// an event about the Deployment report it, and the pod leaves without a surge after the surge
// timeout.
func TestScaleThatIsRefusedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuations, host := scene()
		w := newUnstartedWorld(t, evacuations, host...)
		w.host.PrependReactor("patch", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(appsv1.Resource("deployments"), testName,
				errors.New("a policy refuses it"))
		})
		w.run()
		began := time.Now()
		w.reported("web-0", false,
			"replicas cannot be set to 2: deployments.apps \"web\" is forbidden: a policy refuses it")
		if told := time.Since(began); told > time.Minute {
			t.Errorf("it was told after %s", told)
		}
		err := wait.PollUntilContextTimeout(
			t.Context(), 10*time.Second, 2*protocol.DefaultSurgeTimeout, true,
			func(context.Context) (bool, error) {
				return len(w.recorder.Events) > 1, nil
			},
		)
		must.True(t, err == nil, "the surge was not given up")
		w.reported("web-0", true, "cannot be scaled up: deployments.apps \"web\" is forbidden")
		var sent []string
		for len(w.recorder.Events) > 0 {
			sent = append(sent, strings.Fields(<-w.recorder.Events)[1])
		}
		if want := []string{EventScaleFailed, EventSurgeDeclined}; !slices.Equal(sent, want) {
			t.Errorf("got events %q, want %q", sent, want)
		}
	})
}

func TestReplacedPodHasAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		evacuations, host := scene()
		w := newWorld(t, append(evacuations, drains("rack-7", "Kernel update")), host...)
		w.scaled(2, true)
		w.create(newTestPod("web-1", on("good"), fresh))
		w.scaled(1, false)
		w.until("the pod has an event", func() (bool, string) {
			select {
			case text := <-w.recorder.Events:
				return strings.Contains(text, "Replaced") &&
					strings.Contains(text, "for NodeMaintenance rack-7 (Kernel update)"), text
			default:
				return false, "no event"
			}
		})
	})
}
