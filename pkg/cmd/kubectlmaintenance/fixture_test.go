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
		case *v1alpha1.NodeMaintenance, *v1alpha1.Evacuation, *v1alpha1.NodeMaintenanceRollout, *v1alpha1.NodeTask:
			hauloutObjects = append(hauloutObjects, object)
		default:
			kubeObjects = append(kubeObjects, object)
		}
	}
	for _, node := range nodesOfCluster() {
		kubeObjects = append(kubeObjects, node)
	}
	w.kube, w.haulout = kubefake.NewClientset(kubeObjects...), hauloutfake.NewClientset(hauloutObjects...)
	w.haulout.PrependReactor(
		"get", "nodemaintenances/preview",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			name := action.(clienttesting.GetAction).GetName()
			if preview := w.preview(name); preview != nil {
				return true, preview, nil
			}
			return true, nil, apierrors.NewNotFound(v1alpha1.Resource("nodemaintenances"), name)
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
	w.kube.PrependReactor(
		"create", "selfsubjectreviews",
		func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &authenticationv1.SelfSubjectReview{
				Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: "alice"}},
			}, nil
		},
	)
	// carryOut sets the status of a new maintenance as if the server had completed all work.
	carryOut := func(nm *v1alpha1.NodeMaintenance) {
		nm.UID = types.UID("uid-of-" + nm.Name)
		if nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain {
			w.observe(nm)
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
func draining() *v1alpha1.NodeMaintenance { return counted(undescribed(), evacuations()) }

// undescribed returns the maintenance that draining returns, without counters and conditions.
func undescribed() *v1alpha1.NodeMaintenance {
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
				{NodeRef: v1alpha1.NodeReference{Name: "node-003", UID: "n3"}, DrainTargets: targets, PodsPendingEvacuation: 2, PodsKept: 1},
				{NodeRef: v1alpha1.NodeReference{Name: "node-004", UID: "n4"}, DrainTargets: targets, PodsPendingEvacuation: 1, PodsKept: 1},
			},
			Waves: []v1alpha1.NodeMaintenanceWave{
				{Entry: 0, StartTime: new(before(90 * time.Second))}, {Entry: 1, PodsPeak: 3, PodsLeft: 3},
			},
		},
	}
}

// long returns the maintenance of a drain that began so long ago that the Evacuations of most of
// its pods are deleted.
func long(modify ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	nm := draining()
	nm.CreationTimestamp = before(4 * time.Hour)
	nm.Status.StageStatuses[0].StartTimestamp = new(before(4 * time.Hour))
	for i := range nm.Status.StageStatuses[1:] {
		nm.Status.StageStatuses[i+1].StartTimestamp = new(before(3 * time.Hour))
	}
	nm.Status.NodeStatuses[0].PodsPeak, nm.Status.NodeStatuses[1].PodsPeak = 30, 60
	nm.Status.Waves[0].PodsPeak, nm.Status.Waves[0].StartTime = 87, new(before(3*time.Hour))
	nm.Status.PodsGone = 78
	for _, m := range modify {
		m(nm)
	}
	return described(nm, evacuations())
}

// cordon returns a maintenance in stage Cordon.
func cordon() *v1alpha1.NodeMaintenance { return described(cordoning(), nil) }

func cordoning() *v1alpha1.NodeMaintenance {
	nm := undescribed()
	nm.Name, nm.UID, nm.Spec.Reason, nm.CreationTimestamp = "zone-a", "uid-2", "", before(3*time.Hour)
	nm.Spec.Stage, nm.Spec.NodeSelector = v1alpha1.NodeMaintenanceStageCordon, nm.Spec.NodeSelector.DeepCopy()
	nm.Spec.NodeSelector.NodeSelectorTerms = nm.Spec.NodeSelector.NodeSelectorTerms[:1]
	nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Values = []string{"node-005"}
	nm.Status.StageStatuses = []v1alpha1.StageStatus{
		{Name: v1alpha1.NodeMaintenanceStageCordon, StartTimestamp: new(before(3 * time.Hour))},
	}
	nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "node-005"}}}
	nm.Status.Waves = nil
	return nm
}

// complete returns a maintenance that has ended.
func complete() *v1alpha1.NodeMaintenance { return described(completed(), nil) }

func completed() *v1alpha1.NodeMaintenance {
	nm := undescribed()
	nm.Name, nm.UID, nm.Spec.Reason, nm.Finalizers = "memory", "uid-3", "replace memory", nil
	nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete
	nm.Status.StageStatuses = append(nm.Status.StageStatuses, v1alpha1.StageStatus{
		Name: v1alpha1.NodeMaintenanceStageComplete, StartTimestamp: new(before(30 * time.Second)),
	})
	nm.Status.Nodes, nm.Status.PodsGone = 2, 16
	nm.Status.Waves = []v1alpha1.NodeMaintenanceWave{
		{Entry: 0, PodsPeak: 13, StartTime: new(before(90 * time.Second)), EndTime: new(before(50 * time.Second))},
		{Entry: 1, PodsPeak: 3, StartTime: new(before(50 * time.Second)), EndTime: new(before(40 * time.Second))},
	}
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
		Status: v1alpha1.EvacuationStatus{
			ActiveEvacuatorClass: v1alpha1.EvacuatorClassEviction,
			Message:              protocol.TurnMessage(v1alpha1.EvacuatorClassEviction, "it has no evacuator"),
		},
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

// unreachable is the text about a pod on a node whose kubelet does not respond.
func unreachable(node string) string {
	return "The kubelet of node " + node + " does not respond, so it cannot confirm that the pod has stopped. Bring the node back, " +
		"or make sure that it is off and then taint it with " + corev1.TaintNodeOutOfService + "."
}

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
			unreachable("node-001"), 2*time.Hour)),
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

const surgeMessage = "Deployment cart is scaled from 2 to 4, so that another replica takes the place of the pod before it leaves: " +
	"0 of 2 are available; surge pod cart-x is Pending: 0/20 nodes are available."

// waiting returns Evacuations for the maintenance that draining returns. They wait for their
// evacuators.
func waiting() []runtime.Object {
	const flush = "flush.example.com"
	return []runtime.Object{
		evacuation("shop", "cart-1", "node-003", active(v1alpha1.EvacuatorClassDeployment, surgeMessage, 25*time.Second)),
		evacuation("shop", "cart-2", "node-004", active(v1alpha1.EvacuatorClassDeployment, surgeMessage, 24*time.Second)),
		evacuation("db", "cache-0", "node-003", active(flush, "", 40*time.Second)),
		evacuation("db", "cache-1", "node-004", active(flush, "", 5*time.Second)),
	}
}

// stopping returns Evacuations for the maintenance that draining returns. Their pods are within
// their grace period: one pod was evicted, the others leave by scale-down.
func stopping() []runtime.Object {
	within := func(until string) func(*v1alpha1.Evacuation) {
		message := "The pod is stopping until " + until + ", the end of its grace period."
		return notBlocked(v1alpha1.ReasonPodStopping, message, 30*time.Second)
	}
	const replaced = "The replacement is available."
	return []runtime.Object{
		evacuation("shop", "worker-1", "node-003", within("2026-11-21T11:59:30Z")),
		evacuation("shop", "cart-6b7c9-2kxzp", "node-004", ofDeployment("6b7c9"), within("2026-11-21T11:59:31Z"),
			active(v1alpha1.EvacuatorClassDeployment, replaced, time.Minute)),
		evacuation("shop", "cart-6b7c9-8m4qd", "node-003", ofDeployment("6b7c9"), within("2026-11-21T11:58:02Z"),
			active(v1alpha1.EvacuatorClassDeployment, replaced, time.Minute)),
	}
}

// notBlocked sets a condition Blocked that is False: the pod waits.
func notBlocked(reason, message string, since time.Duration) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) {
		blocked(reason, message, since)(e)
		e.Status.Conditions[len(e.Status.Conditions)-1].Status = metav1.ConditionFalse
	}
}

// turns returns two Evacuations for the maintenance that draining returns. Their pods may be
// evicted; one of them waits until other pods of its Deployment are available.
func turns() []runtime.Object {
	waits := notBlocked(v1alpha1.ReasonPodWaits, "The pod waits for other pods of Deployment web to be available: no PodDisruptionBudget "+
		"protects them, so at most 1 of 2 may be missing.", 2*time.Minute)
	return []runtime.Object{evacuation("shop", "web-20", "node-003", waits), evacuation("shop", "web-21", "node-003")}
}

// appDown returns a Deployment whose only pod has left and has no ready replacement, and another
// Deployment that is ready.
func appDown() []runtime.Object {
	var objects []runtime.Object
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
	return drainOf(objects...)
}

// again returns a drain of an app whose pods tolerate the taint of the drain. The pods are
// recreated on the node and leave it again; the last one has not left yet.
func again() []runtime.Object {
	app := func(e *v1alpha1.Evacuation) { e.Labels = map[string]string{"app": "free"} }
	created := func(d time.Duration) func(*v1alpha1.Evacuation) {
		return func(e *v1alpha1.Evacuation) { e.CreationTimestamp = before(d) }
	}
	objects := []runtime.Object{evacuation("shop", "free-0", "node-003", app, created(80*time.Second), gone(60*time.Second))}
	for i := 1; i < 20; i++ {
		objects = append(objects, evacuation("shop", fmt.Sprintf("free-%d", i), "node-003", app,
			created(time.Duration(60-2*i)*time.Second), gone(time.Duration(59-2*i)*time.Second)))
	}
	objects = append(objects, evacuation("shop", "free-20", "node-003", app, created(20*time.Second)), evacuation("shop", "web-9", "node-004"))
	nm := counted(undescribed(), objects)
	// The server has never seen more than one of these pods.
	nm.Status.NodeStatuses[0].PodsPeak, nm.Status.PodsGone, nm.Status.Waves[0].PodsPeak = 3, 0, 2
	return append([]runtime.Object{described(nm, objects)}, objects...)
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
			"b", "CordonFight", "Node", "node-004", "kubectl-edit keeps uncordoning the node while NodeMaintenance kernel-update holds it; Haulout waits longer before each new cordon", 50*time.Second,
			func(e *eventsv1.Event) {
				e.Type, e.Series = corev1.EventTypeWarning, &eventsv1.EventSeries{Count: 4}
			},
		),
		event("d", "StageStarted", "NodeMaintenance", "kernel-update", "Stage Idle, requested by bob", 10*time.Minute),
		event("c", "Drained", "NodeMaintenance", "another", "All pods have left 1 node", 5*time.Second,
			func(e *eventsv1.Event) { e.Regarding.UID = "uid-9" }),
	}
}

// everything returns the objects of a cluster during a drain, with further Evacuations.
func everything(more ...runtime.Object) []runtime.Object {
	drain := drainOf(append(evacuations(), more...)...)
	return append(append(drain, cordon(), complete()), events()...)
}
