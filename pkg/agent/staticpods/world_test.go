// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/must"
)

// manifestOf returns a manifest of a pod with the priority 1000 that takes five seconds to end.
func manifestOf(name string, more ...string) string {
	return text(name, append([]string{"  priority: 1000", "  terminationGracePeriodSeconds: 5"}, more...)...)
}

// drain returns a NodeMaintenance in stage Drain that targets the static pods up to a priority.
func drain(name string, priority int32, mods ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.NodeMaintenanceStageDrain, Reason: "new kernel"},
		Status: v1alpha1.NodeMaintenanceStatus{NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{
			{NodeRef: v1alpha1.NodeReference{Name: "other"}},
			{
				NodeRef: v1alpha1.NodeReference{Name: node},
				DrainTargets: []v1alpha1.DrainPlanEntry{
					{PodType: v1alpha1.PodTypeDefault, PodPriority: v1alpha1.MaxPodPriority},
					{PodType: v1alpha1.PodTypeStatic, PodPriority: priority},
				},
			},
		}},
	}
	for _, mod := range mods {
		mod(nm)
	}
	return nm
}

func inStage(stage v1alpha1.NodeMaintenanceStage) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = stage }
}

// evacuationOf returns an Evacuation of a pod whose active evacuator class is the kubelet's.
func evacuationOf(name string) *v1alpha1.Evacuation {
	return &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "evacuation-of-" + name, UID: types.UID("evacuation-" + name),
			Finalizers: []string{v1alpha1.FinalizerInstigatorNodeMaintenance},
		},
		Spec: v1alpha1.EvacuationSpec{
			PodRef: v1alpha1.PodReference{Name: name + "-node-7", UID: "api-1"}, NodeName: node,
			ProgressDeadlineSeconds: ptr.To[int32](1800),
		},
		Status: v1alpha1.EvacuationStatus{ActiveEvacuatorClass: v1alpha1.EvacuatorClassKubelet},
	}
}

var (
	maintenancesResource = v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances")
	nodesResource        = corev1.SchemeGroupVersion.WithResource("nodes")
	evacuationsResource  = v1alpha1.SchemeGroupVersion.WithResource("evacuations")
)

// report is a write to the status of an Evacuation.
type report struct {
	at      time.Duration
	message string
	// finish is the expected finish time. done is set if the report is about a stopped pod.
	finish string
	done   bool
}

// world is a node with a kubelet and a Keeper, and an API, in a bubble of testing/synctest.
type world struct {
	*tree
	kubelet *fakeKubelet
	kube    *kubefake.Clientset
	api     *fake.Clientset
	leaving bool
	start   time.Time
	// stop ends the Keeper.
	stop func()

	mu sync.Mutex
	// noAPI is the error of all requests to Haulout. noKube is the error of all requests to
	// Kubernetes.
	noAPI, noKube error
	// server is the API server URL of the kubelet, policy is the configuration, and static are the
	// static pods in the API.
	server  string
	policy  Policy
	static  []types.NamespacedName
	reports []report
	events  []string
}

// ownNode returns the Node of the agent.
func ownNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: "uid-node-7"}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"}},
	}
}

// newWorld returns a world in which the pods of the manifests run and have mirror pods.
func newWorld(t *testing.T, files map[string]string, objects ...runtime.Object) *world {
	t.Helper()
	w := &world{
		tree: newTree(t, files), kube: kubefake.NewClientset(ownNode()), api: fake.NewClientset(objects...), start: time.Now(),
		server: "https://192.0.2.1:6443",
	}
	w.kubelet = newFakeKubelet(t, w.dir(), w.kube)
	w.api.PrependReactor("list", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if got := action.(clienttesting.ListActionImpl).ListOptions.FieldSelector; got != "spec.stage=Drain" {
			t.Errorf("got a list of maintenances with the field selector %q", got)
		}
		return w.noAPI != nil, nil, w.noAPI
	})
	w.api.PrependReactor("get", "nodemaintenances", func(clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.noAPI != nil, nil, w.noAPI
	})
	w.kube.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.noKube != nil, nil, w.noKube
	})
	w.api.PrependReactor("patch", "evacuations", w.patched)
	// Return Forbidden, as the node authorizer does.
	w.kube.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), action.(clienttesting.GetAction).GetName(), errors.New("no relationship found"))
	})
	w.kube.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		selector := action.(clienttesting.ListActionImpl).ListOptions.FieldSelector
		if !strings.Contains(selector, "spec.nodeName="+node) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("can only list pods with spec.nodeName field selector"))
		}
		return false, nil, nil
	})
	w.until("the pods run", func() bool { return len(w.kubelet.happened()) > 0 || len(files) == 0 })
	w.run()
	return w
}

// patched records a patch.
func (w *world) patched(action clienttesting.Action) (bool, runtime.Object, error) {
	var body struct {
		Status struct {
			Message                      string `json:"message"`
			ExpectedEvacuationFinishTime string `json:"expectedEvacuationFinishTime"`
			ActiveEvacuatorCompleted     bool   `json:"activeEvacuatorCompleted"`
		} `json:"status"`
	}
	if err := json.Unmarshal(action.(clienttesting.PatchActionImpl).Patch, &body); err != nil {
		return true, nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reports = append(w.reports, report{
		at: time.Since(w.start), message: body.Status.Message, finish: body.Status.ExpectedEvacuationFinishTime, done: body.Status.ActiveEvacuatorCompleted,
	})
	return false, nil, nil
}

// run starts a Keeper.
func (w *world) run() {
	w.Helper()
	w.runKeeper(w.newKeeper())
}

func (w *world) newKeeper() *Keeper {
	w.Helper()
	k := must.Get(New(Config{
		Dir: w.dir(), NodeName: node, Kubelet: w.kubelet, Containers: w.kubelet, Kube: w.kube, Maintenance: w.api,
		Policy: w.policy, Server: func() (string, error) { w.mu.Lock(); defer w.mu.Unlock(); return w.server, nil },
		CA: func() ([]byte, error) { return nil, nil }, Static: func() []types.NamespacedName { return slices.Clone(w.static) },
		APILossRestorePeriod: 5 * time.Minute, HauloutLossRestorePeriod: time.Hour, PollingOnly: true,
		Leaving: func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.leaving },
		Event: func(eventType, reason, message string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, eventType+" "+reason+" "+message)
		},
	}))(w)
	return k
}

// runKeeper runs a Keeper until it is stopped or the test ends.
func (w *world) runKeeper(k *Keeper) {
	w.Helper()
	watches := informertest.Count(w.api)
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error)
	go func() { done <- k.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Error(err)
		}
	})
	w.Cleanup(w.stop)
	watches.Wait(w.T, 0, "evacuations")
}

func (w *world) until(what string, condition func() bool) {
	w.Helper()
	if !informertest.Until(100*time.Millisecond, condition) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.Fatalf("it never came to pass that %s\nkubelet: %v\nfiles: %v\nreports: %+v\nevents: %q",
			what, w.kubelet.happened(), w.list(), w.reports, w.events)
	}
}

// pass advances the time.
func (w *world) pass(d time.Duration) {
	informertest.Clock{}.Step(d)
	synctest.Wait()
}

func (w *world) wantHappened(want ...string) {
	w.Helper()
	w.until(strings.Join(want, ", ")+" happened", func() bool { return slices.Equal(w.kubelet.happened(), want) })
	w.pass(time.Minute)
	if got := w.kubelet.happened(); !slices.Equal(got, want) {
		w.Errorf("got %v, want %v", got, want)
	}
}

func (w *world) reported() []report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.reports)
}

func (w *world) untilReported(part string) report {
	w.Helper()
	var found report
	w.until("a report has "+part, func() bool {
		i := slices.IndexFunc(w.reported(), func(r report) bool { return strings.Contains(r.message, part) })
		if i >= 0 {
			found = w.reported()[i]
		}
		return i >= 0
	})
	return found
}

func (w *world) untilEvent(part string) {
	w.Helper()
	w.until("an event has "+part, func() bool { return w.countEvents(part) > 0 })
}

func (w *world) countEvents(part string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.events {
		if strings.Contains(e, part) {
			n++
		}
	}
	return n
}

// add creates an object in Haulout's API.
func (w *world) add(object runtime.Object) {
	w.Helper()
	must.Do(w, w.api.Tracker().Add(object))
}

// editMaintenance changes a NodeMaintenance.
func (w *world) editMaintenance(name string, mod func(*v1alpha1.NodeMaintenance)) {
	w.Helper()
	stored := must.Get(w.api.Tracker().Get(maintenancesResource, "", name))(w)
	nm := stored.(*v1alpha1.NodeMaintenance).DeepCopy()
	mod(nm)
	must.Do(w, w.api.Tracker().Update(maintenancesResource, nm, ""))
}

// readByName returns the number of reads of maintenances. Each of them must be by name.
func (w *world) readByName() int {
	w.Helper()
	reads := 0
	for _, action := range w.api.Actions() {
		if action.GetResource() != maintenancesResource {
			continue
		}
		if action.GetVerb() != "get" {
			w.Errorf("got a %s of maintenances, want them read by name", action.GetVerb())
		}
		reads++
	}
	return reads
}

// editEvacuation changes an Evacuation.
func (w *world) editEvacuation(name string, mod func(*v1alpha1.Evacuation)) {
	w.Helper()
	stored := must.Get(w.api.Tracker().Get(evacuationsResource, "default", "evacuation-of-"+name))(w)
	e := stored.(*v1alpha1.Evacuation).DeepCopy()
	mod(e)
	must.Do(w, w.api.Tracker().Update(evacuationsResource, e, "default"))
}

// departed completes an Evacuation as the server does when the pod is gone.
func departed(e *v1alpha1.Evacuation) {
	e.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPodDeleted,
	}}
}

func (w *world) setNoAPI(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noAPI = err
}

// loseAll makes both APIs unreachable; find makes them reachable again.
func (w *world) loseAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noAPI, w.noKube = errors.New("connection refused"), errors.New("connection refused")
}

func (w *world) find() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noAPI, w.noKube = nil, nil
}

// editNode changes the Node.
func (w *world) editNode(mod func(*corev1.Node)) {
	w.Helper()
	stored := must.Get(w.kube.Tracker().Get(nodesResource, "", node))(w)
	n := stored.(*corev1.Node).DeepCopy()
	mod(n)
	must.Do(w, w.kube.Tracker().Update(nodesResource, n, ""))
}

// published returns the annotation with the kept static pods of the Node.
func (w *world) published() string {
	w.Helper()
	stored := must.Get(w.kube.Tracker().Get(nodesResource, "", node))(w)
	return stored.(*corev1.Node).Annotations[v1alpha1.AnnotationKeptStaticPods]
}
