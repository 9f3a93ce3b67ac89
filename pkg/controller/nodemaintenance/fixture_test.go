// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	hostfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	nodecontroller "haulout.dev/haulout/pkg/controller/node"
	"haulout.dev/haulout/pkg/controller/nodestate"
	"haulout.dev/haulout/pkg/controller/nodetask"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	maintenancelisters "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/inflight"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/testing/must"
)

// fixture has two fake clusters, a clock and the controllers under test.
type fixture struct {
	t           *testing.T
	ctx         context.Context
	host        *hostfake.Clientset
	maintenance *maintenancefake.Clientset
	clock       informertest.Clock
	recorder    *events.FakeRecorder
	rights      *authorizerOfAll
	watches     *informertest.Watches
	// evacuatorsOn are the classes of the built-in evacuators that are enabled.
	evacuatorsOn sets.Set[string]
	// advertise, protect and adopted are options of the controllers that the next restart creates.
	advertise, protect bool
	adopted            string
	evictions          *inflight.Evictions
	// failed are the Evacuations that could not be withdrawn.
	failed []withdrawal
	// nodes is the node controller that runs together with this one.
	nodes *nodecontroller.Controller
	// tasks is the controller of tasks that runs together with this one.
	tasks *nodetask.Controller
	// volumes and taskLister are caches that the controllers share.
	volumes    cache.Store
	taskLister maintenancelisters.NodeTaskLister
	*Controller
}

// turnOn enables a built-in evacuator.
func (f *fixture) turnOn(class string) {
	f.evacuatorsOn.Insert(class)
	f.restart()
}

// authorizerOfAll allows every user to delete every node except those in refused; "jane on one"
// refuses a node to one user.
type authorizerOfAll struct {
	mu      sync.Mutex
	refused sets.Set[string]
	err     error
	// failing has the errors of the access reviews for single nodes.
	failing map[string]error
	// silent is the user whose access reviews do not end until answer is closed.
	silent string
	answer chan struct{}
	asked  int
	// failingPools has the errors of the access reviews for pools.
	failingPools map[string]error
	// pools are the pools that every user may maintain. onlyPools is set if users have no other
	// right.
	pools     sets.Set[string]
	onlyPools bool
}

// count returns the number of access reviews so far.
func (r *authorizerOfAll) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

func (r *authorizerOfAll) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if r.silent != "" && a.GetUser().GetName() == r.silent {
		select {
		case <-r.answer:
		case <-ctx.Done():
			return authorizer.DecisionNoOpinion, "", ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if a.GetVerb() == rights.VerbAssign && a.GetResource() == rights.ResourceWorkers {
		return authorizer.DecisionAllow, "", nil
	}
	if a.GetVerb() == "maintain" && a.GetAPIGroup() == v1alpha1.GroupName {
		if err := r.failingPools[a.GetName()]; err != nil && a.GetResource() == rights.ResourceNodePools {
			return authorizer.DecisionNoOpinion, "", err
		}
		if a.GetResource() == rights.ResourceNodePools && r.pools.Has(a.GetName()) {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	}
	if a.GetVerb() != "delete" || a.GetResource() != "nodes" || a.GetAPIGroup() != "" || a.GetUser().GetName() == "" {
		return authorizer.DecisionDeny, "", fmt.Errorf("unexpected review %v", a)
	}
	if r.err != nil {
		return authorizer.DecisionNoOpinion, "", r.err
	}
	if err := r.failing[a.GetName()]; err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	if r.onlyPools || r.refused.Has(a.GetName()) || r.refused.Has(a.GetUser().GetName()+" on "+a.GetName()) {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

func (r *authorizerOfAll) ConditionsAwareAuthorize(
	ctx context.Context, a authorizer.Attributes,
) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(r.Authorize(ctx, a))
}

func (r *authorizerOfAll) EvaluateConditions(
	ctx context.Context, d authorizer.ConditionsAwareDecision, data authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", nil
}

const (
	testStorage = "storage-1"
	poolLabel   = "node-restriction.kubernetes.io/pool"
)

// newFixture starts the caches of the controllers. It must be called in a bubble of synctest.
func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	f := &fixture{
		t: t, ctx: ctx, host: hostfake.NewClientset(), maintenance: maintenancefake.NewClientset(),
		recorder: events.NewFakeRecorder(10000), rights: &authorizerOfAll{refused: sets.New[string]()},
		evacuatorsOn: sets.New[string](), evictions: &inflight.Evictions{},
	}
	f.watches = informertest.Count(f.host, f.maintenance)
	f.maintenance.PrependReactor("create", "evacuations", func(action clienttesting.Action) (bool, runtime.Object, error) {
		e := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.Evacuation)
		pod, err := f.host.CoreV1().Pods(e.Namespace).Get(ctx, e.Spec.PodRef.Name, metav1.GetOptions{})
		if err != nil || pod.UID != e.Spec.PodRef.UID {
			return true, nil, apierrors.NewNotFound(corev1.Resource("pods"), e.Spec.PodRef.Name)
		}
		e.Spec.NodeName = pod.Spec.NodeName
		return false, nil, nil
	})
	f.maintenance.PrependReactor("create", "nodetasks", func(action clienttesting.Action) (bool, runtime.Object, error) {
		status := &action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeTask).Status
		status.State, status.StateTime = v1alpha1.NodeTaskOffered, &metav1.Time{Time: f.clock.Now()}
		return false, nil, nil
	})
	f.maintenance.PrependReactor("get", "nodemaintenances/preview", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &v1alpha1.NodeMaintenancePreview{}, nil
	})
	for _, o := range objects {
		f.create(o)
	}
	f.restart()
	return f
}

// restart replaces the controllers with new ones, which know only the objects in the clusters.
func (f *fixture) restart() {
	f.t.Helper()
	cluster := must.Get(host.NewCluster(host.Clients{Client: f.host, Maintenance: f.maintenance, Recorder: f.recorder}, 0))(f.t)
	cluster.InFlight = f.evictions
	f.nodes, f.Controller = newControllers(f.t, nodecontroller.Config{
		Cluster: cluster, Clock: f.clock, Evacuators: f.evacuatorsOn.Clone(), StorageID: testStorage,
		AdoptStorage: f.adopted, AdvertisePlanned: f.advertise, ProtectHeld: f.protect,
		Rights: rights.NewCache(rights.CacheConfig{Authorizer: f.rights, Clock: f.clock, Rules: rights.Rules{PoolLabel: poolLabel}}),
	}, nodestate.Config{OwnPod: types.NamespacedName{Namespace: "default", Name: "haulout-1"}})
	f.tasks = nodetask.New(nodetask.Config{Cluster: cluster, Selection: f.selection, State: f.state, Rights: f.Controller.rights, Clock: f.clock})
	f.t.Cleanup(func(tasks *nodetask.Controller) func() {
		return func() {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			tasks.Run(over, 0)
		}
	}(f.tasks))
	f.volumes, f.taskLister = cluster.VolumeAttachments.Informer().GetStore(), cluster.NodeTasks.Lister()
	watched := []string{"nodes", "pods", "volumeattachments", "nodemaintenances", "evacuations", "nodetasks"}
	begun := f.watches.Fewest(watched...)
	cluster.Start(f.ctx)
	f.watches.Wait(f.t, begun, watched...)
	f.cached()
}

func (f *fixture) create(o runtime.Object) {
	f.t.Helper()
	var err error
	switch o := o.(type) {
	case *corev1.Node:
		_, err = f.host.CoreV1().Nodes().Create(f.ctx, o, metav1.CreateOptions{})
	case *corev1.Pod:
		_, err = f.host.CoreV1().Pods(o.Namespace).Create(f.ctx, o, metav1.CreateOptions{})
	case *corev1.PersistentVolumeClaim:
		_, err = f.host.CoreV1().PersistentVolumeClaims(o.Namespace).Create(f.ctx, o, metav1.CreateOptions{})
	case *corev1.PersistentVolume:
		_, err = f.host.CoreV1().PersistentVolumes().Create(f.ctx, o, metav1.CreateOptions{})
	case *appsv1.DaemonSet:
		_, err = f.host.AppsV1().DaemonSets(o.Namespace).Create(f.ctx, o, metav1.CreateOptions{})
	case *schedulingv1.PriorityClass:
		_, err = f.host.SchedulingV1().PriorityClasses().Create(f.ctx, o, metav1.CreateOptions{})
	case *storagev1.VolumeAttachment:
		_, err = f.host.StorageV1().VolumeAttachments().Create(f.ctx, o, metav1.CreateOptions{})
	case *v1alpha1.NodeMaintenance:
		_, err = f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Create(f.ctx, o, metav1.CreateOptions{})
	case *v1alpha1.NodeTask:
		_, err = f.maintenance.MaintenanceV1alpha1().NodeTasks().Create(f.ctx, o, metav1.CreateOptions{})
	case *v1alpha1.Evacuation:
		_, err = f.maintenance.MaintenanceV1alpha1().Evacuations(o.Namespace).Create(f.ctx, o, metav1.CreateOptions{})
	default:
		f.t.Fatalf("cannot create %T", o)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// cached waits until the caches of the controllers have all objects of the clusters.
func (f *fixture) cached() {
	f.t.Helper()
	f.eventually("the caches are up to date", func() bool {
		nodes, err := f.nodeLister.List(labels.Everything())
		ok := err == nil && sameObjects(nodes, f.nodeList())
		pods, err := f.podLister.List(labels.Everything())
		ok = ok && err == nil && sameObjects(pods, f.pods())
		maintenances, err := f.maintenanceLister.List(labels.Everything())
		ok = ok && err == nil && sameObjects(maintenances, f.maintenanceList())
		evacuations, err := f.evacuationLister.List(labels.Everything())
		ok = ok && err == nil && sameObjects(evacuations, f.evacuationList())
		var volumes []*storagev1.VolumeAttachment
		for _, obj := range f.volumes.List() {
			volumes = append(volumes, obj.(*storagev1.VolumeAttachment))
		}
		tasks, err := f.taskLister.List(labels.Everything())
		return ok && err == nil && sameObjects(volumes, f.volumeAttachments()) && sameObjects(tasks, f.taskList())
	})
}

// authorized waits until the access reviews for all nodes of the active maintenances have ended, so
// that no sync waits for one.
func (f *fixture) authorized() {
	f.t.Helper()
	f.cached()
	for asked := -1; asked != f.rights.count(); {
		asked = f.rights.count()
		for _, nm := range f.maintenanceList() {
			if v1alpha1.IsHolding(nm) {
				f.Controller.rights.Ask(f.ctx, nm.Spec.RequestedBy, f.selection.NodesOf(nm.Name))
			}
		}
		synctest.Wait()
	}
}

func sameObjects[T metav1.Object](cached, stored []T) bool {
	key := func(o T) string {
		plain := any(o).(runtime.Object).DeepCopyObject()
		// Objects from informers have no kind.
		plain.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		stripped, _ := podcache.Strip(plain)
		o = stripped.(T)
		data, _ := json.Marshal(o)
		return string(data)
	}
	a, b := sets.New[string](), sets.New[string]()
	for _, o := range cached {
		a.Insert(key(o))
	}
	for _, o := range stored {
		b.Insert(key(o))
	}
	return a.Equal(b)
}

// eventually waits for a condition. Before each check it waits until the informers and the
// controllers have nothing left to do.
func (f *fixture) eventually(what string, condition func() bool) {
	f.t.Helper()
	if !informertest.Until(time.Millisecond, condition) {
		f.t.Fatalf("never came true: %s", what)
	}
}

// syncOnce syncs a maintenance once.
func (f *fixture) syncOnce(name string) {
	f.t.Helper()
	if err := f.Controller.sync(f.ctx, name); err != nil {
		f.t.Fatalf("sync %q: %v", name, err)
	}
}

// step syncs a maintenance until a sync changes nothing.
func (f *fixture) step(name string) {
	f.t.Helper()
	for range 20 {
		before := f.stored()
		f.authorized()
		if err := f.Controller.sync(f.ctx, name); err != nil && !loop.IsOnlyConflict(err) {
			f.t.Fatalf("sync %q: %v", name, err)
		}
		f.cached()
		if err := f.withdraw(); err != nil {
			f.t.Fatal(err)
		}
		f.cached()
		if err := f.reconcileNodes(); err != nil {
			f.t.Fatal(err)
		}
		f.cached()
		if f.stored() == before {
			f.wantSameDecision(name)
			return
		}
	}
	f.t.Fatalf("%q does not converge", name)
}

// reconcileNodes reconciles every node that exists or that a maintenance or an Evacuation names.
func (f *fixture) reconcileNodes() error {
	names := sets.New[string]()
	for _, node := range f.nodeList() {
		names.Insert(node.Name)
	}
	for _, nm := range f.maintenanceList() {
		for _, n := range nm.Status.NodeStatuses {
			names.Insert(n.NodeRef.Name)
		}
	}
	for _, e := range f.evacuationList() {
		names.Insert(e.Spec.NodeName)
	}
	names.Delete("")
	var errs []error
	for _, name := range sets.List(names) {
		if err := f.nodes.Sync(f.ctx, name); err != nil && !loop.IsOnlyConflict(err) {
			errs = append(errs, fmt.Errorf("reconcile node %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// sweep runs the periodic work of the controllers.
func (f *fixture) sweep() {
	f.t.Helper()
	f.resync(f.ctx)
	for range 5 {
		f.cached()
		if err := errors.Join(f.withdraw(), f.reconcileNodes()); err != nil {
			f.t.Fatal(err)
		}
	}
	f.cached()
}

// withdraw withdraws the enqueued Evacuations.
func (f *fixture) withdraw() error {
	var errs []error
	for f.withdrawals.queue.Len() > 0 {
		key, _ := f.withdrawals.queue.Get()
		if err := f.withdrawals.sync(f.ctx, key); err != nil && !loop.IsOnlyConflict(err) {
			errs = append(errs, fmt.Errorf("withdraw %s: %w", key, err))
			f.failed = append(f.failed, key)
		}
		f.withdrawals.queue.Done(key)
	}
	for _, key := range f.failed {
		f.withdrawals.queue.Add(key)
	}
	f.failed = nil
	return errors.Join(errs...)
}

// wait advances the clock.
func (f *fixture) wait(d time.Duration) { f.clock.Step(d) }

func (f *fixture) stored() string {
	// Now all sent access reviews have ended.
	data, err := json.Marshal([]any{f.nodeList(), f.maintenanceList(), f.evacuationList(), f.rights.count()})
	if err != nil {
		f.t.Fatal(err)
	}
	return string(data)
}

// objects returns a function that returns the objects in the result of a list call.
func objects[L, T any](f *fixture, items func(L) []T) func(L, error) []*T {
	return func(list L, err error) []*T {
		f.t.Helper()
		if err != nil {
			f.t.Fatal(err)
		}
		var out []*T
		for i := range items(list) {
			out = append(out, &items(list)[i])
		}
		return out
	}
}

func (f *fixture) nodeList() []*corev1.Node {
	f.t.Helper()
	return objects(f, func(l *corev1.NodeList) []corev1.Node { return l.Items })(f.host.CoreV1().Nodes().List(f.ctx, metav1.ListOptions{}))
}

func (f *fixture) pods() []*corev1.Pod {
	f.t.Helper()
	return objects(f, func(l *corev1.PodList) []corev1.Pod { return l.Items })(f.host.CoreV1().Pods("").List(f.ctx, metav1.ListOptions{}))
}

func (f *fixture) cachedPods() []*corev1.Pod {
	pods, err := f.podLister.List(labels.Everything())
	if err != nil {
		f.t.Fatal(err)
	}
	return pods
}

func (f *fixture) volumeAttachments() []*storagev1.VolumeAttachment {
	f.t.Helper()
	return objects(f, func(l *storagev1.VolumeAttachmentList) []storagev1.VolumeAttachment { return l.Items })(
		f.host.StorageV1().VolumeAttachments().List(f.ctx, metav1.ListOptions{}))
}

func (f *fixture) maintenanceList() []*v1alpha1.NodeMaintenance {
	f.t.Helper()
	return objects(f, func(l *v1alpha1.NodeMaintenanceList) []v1alpha1.NodeMaintenance { return l.Items })(
		f.maintenance.MaintenanceV1alpha1().NodeMaintenances().List(f.ctx, metav1.ListOptions{}))
}

func (f *fixture) taskList() []*v1alpha1.NodeTask {
	f.t.Helper()
	return objects(f, func(l *v1alpha1.NodeTaskList) []v1alpha1.NodeTask { return l.Items })(
		f.maintenance.MaintenanceV1alpha1().NodeTasks().List(f.ctx, metav1.ListOptions{}))
}

func (f *fixture) evacuationList() []*v1alpha1.Evacuation {
	f.t.Helper()
	return objects(f, func(l *v1alpha1.EvacuationList) []v1alpha1.Evacuation { return l.Items })(
		f.maintenance.MaintenanceV1alpha1().Evacuations("").List(f.ctx, metav1.ListOptions{}))
}

func (f *fixture) node(name string) *corev1.Node {
	f.t.Helper()
	node, err := f.host.CoreV1().Nodes().Get(f.ctx, name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return node
}

func (f *fixture) updateNode(name string, modify func(*corev1.Node)) {
	f.t.Helper()
	node := f.node(name)
	modify(node)
	if _, err := f.host.CoreV1().Nodes().Update(f.ctx, node, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) nm(name string) *v1alpha1.NodeMaintenance {
	f.t.Helper()
	nm, err := f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Get(f.ctx, name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return nm
}

// enter moves a maintenance to a stage as the API server does, and waits until the cache has it.
// The fake cluster has no conflicts: a status write with an older version would revert the stage.
func (f *fixture) enter(name string, stage v1alpha1.NodeMaintenanceStage) {
	f.t.Helper()
	nm := f.nm(name)
	atStage(stage)(nm)
	nm.Generation++
	if _, err := f.maintenance.MaintenanceV1alpha1().NodeMaintenances().Update(f.ctx, nm,
		metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.eventually("the cache shows the stage", func() bool {
		cached, err := f.maintenanceLister.Get(name)
		return err == nil && cached.Generation == nm.Generation
	})
}

// deletePod deletes a pod and, as the evacuation controller does, its Evacuation.
func (f *fixture) deletePod(name string) {
	f.t.Helper()
	pod, err := f.host.CoreV1().Pods("default").Get(f.ctx, name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.host.CoreV1().Pods("default").Delete(f.ctx, name, metav1.DeleteOptions{}); err != nil {
		f.t.Fatal(err)
	}
	err = f.maintenance.MaintenanceV1alpha1().Evacuations("default").Delete(f.ctx,
		protocol.CanonicalName(name, pod.UID), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		f.t.Fatal(err)
	}
}

// evacuating returns the names of the pods that have an Evacuation of ours, sorted.
func (f *fixture) evacuating() []string {
	out := []string{}
	for _, e := range f.evacuationList() {
		if slices.Contains(e.Finalizers, v1alpha1.FinalizerInstigatorNodeMaintenance) {
			out = append(out, e.Spec.PodRef.Name)
		}
	}
	slices.Sort(out)
	return out
}

func (f *fixture) wantEvacuating(names ...string) {
	f.t.Helper()
	if got := f.evacuating(); !reflect.DeepEqual(got, append([]string{}, names...)) {
		f.t.Errorf("got Evacuations of %v, want %v", got, names)
	}
}

func (f *fixture) nodeStatus(maintenance, node string) v1alpha1.NodeMaintenanceNodeStatus {
	f.t.Helper()
	for _, n := range f.nm(maintenance).Status.NodeStatuses {
		if n.NodeRef.Name == node {
			return n
		}
	}
	f.t.Fatalf("the status has no node %s", node)
	return v1alpha1.NodeMaintenanceNodeStatus{}
}
