// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	hauloutfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/testing/build"
)

// now is the current time in these tests.
var now = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

func before(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

// buffer can be read while another goroutine writes it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns the text that was written so far.
func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// world is a cluster with the environment of the plugin.
type world struct {
	*environment
	kube     *kubefake.Clientset
	haulout  *hauloutfake.Clientset
	openAPI  *openapitest.FakeClient
	out, err *buffer
	// denied are the rights that the user does not have: verb and resource.
	denied sets.Set[string]
}

// newWorld returns a cluster of five nodes with the given objects.
func newWorld(t *testing.T, stdin string, objects ...runtime.Object) *world {
	t.Helper()
	w := &world{out: &buffer{}, err: &buffer{}, denied: sets.New[string](), openAPI: openapitest.NewFakeClient()}
	w.openAPI.PathsMap["apis/"+v1alpha1.SchemeGroupVersion.String()] = openapitest.FakeGroupVersion{
		GVSpec: []byte(`{"openapi":"3.0.0","info":{"title":"Haulout","version":"v1.2.3"}}`),
	}
	kubeObjects := []runtime.Object{}
	hauloutObjects := []runtime.Object{}
	for _, object := range objects {
		switch object.(type) {
		case *v1alpha1.NodeMaintenance, *v1alpha1.Evacuation:
			hauloutObjects = append(hauloutObjects, object)
		default:
			kubeObjects = append(kubeObjects, object)
		}
	}
	for i := 1; i <= 5; i++ {
		labels := map[string]string{"pool": "blue", "kubernetes.io/os": "linux"}
		if i < 3 {
			labels["pool"] = "green"
		}
		if i == 1 {
			labels["node-role.kubernetes.io/control-plane"] = ""
		}
		kubeObjects = append(kubeObjects, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%03d", i), Labels: labels},
			Spec:       corev1.NodeSpec{Unschedulable: i >= 3},
		})
	}
	w.kube, w.haulout = kubefake.NewClientset(kubeObjects...), hauloutfake.NewClientset(hauloutObjects...)
	w.haulout.PrependReactor(
		"get", "nodemaintenances/preview",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			name := action.(clienttesting.GetAction).GetName()
			if _, err := w.haulout.Tracker().Get(v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances"), "",
				name); err != nil {
				return true, nil, apierrors.NewNotFound(v1alpha1.Resource("nodemaintenances"), name)
			}
			return true, newPreview(name), nil
		},
	)
	w.kube.PrependReactor(
		"create", "selfsubjectaccessreviews",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
			asked := review.Spec.ResourceAttributes
			review.Status.Allowed = !w.denied.Has(asked.Verb + " " + asked.Resource)
			return true, review, nil
		},
	)
	// carryOut sets the status of a new maintenance as if the server had completed all work.
	carryOut := func(nm *v1alpha1.NodeMaintenance) {
		nm.UID = types.UID("uid-of-" + nm.Name)
		if nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain {
			nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{
				{NodeRef: v1alpha1.NodeReference{Name: "node-005"}, DrainMessage: "Drained", DrainTargets: targets},
			}
			nm.Status.Conditions = []metav1.Condition{
				{
					Type: v1alpha1.ConditionDrained, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonDrainComplete,
					Message: "All pods have left 1 node",
				},
			}
		}
	}
	w.haulout.PrependReactor(
		"create", "nodemaintenances",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			create := action.(clienttesting.CreateActionImpl)
			if nm := create.Object.(*v1alpha1.NodeMaintenance); len(create.CreateOptions.DryRun) == 0 {
				carryOut(nm)
			} else {
				return true, nm, nil
			}
			return false, nil, nil
		},
	)
	w.environment = &environment{
		IOStreams: genericiooptions.IOStreams{In: bytes.NewBufferString(stdin), Out: w.out, ErrOut: w.err},
		flags:     genericclioptions.NewConfigFlags(true),
		connect: func() (clients, error) {
			return clients{kube: w.kube, haulout: w.haulout, openAPI: openapi.ToClientWithContext(w.openAPI)}, nil
		},
		now: func() time.Time { return now }, suffix: func() string { return "x7k2p" },
		interactive: func() bool { return false },
		screen:      func(out io.Writer) *screen.Screen { return screen.New(out, func(string) string { return "" }) },
	}
	return w
}

var (
	targets = []v1alpha1.DrainPlanEntry{{PodType: v1alpha1.PodTypeDefault, PodPriority: 1000000000}}
	plan    = []v1alpha1.DrainPlanEntry{
		{PodType: v1alpha1.PodTypeDefault, PodPriority: 1000000000},
		{PodType: v1alpha1.PodTypeDefault, PodPriority: v1alpha1.SystemClusterCritical},
		{PodType: v1alpha1.PodTypeDaemonSet, PodPriority: v1alpha1.SystemNodeCritical},
	}
)

// draining returns a maintenance that has drained two nodes for a minute and a half, and is blocked
// on one of them.
func draining() *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{
			Name: "kernel-update", UID: "uid-1", Generation: 2, CreationTimestamp: before(10 * time.Minute),
			Finalizers: []string{v1alpha1.FinalizerMaintenanceCompletion},
		},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{
					MatchFields: []corev1.NodeSelectorRequirement{
						{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-003"}},
					},
				},
				{
					MatchFields: []corev1.NodeSelectorRequirement{
						{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node-004"}},
					},
				},
			}},
			Stage: v1alpha1.NodeMaintenanceStageDrain, DrainPlan: plan, Reason: "new kernel for the blue pool",
			RequestedBy: &authenticationv1.UserInfo{Username: "alice"},
		},
		Status: v1alpha1.NodeMaintenanceStatus{
			ObservedGeneration: 2,
			StageStatuses: []v1alpha1.StageStatus{
				{Name: v1alpha1.NodeMaintenanceStageIdle, StartTimestamp: new(before(10 * time.Minute))},
				{Name: v1alpha1.NodeMaintenanceStageCordon, StartTimestamp: new(before(90 * time.Second))},
				{Name: v1alpha1.NodeMaintenanceStageDrain, StartTimestamp: new(before(90 * time.Second))},
			},
			NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{
				{
					NodeRef: v1alpha1.NodeReference{Name: "node-003", UID: "n3"}, DrainTargets: targets,
					DrainMessage: "Evacuating", PodsPendingEvacuation: 2, PodsEvacuating: 4, PodsKept: 1, PodsPeak: 9,
				},
				{
					NodeRef: v1alpha1.NodeReference{Name: "node-004", UID: "n4"}, DrainTargets: targets,
					DrainMessage: "Evacuating", PodsPendingEvacuation: 1, PodsEvacuating: 5, PodsBlocked: 3,
					PodsKept: 1, PodsPeak: 7,
				},
			},
			Waves: []v1alpha1.NodeMaintenanceWave{
				{Entry: 0, PodsPeak: 13, PodsLeft: 9, StartTime: new(before(90 * time.Second))}, {Entry: 1, PodsPeak: 3, PodsLeft: 3},
			},
			Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionDrained, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDrainInProgress,
				LastTransitionTime: before(90 * time.Second), Message: "12 pods left, 9 of them evacuating, 3 blocked",
			}},
		},
	}
}

// long returns the maintenance of a drain that began so long ago that the Evacuations of most of
// its pods are deleted.
func long() *v1alpha1.NodeMaintenance {
	nm := draining()
	for i := range nm.Status.StageStatuses {
		nm.Status.StageStatuses[i].StartTimestamp = new(before(3 * time.Hour))
	}
	nm.Status.NodeStatuses[0].PodsPeak, nm.Status.NodeStatuses[1].PodsPeak = 30, 60
	nm.Status.Waves[0].PodsPeak = 87
	return nm
}

// cordon returns a maintenance in stage Cordon.
func cordon() *v1alpha1.NodeMaintenance {
	nm := draining()
	nm.Name, nm.UID, nm.Spec.Reason = "zone-a", "uid-2", ""
	nm.Spec.Stage, nm.Spec.NodeSelector = v1alpha1.NodeMaintenanceStageCordon, nm.Spec.NodeSelector.DeepCopy()
	nm.Spec.NodeSelector.NodeSelectorTerms = nm.Spec.NodeSelector.NodeSelectorTerms[:1]
	nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Values = []string{"node-005"}
	nm.Status.StageStatuses = []v1alpha1.StageStatus{
		{Name: v1alpha1.NodeMaintenanceStageCordon, StartTimestamp: new(before(3 * time.Hour))},
	}
	nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "node-005"}}}
	nm.Status.Conditions = nil
	return nm
}

// complete returns a maintenance that has ended.
func complete() *v1alpha1.NodeMaintenance {
	nm := draining()
	nm.Name, nm.UID, nm.Spec.Reason, nm.Finalizers = "memory", "uid-3", "replace memory", nil
	nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete
	nm.Status.StageStatuses = append(nm.Status.StageStatuses, v1alpha1.StageStatus{
		Name: v1alpha1.NodeMaintenanceStageComplete, StartTimestamp: new(before(30 * time.Second)),
	})
	nm.Status.NodeStatuses, nm.Status.Nodes, nm.Status.PodsGone = nil, 2, 16
	nm.Status.Waves = []v1alpha1.NodeMaintenanceWave{
		{Entry: 0, PodsPeak: 13, StartTime: new(before(90 * time.Second)), EndTime: new(before(50 * time.Second))},
		{Entry: 1, PodsPeak: 3, StartTime: new(before(50 * time.Second)), EndTime: new(before(40 * time.Second))},
	}
	nm.Status.Conditions = nil
	return nm
}

// evacuation returns an Evacuation of a running pod, with modifications.
func evacuation(namespace, pod, node string, modify ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	return build.With(&v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "uid-" + pod, CreationTimestamp: before(80 * time.Second),
			Finalizers: []string{v1alpha1.FinalizerInstigatorNodeMaintenance},
		},
		Spec: v1alpha1.EvacuationSpec{
			PodRef: v1alpha1.PodReference{Name: pod, UID: types.UID(namespace + pod)}, NodeName: node,
		},
		Status: v1alpha1.EvacuationStatus{ActiveEvacuatorClass: v1alpha1.EvacuatorClassEviction},
	}, modify...)
}

// byHand adds the request of a user.
func byHand(e *v1alpha1.Evacuation) {
	e.Finalizers = append(e.Finalizers, protocol.FinalizerInstigatorManual)
}

func blocked(reason, message string, since time.Duration) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) {
		e.Status.Conditions = append(e.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: reason, Message: message,
			LastTransitionTime: before(since),
		})
	}
}

func gone(since time.Duration) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) {
		e.Status.Conditions = append(e.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPodDeleted,
			LastTransitionTime: before(since),
		})
	}
}

const budgetMessage = "PodDisruptionBudget checkout allows no disruption: 3 of 4 pods are healthy and 4 must be. " +
	"The pod leaves when more pods of the budget are healthy, or the budget requires fewer."

// evacuations returns the Evacuations for the maintenance that draining returns, and one Evacuation
// on another node.
func evacuations() []runtime.Object {
	return []runtime.Object{
		evacuation("shop", "web-1", "node-003", gone(80*time.Second)),
		evacuation("shop", "web-2", "node-003", gone(40*time.Second)),
		evacuation("shop", "web-3", "node-003", gone(20*time.Second)),
		evacuation("shop", "web-4", "node-004", gone(10*time.Second)), evacuation("shop", "web-5", "node-003"),
		evacuation("shop", "web-6", "node-003"), evacuation("shop", "web-7", "node-003"),
		evacuation("shop", "web-8", "node-003"), evacuation("shop", "web-9", "node-004"),
		evacuation("shop", "web-10", "node-004"),
		evacuation("shop", "checkout-a", "node-004",
			blocked(v1alpha1.ReasonPodDisruptionBudget, budgetMessage, 70*time.Second), byHand),
		evacuation("shop", "checkout-b", "node-004",
			blocked(v1alpha1.ReasonPodDisruptionBudget, budgetMessage, 60*time.Second)),
		evacuation("db", "postgres-0", "node-004", blocked(v1alpha1.ReasonPodFinalizer,
			"The pod should have been gone at 2026-11-21T09:59:30Z and is held by the finalizers "+
				"example.com/backup. Check the controllers that added them.",
			30*time.Second)),
		evacuation("batch", "job-7", "node-001", blocked(v1alpha1.ReasonNodeUnreachable,
			"The kubelet of node node-001 does not answer, so the pod may still run.", 2*time.Hour)),
	}
}

// active sets an active evacuator whose last heartbeat was the given time ago. Without a message it
// became active at that time and has not reported since.
func active(class, message string, since time.Duration) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) {
		e.Spec.Evacuators = []v1alpha1.Evacuator{{EvacuatorClass: class, Priority: 20000}}
		if class != v1alpha1.EvacuatorClassDeployment {
			e.Spec.Evacuators = append(e.Spec.Evacuators, v1alpha1.Evacuator{
				EvacuatorClass: v1alpha1.EvacuatorClassDeployment, Priority: 10000,
				Role: v1alpha1.EvacuatorRoleController,
			})
		}
		e.Status.ActiveEvacuatorClass = class
		if message == "" {
			e.Status.Message, e.Status.ActiveEvacuatorSince = protocol.TurnMessage(class,
				"it is the first evacuator"), new(before(since))
			return
		}
		e.Status.Message = message
		e.Status.ActiveEvacuatorSince, e.Status.EvacuationProgressTimestamp = new(before(
			since+10*time.Second,
		)), new(before(since))
	}
}

// waiting returns Evacuations for the maintenance that draining returns. They wait for their
// evacuators.
func waiting() []runtime.Object {
	const (
		surge = "Deployment cart is scaled from 2 to 4, so that another replica takes the place of the pod before " +
			"it leaves: 0 of 2 are available; " +
			"surge pod cart-x is Pending: 0/20 nodes are available."
		flush = "flush.example.com"
	)
	return []runtime.Object{
		evacuation("shop", "cart-1", "node-003", active(v1alpha1.EvacuatorClassDeployment, surge, 25*time.Second)),
		evacuation("shop", "cart-2", "node-004", active(v1alpha1.EvacuatorClassDeployment, surge, 24*time.Second)),
		evacuation("db", "cache-0", "node-003", active(flush, "", 40*time.Second)),
		evacuation("db", "cache-1", "node-004", active(flush, "", 5*time.Second)),
	}
}

// stopping returns two Evacuations for the maintenance that draining returns. Their pods are within
// their grace period: one pod was evicted, the other leaves by scale-down.
func stopping() []runtime.Object {
	within := func(until string) func(*v1alpha1.Evacuation) {
		return func(e *v1alpha1.Evacuation) {
			blocked(v1alpha1.ReasonPodStopping, "The pod is stopping until "+until+", the end of its grace period.", 30*time.Second)(e)
			e.Status.Conditions[len(e.Status.Conditions)-1].Status = metav1.ConditionFalse
		}
	}
	return []runtime.Object{
		evacuation("shop", "worker-1", "node-003", within("2026-11-21T11:59:30Z")),
		evacuation("shop", "worker-2", "node-004", active(v1alpha1.EvacuatorClassDeployment, "The replacement is available.", time.Minute),
			within("2026-11-21T11:59:31Z")),
	}
}

// turns returns two Evacuations for the maintenance that draining returns. Their pods may be
// evicted; one of them waits until other pods of its Deployment are available.
func turns() []runtime.Object {
	waits := func(e *v1alpha1.Evacuation) {
		blocked(v1alpha1.ReasonPodWaits, "The pod waits for other pods of Deployment web to be available: no PodDisruptionBudget "+
			"protects them, so at most 1 of 2 may be missing.", 2*time.Minute)(e)
		e.Status.Conditions[len(e.Status.Conditions)-1].Status = metav1.ConditionFalse
	}
	return []runtime.Object{evacuation("shop", "web-20", "node-003", waits), evacuation("shop", "web-21", "node-003")}
}

// appDown returns a Deployment whose only pod has left and has no ready replacement, and another
// Deployment that is ready.
func appDown() []runtime.Object {
	objects := []runtime.Object{draining()}
	for app, ready := range map[string]int32{"single": 0, "other": 1} {
		labels := map[string]string{"app": app}
		objects = append(objects,
			&appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: app},
				Spec:       appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}},
				Status:     appsv1.DeploymentStatus{ReadyReplicas: ready},
			},
			evacuation("shop", app+"-1", "node-003", gone(80*time.Second), func(e *v1alpha1.Evacuation) { e.Labels = labels }))
	}
	return objects
}

// again returns the Evacuations of an app whose pods tolerate the taint of the drain. The pods are
// recreated on the node and leave it again.
func again() []runtime.Object {
	app := func(e *v1alpha1.Evacuation) { e.Labels = map[string]string{"app": "free"} }
	created := func(d time.Duration) func(*v1alpha1.Evacuation) {
		return func(e *v1alpha1.Evacuation) { e.CreationTimestamp = before(d) }
	}
	objects := []runtime.Object{evacuation("shop", "free-0", "node-003", app, created(80*time.Second), gone(60*time.Second))}
	for i := 1; i <= 20; i++ {
		objects = append(objects, evacuation("shop", fmt.Sprintf("free-%d", i), "node-003", app,
			created(time.Duration(60-2*i)*time.Second), gone(time.Duration(59-2*i)*time.Second)))
	}
	return objects
}

func newPreview(name string) *v1alpha1.NodeMaintenancePreview {
	pods := func(names ...string) []v1alpha1.PreviewPod {
		var out []v1alpha1.PreviewPod
		for _, n := range names {
			out = append(out, v1alpha1.PreviewPod{
				Name: n, EvacuatorClasses: []string{v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassEviction},
			})
		}
		return out
	}
	checkout := pods("checkout-a", "checkout-b")
	checkout[0].Blockers, checkout[1].Blockers = []string{v1alpha1.ReasonPodDisruptionBudget}, []string{
		v1alpha1.ReasonPodDisruptionBudget,
	}
	bare := []v1alpha1.PreviewPod{
		{
			Name: "tool", EvacuatorClasses: []string{v1alpha1.EvacuatorClassEviction},
			Blockers: []string{v1alpha1.ReasonNoController}, Terminating: true,
		},
	}
	return &v1alpha1.NodeMaintenancePreview{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Timestamp: metav1.NewTime(now),
		Stage: v1alpha1.NodeMaintenanceStageDrain, PodCount: 12, PodsKeptCount: 2, NodeCount: 2,
		Waves: []v1alpha1.PreviewWave{
			{
				Index: 0, PodType: v1alpha1.PodTypeDefault, PodPriority: 1000000000, PodCount: 9, PodsAsked: 9,
				NodeCount: 2, PodsOmitted: 4,
				Evacuators: []v1alpha1.PreviewEvacuator{
					{EvacuatorClass: v1alpha1.EvacuatorClassDeployment, PodCount: 8},
					{EvacuatorClass: v1alpha1.EvacuatorClassEviction, PodCount: 1},
				},
				Nodes: []v1alpha1.PreviewWaveNode{
					{
						Name: "node-003", PodCount: 3,
						Namespaces: []v1alpha1.PreviewWaveNamespace{
							{Name: "ops", Pods: bare}, {Name: "shop", Pods: pods("web-5", "web-6")},
						},
					},
					{
						Name: "node-004", PodCount: 2,
						Namespaces: []v1alpha1.PreviewWaveNamespace{{Name: "shop", Pods: checkout}},
					},
				},
			},
			{
				Index: 1, PodType: v1alpha1.PodTypeDefault, PodPriority: v1alpha1.SystemClusterCritical, PodCount: 3,
				NodeCount:  1,
				Evacuators: []v1alpha1.PreviewEvacuator{{EvacuatorClass: v1alpha1.EvacuatorClassEviction, PodCount: 3}},
				Nodes: []v1alpha1.PreviewWaveNode{
					{
						Name: "node-003", PodCount: 3,
						Namespaces: []v1alpha1.PreviewWaveNamespace{{Name: "kube-system", Pods: []v1alpha1.PreviewPod{
							{Name: "dns-1", EvacuatorClasses: []string{v1alpha1.EvacuatorClassEviction}},
							{Name: "dns-2", EvacuatorClasses: []string{v1alpha1.EvacuatorClassEviction}},
							{Name: "dns-3"},
						}}},
					},
				},
			},
		},
		Blockers: []v1alpha1.PreviewBlocker{
			{
				Effect: v1alpha1.PreviewEffectNever, Reason: v1alpha1.ReasonPodDisruptionBudget, PodCount: 2,
				Message: "PodDisruptionBudget checkout never allows an eviction (maxUnavailable 0) and cannot open by itself. " +
					"The owner of the app can change it (kubectl describe pdb checkout -n shop), or set the annotation maintenance.haulout.dev/surge: Always on the Deployment: unless an " +
					"autoscaler scales it, its pods are then replaced before they leave. Or remove the node from the selector " +
					"of the maintenance.",
				Pods: []v1alpha1.PreviewPodReference{
					{Namespace: "shop", Name: "checkout-a", Node: "node-004"},
					{Namespace: "shop", Name: "checkout-b", Node: "node-004"},
				},
			},
			{
				Effect: v1alpha1.PreviewEffectLost, Reason: v1alpha1.ReasonNoController, PodCount: 1,
				Message: "No controller owns the pod, so it is not recreated.",
				Pods:    []v1alpha1.PreviewPodReference{{Namespace: "ops", Name: "tool", Node: "node-003"}},
			},
			{
				Effect: v1alpha1.PreviewEffectDelayed, Reason: v1alpha1.ReasonPodDisruptionBudget, PodCount: 3,
				Rounds:  3,
				Budgets: []v1alpha1.PreviewBudget{{Namespace: "kube-system", Name: "dns", DisruptionsAllowed: 1}},
				Message: "PodDisruptionBudget dns allows 1 of these 3 pods at a time, so they leave in 3 groups, " +
					"each when the replacements of the previous group are ready.",
				Pods: []v1alpha1.PreviewPodReference{{Namespace: "kube-system", Name: "dns-1", Node: "node-003"}},
			},
		},
		PodsKept: []v1alpha1.PreviewPodsKept{
			{Reason: "DaemonSet pod", PodCount: 2, Pods: []v1alpha1.PreviewPodReference{
				{Namespace: "kube-system", Name: "logs-1", Node: "node-003"},
				{Namespace: "kube-system", Name: "logs-2", Node: "node-004"},
			}},
		},
		Maintenances: []v1alpha1.PreviewMaintenance{
			{Name: "zone-a", Stage: v1alpha1.NodeMaintenanceStageCordon, NodeCount: 1},
		},
		Nodes: []v1alpha1.PreviewNode{
			{Name: "node-003", PodCount: 6, PodsKept: 1}, {Name: "node-004", PodCount: 6, PodsKept: 1},
		},
	}
}

func event(name, reason, kind, object, note string, at time.Duration, modify ...func(*eventsv1.Event)) *eventsv1.Event {
	e := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		EventTime:  metav1.NewMicroTime(now.Add(-at)), Reason: reason, Note: note, Type: corev1.EventTypeNormal,
		Regarding: corev1.ObjectReference{Kind: kind, Name: object, UID: "uid-1"},
	}
	if kind == "Node" {
		e.Regarding.UID, e.Related = types.UID(object), &corev1.ObjectReference{
			Kind: "NodeMaintenance", Name: "kernel-update", UID: "uid-1",
		}
	}
	return build.With(e, modify...)
}

// events returns events of the maintenance that draining returns, and one of another maintenance.
func events() []runtime.Object {
	return []runtime.Object{
		event("a", "NodeMaintenanceCordoned", "Node", "node-003", "Made unschedulable by NodeMaintenance kernel-update",
			89*time.Second),
		event(
			"b", "CordonFight", "Node", "node-004", "kubectl-edit keeps uncordoning the node", 50*time.Second,
			func(e *eventsv1.Event) {
				e.Type, e.Series = corev1.EventTypeWarning, &eventsv1.EventSeries{Count: 4}
			},
		),
		event("d", "StageStarted", "NodeMaintenance", "kernel-update", "Stage Idle, requested by bob", 10*time.Minute),
		event("c", "Drained", "NodeMaintenance", "another", "All pods have left 1 node", 5*time.Second,
			func(e *eventsv1.Event) { e.Regarding.UID = "uid-9" }),
	}
}

// everything returns the objects of a cluster during a drain.
func everything() []runtime.Object {
	return append(append([]runtime.Object{draining(), cordon(), complete()}, evacuations()...), events()...)
}
